"""Coordinate descent on codes and scales: against f64, and never uphill."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np
import pytest

from quantcli.formats import F32, U8
from quantcli.kernels.quantize import descent, gptq
from quantcli.kernels.quantize.lanes import LANES, LINE

pytestmark = pytest.mark.jit

LEVELS = np.arange(-4, 4, dtype=np.float32)


def lines(of: np.ndarray) -> np.ndarray:
    """Return rows (n_rows, n) as lines (n_panels, n, 16)."""
    n = of.shape[1]
    return np.ascontiguousarray(of.reshape(-1, LANES, n).transpose(0, 2, 1))


def rows(of: np.ndarray) -> np.ndarray:
    """Return lines as rows."""
    return of.transpose(0, 2, 1).reshape(-1, of.shape[1])


@dataclass
class Case:
    """Rows whose codes are nearest, in blocks of `width` columns and groups of 16."""

    n: int = 64
    width: int = 64
    n_rows: int = 32
    seed: int = 0
    rounding: int = descent.FIXED
    has_minima: bool = False
    group: int = 16
    weights: F32 = field(init=False)
    codes: U8 = field(init=False)

    def __post_init__(self) -> None:
        random = np.random.default_rng(self.seed)
        n, n_groups = self.n, self.n // self.group
        self.weights = random.standard_normal((self.n_rows, n)).astype(np.float32)
        x = random.standard_normal((4 * n, n)) @ random.standard_normal((n, n)) / np.sqrt(n)
        self.hessian = (x.T @ x / len(x) + 0.02 * np.eye(n)).astype(np.float32)
        multiples = random.integers(30, 60, (self.n_rows, n_groups))
        self.unit = np.float32(2.0**-6)
        self.scales = (multiples * self.unit).astype(np.float32)
        self.minima = np.zeros_like(self.scales)
        if self.has_minima:
            self.minima = (random.integers(0, 20, multiples.shape) * self.unit).astype(np.float32)
        self.groups = random.permutation(self.width) % (self.width // self.group)
        # the permutation is of the columns of a block; each group has as many
        target = (self.weights + self.at(self.minima)) / self.at(self.scales)
        self.codes = (np.clip(np.rint(target), -4, 3) + 4).astype(np.uint8)

    def at(self, grid: F32) -> F32:
        """Return what a grid (n_rows, n_groups) has at each column."""
        n_groups = self.width // self.group
        places = [k * n_groups + self.groups for k in range(self.n // self.width)]
        found: F32 = grid[:, np.concatenate(places)]
        return found

    def loss(self) -> np.ndarray:
        """Return e H e^T of each row, f64."""
        values = self.at(self.scales) * LEVELS[self.codes] - self.at(self.minima)
        errors = np.float64(self.weights) - values
        return np.einsum("ij,ij->i", errors @ np.float64(self.hessian), errors)

    def descend(self, n_sweeps: int = 1) -> None:
        """Run the kernel over all blocks and take codes and scales over."""
        n_groups = self.width // self.group
        values = self.at(self.scales) * LEVELS[self.codes] - self.at(self.minima)
        w, e, c = lines(self.weights), lines(self.weights - values), lines(self.codes)
        groups = np.ascontiguousarray(self.groups, np.int64)
        members = np.argsort(groups, kind="stable")
        scratch = np.zeros(descent.scratch_nbytes(self.width), np.uint8)
        for k in range(self.n // self.width):
            mine = slice(k * self.width, (k + 1) * self.width)
            grid = slice(k * n_groups, (k + 1) * n_groups)
            scales, minima = lines(self.scales[:, grid]), lines(self.minima[:, grid])
            units = np.full((len(w), 2, LANES), self.unit, np.float32)
            operand = gptq.operand(self.hessian[:, mine])
            own = np.ascontiguousarray(self.hessian[mine, mine])
            a = np.zeros(1, descent.ARGS)
            a["n_panels"], a["panel_nbytes"], a["n_all"] = len(w), LINE * self.n, self.n
            a["n_before"], a["n_columns"] = mine.start, self.width
            a["weights"], a["errors"], a["codes"] = (x.ctypes.data for x in (w, e, c))
            a["operand"], a["hessian"] = operand.ctypes.data, own.ctypes.data
            a["scales"], a["minima"] = scales.ctypes.data, minima.ctypes.data
            a["units"], a["n_groups"] = units.ctypes.data, n_groups
            a["groups"], a["members"] = groups.ctypes.data, members.ctypes.data
            a["levels"], a["n_levels"], a["is_uniform"] = LEVELS.ctypes.data, len(LEVELS), 1
            a["rounding"], a["has_minima"] = self.rounding, self.has_minima
            a["s_high"], a["m_high"], a["n_sweeps"] = 63, 63, n_sweeps
            a["scratch"] = scratch.ctypes.data + -scratch.ctypes.data % LINE
            descent.descend(a.ctypes.data)
            self.scales[:, grid], self.minima[:, grid] = rows(scales), rows(minima)
        self.codes = rows(c)
        # What the kernel says the errors are is what codes and scales give.
        values = self.at(self.scales) * LEVELS[self.codes] - self.at(self.minima)
        np.testing.assert_allclose(rows(e), self.weights - values, atol=1e-5)


def test_a_sweep_gives_each_column_its_best_code() -> None:
    case = Case()
    want = descent.reference(
        case.weights, case.codes, case.hessian, case.scales, case.minima, LEVELS, case.groups
    )
    assert (want != case.codes).mean() > 0.05, "the case is worth something"
    case.descend()
    same = (case.codes == want).all(axis=1)
    assert same.mean() > 0.9  # a target at a rounding's edge may go the other way


@pytest.mark.parametrize("has_minima", [False, True])
@pytest.mark.parametrize("rounding", [descent.FIXED, descent.HALF, descent.MULTIPLE])
@pytest.mark.parametrize("width", [32, 64])
def test_descent_never_goes_uphill(width: int, rounding: int, has_minima: bool) -> None:
    case = Case(width=width, rounding=rounding, has_minima=has_minima, seed=width)
    losses = [case.loss()]
    for _ in range(4):
        case.descend()
        losses.append(case.loss())
    for before, after in pairwise(losses):
        assert (after <= before * (1 + 1e-4)).all()
    assert losses[-1].sum() < 0.9 * losses[0].sum()


def test_scales_stay_what_the_format_can_store() -> None:
    for has_minima in (False, True):
        multiple = Case(rounding=descent.MULTIPLE, has_minima=has_minima)
        multiple.descend(3)
        for grid in (multiple.scales, multiple.minima):
            numbers = grid / multiple.unit
            np.testing.assert_array_equal(numbers, np.rint(numbers))
            assert numbers.min() >= 0
            assert numbers.max() <= 63
        half = Case(rounding=descent.HALF, has_minima=has_minima)
        half.descend(3)
        for grid in (half.scales, half.minima):
            np.testing.assert_array_equal(grid, grid.astype(np.float16).astype(np.float32))


def test_minima_that_follow_scales_keep_their_ratio() -> None:
    case = Case(rounding=descent.HALF)
    case.minima = case.scales * 2
    before = case.loss()
    case.descend(2)
    np.testing.assert_allclose(case.minima, case.scales * 2, rtol=1e-6)
    assert case.loss().sum() < before.sum()


def test_a_fitted_scale_is_the_best_one() -> None:
    case = Case(rounding=descent.HALF, n=32, width=32, group=32, n_rows=16)
    case.descend()
    codes = case.codes.copy()
    case.descend()
    settled = (case.codes == codes).all(axis=1)
    assert settled.sum() >= 4
    best, scales = case.loss(), case.scales
    for factor in (0.98, 1.02):
        case.scales = scales * np.float32(factor)
        assert (case.loss() >= best)[settled].all()


def test_losses_are_quadratic_forms() -> None:
    case = Case(n=96, width=32)
    total = np.zeros((2, LANES), np.float32)
    w, scratch = lines(case.weights), np.zeros(33 * LINE, np.uint8)
    for k in range(3):
        operand = gptq.operand(case.hessian[:, 32 * k : 32 * (k + 1)])
        a = np.zeros(1, descent.LOSS_ARGS)
        a["n_panels"], a["panel_nbytes"], a["n_all"] = 2, LINE * 96, 96
        a["n_before"], a["n_columns"], a["rows"] = 32 * k, 32, w.ctypes.data
        a["operand"], a["total"] = operand.ctypes.data, total.ctypes.data
        a["scratch"] = scratch.ctypes.data + -scratch.ctypes.data % LINE
        descent.add_loss(a.ctypes.data)
    x, h = np.float64(case.weights), np.float64(case.hessian)
    np.testing.assert_allclose(total.reshape(-1), np.einsum("ij,ij->i", x @ h, x), rtol=1e-5)
