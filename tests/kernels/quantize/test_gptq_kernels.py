"""Error feedback on panels of rows: against a dense f64 version, in blocks of any width."""

from __future__ import annotations

import numpy as np
import pytest

from quantcli.formats import F32, U8
from quantcli.kernels.quantize import gptq
from quantcli.kernels.quantize.lanes import LANES, LINE

pytestmark = pytest.mark.jit


def lines(rows: np.ndarray) -> np.ndarray:
    """Return rows (n_rows, n), n_rows a multiple of 16, as lines (n_panels, n, 16)."""
    n = rows.shape[1]
    return np.ascontiguousarray(rows.reshape(-1, LANES, n).transpose(0, 2, 1))


def rows(of: np.ndarray) -> np.ndarray:
    """Return lines as rows."""
    return of.transpose(0, 2, 1).reshape(-1, of.shape[1])


class Case:
    """Random rows, a factor of a random Hessian, and a grid for each group of columns."""

    def __init__(self, n_rows: int, n: int, levels: F32, group: int = 32, seed: int = 0) -> None:
        random = np.random.default_rng(seed)
        self.weights: F32 = random.standard_normal((n_rows, n)).astype(np.float32)
        x = random.standard_normal((3 * n, n)) @ random.standard_normal((n, n)) / np.sqrt(n)
        flipped = np.linalg.cholesky((x.T @ x / len(x) + 0.05 * np.eye(n))[::-1, ::-1])
        self.factor = np.ascontiguousarray(flipped[::-1, ::-1])
        self.levels = levels
        self.group = group
        size = np.float32(5 / (levels[-1] - levels[0]))
        self.scales = (size * random.uniform(0.7, 1.3, (n_rows, n // group))).astype(np.float32)
        self.minima = -(self.scales * (levels[0] + levels[-1]) / 2).astype(np.float32) * -1
        self.groups = random.permutation(np.arange(n) // group)

    def run(self, width: int) -> tuple[F32, U8]:
        """Return errors and codes from the kernels, block by block."""
        n = self.weights.shape[1]
        w = lines(self.weights)
        errors, codes = np.full_like(w, np.nan), np.full(w.shape, 255, np.uint8)
        scales, minima = lines(self.scales), lines(self.minima)
        factor = self.factor.astype(np.float32)
        moved = np.empty((len(w), width, LANES), np.float32)
        targets = np.empty_like(moved)
        for start in range(0, n, width):
            mine = slice(start, start + width)
            operand = gptq.operand(factor[:start, mine])
            own = np.ascontiguousarray(factor[mine, mine].T)
            groups = np.ascontiguousarray(self.groups[mine], np.int64)
            a = np.zeros(1, gptq.ARGS)
            a["n_panels"], a["panel_nbytes"] = len(w), LINE * n
            a["n_before"], a["n_columns"] = start, width
            a["weights"], a["errors"], a["codes"] = (x.ctypes.data for x in (w, errors, codes))
            a["operand"], a["factor"] = operand.ctypes.data, own.ctypes.data
            a["moved"], a["targets"] = moved.ctypes.data, targets.ctypes.data
            a["scales"], a["minima"] = scales.ctypes.data, minima.ctypes.data
            a["n_groups"], a["groups"] = scales.shape[1], groups.ctypes.data
            a["levels"], a["n_levels"] = self.levels.ctypes.data, len(self.levels)
            a["is_uniform"] = bool((np.diff(self.levels) == 1).all())
            gptq.carry(a.ctypes.data)
            gptq.feedback(a.ctypes.data)
        return rows(errors), rows(codes)


UNIFORM = np.arange(-4, 4, dtype=np.float32)
TABLE = np.array([-7, -4, -2.5, -1, 0, 1, 2, 3.5, 6], np.float32)


@pytest.mark.parametrize("levels", [UNIFORM, TABLE], ids=["uniform", "table"])
@pytest.mark.parametrize(("n_rows", "n"), [(16, 64), (48, 128)])
def test_feedback_is_gptq(levels: F32, n_rows: int, n: int) -> None:
    case = Case(n_rows, n, levels)
    want_errors, want_codes = gptq.reference(
        case.weights, case.factor, case.scales, case.minima, levels, case.groups
    )
    errors, codes = case.run(width=n)
    # A target at a rounding's edge may go the other way in f32, and the row's rest with it.
    same = (codes == want_codes).all(axis=1)
    assert same.mean() > 0.9
    np.testing.assert_allclose(errors[same], want_errors[same], atol=2e-5)


@pytest.mark.parametrize("width", [32, 64])
def test_the_width_of_blocks_does_not_matter(width: int) -> None:
    case = Case(32, 192, UNIFORM, seed=3)
    whole_errors, whole_codes = case.run(width=192)
    errors, codes = case.run(width=width)
    same = (codes == whole_codes).all(axis=1)
    assert same.mean() > 0.9
    np.testing.assert_allclose(errors[same], whole_errors[same], atol=2e-5)


def test_without_correlations_every_weight_goes_to_the_nearest_value() -> None:
    case = Case(16, 64, TABLE)
    case.factor = np.diag(np.linspace(0.5, 3, 64))
    _, codes = case.run(width=32)
    grid = case.scales[:, case.groups, None] * TABLE - case.minima[:, case.groups, None]
    distance = np.abs(grid - case.weights[..., None])
    chosen = np.take_along_axis(distance, codes[..., None].astype(int), -1)[..., 0]
    np.testing.assert_allclose(chosen, distance.min(axis=-1), atol=1e-6)


def test_a_rows_result_does_not_depend_on_its_company() -> None:
    case = Case(48, 128, UNIFORM, seed=5)
    errors, codes = case.run(width=32)
    case.weights, case.scales, case.minima = (
        np.ascontiguousarray(a[16:32]) for a in (case.weights, case.scales, case.minima)
    )
    alone_errors, alone_codes = case.run(width=32)
    assert alone_errors.tobytes() == np.ascontiguousarray(errors[16:32]).tobytes()
    np.testing.assert_array_equal(alone_codes, codes[16:32])


def test_a_scale_of_zero_gives_the_lowest_code_and_no_nan() -> None:
    case = Case(16, 32, UNIFORM)
    case.scales[...] = 0
    case.minima[...] = 0
    errors, _ = case.run(width=32)
    np.testing.assert_array_equal(errors, case.weights)


def test_targets_leave_no_error_in_the_block() -> None:
    random = np.random.default_rng(2)
    case = Case(16, 64, UNIFORM, seed=9)
    w, e = lines(case.weights), lines(random.standard_normal((16, 64)).astype(np.float32))
    moved, targets = np.empty((1, 32, LANES), np.float32), np.empty((1, 32, LANES), np.float32)
    factor = case.factor.astype(np.float32)
    operand = gptq.operand(factor[:32, 32:])
    own = np.ascontiguousarray(factor[32:, 32:].T)
    a = np.zeros(1, gptq.ARGS)
    a["n_panels"], a["panel_nbytes"], a["n_before"], a["n_columns"] = 1, LINE * 64, 32, 32
    a["weights"], a["errors"] = w.ctypes.data, e.ctypes.data
    a["operand"], a["factor"] = operand.ctypes.data, own.ctypes.data
    a["moved"], a["targets"] = moved.ctypes.data, targets.ctypes.data
    gptq.carry(a.ctypes.data)
    errors = np.concatenate([rows(e)[:, :32], case.weights[:, 32:] - rows(targets)], axis=1)
    left = np.float64(errors) @ case.factor
    scale = np.abs(np.float64(errors)) @ np.abs(case.factor)
    assert (np.abs(left[:, 32:]) < 1e-5 * scale[:, 32:] + 1e-5).all()
