"""Row-wise ops against their definitions."""

from __future__ import annotations

import numpy as np
import pytest
from kernel_calls import Guarded, Threads, call, guarded

from quantcli.formats import F32
from quantcli.kernels import elementwise
from quantcli.runtime.executor import Executor

pytestmark = pytest.mark.jit

UNIT = 2.0**-24
WIDTH, N_TRUE, STRIDE = 96, 70, 112
BINARY = (
    "add",
    "add_norm",
    "add_scaled",
    "gated_silu",
    "gated_gelu_tanh",
    "gated_swiglu_oai",
    "sigmoid_gate",
)
ALONE = ("gelu_tanh_alone", "relu_squared_alone")
NAMES = (*BINARY, *ALONE, "cut", "layer_norm", "rms_norm", "scale", "softcap", "select")
BOUNDED = ("softcap", "gated_swiglu_oai")  # of infinity they make something finite


def rows_of(seed: int, n: int, scale: float = 3.0) -> F32:
    """Return rows whose padding is zero."""
    x = np.zeros((n, WIDTH), np.float32)
    x[:, :N_TRUE] = np.random.default_rng(seed).standard_normal((n, N_TRUE)) * scale
    return x


NORM, BIAS = rows_of(7, 1)[0], rows_of(8, 1)[0]


def run(
    name: str,
    x: F32,
    y: F32 | None = None,
    *,
    value: float = 1.5,
    rows: list[int] | None = None,
    in_place: bool = False,
    executor: Executor | None = None,
) -> F32:
    """Run an op over rows that lie STRIDE values apart."""
    n_rows = len(x) if rows is None else len(rows)
    operands = []
    for operand in (x, y):
        memory = Guarded((len(x), STRIDE), np.float32)
        if operand is not None:
            memory.array[:, :WIDTH] = operand
        operands.append(memory)
    out = operands[0] if in_place else Guarded((n_rows, STRIDE), np.float32)
    chosen, count = np.array(rows or [0], np.int64), np.array([n_rows], np.int64)
    a = np.zeros(1, elementwise.ARGS)
    a["n_rows"], a["rows"] = count.ctypes.data, 0 if rows is None else chosen.ctypes.data
    a["x"], a["y"] = operands[0].address, 0 if y is None else operands[1].address
    a["out"], a["norm"], a["bias"] = out.address, NORM.ctypes.data, BIAS.ctypes.data
    a["x_stride"] = a["y_stride"] = a["out_stride"] = 4 * STRIDE
    a["width"], a["n_true"], a["value"] = WIDTH, N_TRUE, value
    call(getattr(elementwise, name), a, executor)
    for memory in (*operands, out):
        memory.check()
    assert np.isnan(out.array[:, WIDTH:]).all(), "written beyond the row"
    return out.array[:, :WIDTH]


def arguments(name: str, n: int = 9) -> dict:
    return {
        "x": rows_of(1, n),
        "y": rows_of(2, n) if name in BINARY else None,
        "rows": [3, 0, 3, n - 1] if name == "select" else None,
    }


@pytest.mark.parametrize("name", NAMES)
def test_op_is_its_definition(name: str) -> None:
    given = arguments(name)
    found = run(name, **given)
    short = {k: v[:, :N_TRUE] if isinstance(v, np.ndarray) else v for k, v in given.items()}
    want = elementwise.reference(name, value=1.5, norm=NORM[:N_TRUE], bias=BIAS[:N_TRUE], **short)
    # exp and tanh are right to 2 units of 1, a norm's sum to as many units as its tree is deep.
    magnitude = np.abs(want).max(axis=-1, keepdims=True) + 1
    assert (np.abs(found[:, :N_TRUE] - want) <= 16 * UNIT * magnitude).all()
    assert not found[:, N_TRUE:].any(), "padding stays zero"
    if name in ("add", "cut", "scale", "select"):
        np.testing.assert_array_equal(found[:, :N_TRUE], want)


@pytest.mark.parametrize("n_threads", [1, 2, 4])
@pytest.mark.parametrize("name", NAMES)
def test_threads_and_single_rows_give_the_same_bits(
    name: str, n_threads: int, threads: Threads
) -> None:
    given = arguments(name, 33)
    want = run(name, **given)
    assert run(name, **given, executor=threads[n_threads]).tobytes() == want.tobytes()
    if name != "select":
        y = given["y"]
        alone = [
            run(name, given["x"][i : i + 1], None if y is None else y[i : i + 1]) for i in range(33)
        ]
        assert np.concatenate(alone).tobytes() == want.tobytes()


@pytest.mark.parametrize("name", [n for n in NAMES if n != "select"])
def test_op_may_write_over_its_operand(name: str) -> None:
    given = arguments(name)
    assert run(name, **given, in_place=True).tobytes() == run(name, **given).tobytes()


@pytest.mark.parametrize("bad", [np.nan, np.inf])
@pytest.mark.parametrize("name", NAMES)
def test_bad_values_stay_in_their_row_and_do_not_vanish(name: str, bad: float) -> None:
    given = arguments(name) | {"rows": list(range(9)) if name == "select" else None}
    want = run(name, **given)
    given["x"] = given["x"].copy()
    given["x"][4, 10] = bad
    found = run(name, **given)
    if name not in BOUNDED or np.isnan(bad):
        assert not np.isfinite(found[4, 10])
    found[4] = want[4]
    assert found.tobytes() == want.tobytes()


def test_zero_rows_stay_zero() -> None:
    zero = np.zeros((3, WIDTH), np.float32)
    for name in NAMES:
        y = zero if name in BINARY else None
        found = run(name, zero, y, value=1e-6, rows=[0] if name == "select" else None)
        want = np.tile(BIAS, (3, 1)) if name == "layer_norm" else np.zeros_like(found)
        np.testing.assert_array_equal(found, want)


def test_softcap_stays_below_its_cap() -> None:
    x = rows_of(1, 4, scale=1e3)
    assert np.abs(run("softcap", x, value=30.0)).max() <= 30.0
    small = rows_of(1, 4, scale=1e-3)
    assert np.abs(run("softcap", small, value=30.0) - small).max() <= 30 * 4 * UNIT


def test_a_row_of_huge_values_is_normed_without_overflow_of_small_ones() -> None:
    x = rows_of(1, 2)
    assert np.isfinite(run("rms_norm", x * np.float32(1e17), value=1e-6)).all()
    tiny = run("rms_norm", x * np.float32(1e-30), value=1e-6)
    assert np.abs(tiny).max() < 1e-20
    assert guarded(tiny).array.any()


@pytest.mark.parametrize("n", [1, 15, 16, 70])
def test_what_is_cut_out_of_rows_leaves_the_rest_behind(n: int) -> None:
    x, out = rows_of(1, 3), Guarded((3, 96), np.float32, byte=0)
    count, a = np.array([3], np.int64), np.zeros(1, elementwise.ARGS)
    a["n_rows"], a["x"], a["x_stride"] = count.ctypes.data, x.ctypes.data + 4 * 7, 4 * WIDTH
    a["out"], a["out_stride"], a["width"], a["n_true"] = out.address, 4 * 96, 96, min(n, 63)
    call(elementwise.cut, a)
    out.check()
    n = min(n, 63)
    np.testing.assert_array_equal(out.array[:, :n], x[:, 7 : 7 + n])
    assert not out.array[:, n:].any()
