"""Sums over rows of logits: against NumPy in f64, on any number of threads, with odd values."""

from __future__ import annotations

import kernel_calls
import numpy as np
import numpy.typing as npt
import pytest
from kernel_calls import Guarded, Threads

from quantcli.formats import F32
from quantcli.kernels import log_softmax as kernel
from quantcli.kernels.jit import njit
from quantcli.kernels.simd import load_f32x16
from quantcli.kernels.simd.doubles import DEGREE, dexp, dsum, weighted, widen
from quantcli.runtime.executor import Executor

pytestmark = pytest.mark.jit

WIDTHS = (16, 17, 31, 32, 33, kernel.SPAN, kernel.SPAN + 1, 3 * kernel.SPAN + 15, 50_000)
UNIT = 2.0**-53
# Each term: the series ends, and its DEGREE steps round; then the sum's roundings along one lane,
# where a span's largest logit may rescale it.
TERM = 1e-14 + 3 * DEGREE * UNIT


def bound(width: int) -> float:
    """Return the largest relative error of a sum of positive terms over a row."""
    return TERM + (width / 16 + width / kernel.SPAN * (3 * DEGREE + 1) + 4) * UNIT


def run(
    rows: F32, base: F32 | None = None, *, executor: Executor | None = None, stride: int = 0
) -> np.ndarray:
    """Run a kernel over rows that lie `stride` floats apart, with nothing readable between."""
    n, width = rows.shape
    out = Guarded(n, kernel.SUMS if base is None else kernel.PAIR, byte=0)
    args = np.zeros(1, kernel.ARGS)
    args["n_rows"], args["width"], args["out"] = n, width, out.address
    laid_out = []
    for name, values in (("rows", rows), ("base", base)):
        if values is not None:
            memory = Guarded((n, max(stride, width)), np.float32)  # NaN between the rows
            memory.array[:, :width] = values
            laid_out.append(memory)
            args[name] = memory.address
            args["stride" if name == "rows" else "base_stride"] = 4 * max(stride, width)
    kernel_calls.call(kernel.log_sum_exp if base is None else kernel.compare, args, executor)
    out.check()
    for memory in laid_out:
        memory.check()
    return out.array.copy()


def random_rows(n: int, width: int, seed: int = 0, spread: float = 5.0) -> F32:
    random = np.random.default_rng(seed)
    return (random.standard_normal((n, width)) * spread).astype(np.float32)


@pytest.mark.parametrize("width", WIDTHS)
def test_sums_are_those_of_numpy(width: int) -> None:
    rows = random_rows(3, width)
    rows[1] = np.sort(rows[1])  # the largest so far changes in every span
    got, expected = run(rows, stride=width + 7), kernel.reference(rows)
    assert (got["top"] == expected["top"]).all()
    assert (got["argmax"] == expected["argmax"]).all()
    assert np.abs(got["total"] / expected["total"] - 1).max() <= 2 * bound(width)


@pytest.mark.parametrize("width", WIDTHS)
def test_a_comparison_is_that_of_numpy(width: int) -> None:
    base = random_rows(3, width)
    rows = base + random_rows(3, width, seed=1, spread=0.1)
    base[1] = np.sort(base[1])
    got, expected = run(rows, base), kernel.compare_reference(base, rows)
    assert (got["row"] == run(rows)).all()
    assert (got["base"] == run(base)).all()
    weights = np.exp(base - base.max(axis=1, keepdims=True).astype(np.float64))
    size = (weights * np.abs(base.astype(np.float64) - rows)).sum(axis=1)
    assert (np.abs(got["moment"] - expected["moment"]) <= 2 * bound(width) * size).all()


def test_equal_rows_have_no_moment_and_equal_sums() -> None:
    rows = random_rows(4, 3001)
    pairs = run(rows, rows)
    assert (pairs["moment"] == 0).all()
    assert (pairs["base"] == pairs["row"]).all()


def test_threads_and_company_change_no_bit(threads: Threads) -> None:
    rows, base = random_rows(37, 5000), random_rows(37, 5000, seed=1)
    alone = np.concatenate([run(rows[i : i + 1], base[i : i + 1]) for i in range(37)])
    for n_threads in (1, 2, 3):
        assert (run(rows, base, executor=threads[n_threads]) == alone).all()


def test_the_first_of_equal_logits_is_the_largest() -> None:
    rows = np.zeros((3, 2100), np.float32)
    rows[1, [1500, 1501, 2099]] = 2
    rows[2] = -np.inf
    rows[2, 2099] = -3
    sums = run(rows)
    assert sums["argmax"].tolist() == [0, 1500, 2099]
    assert sums["total"].tolist() == pytest.approx([2100, 3 + 2097 * np.exp(-2.0), 1], rel=1e-13)


@pytest.mark.parametrize("place", [0, 15, 16, 1100, 2063])
@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_what_is_not_finite_shows_in_the_total(place: int, value: float) -> None:
    rows = random_rows(2, 2064)
    rows[0, place] = value
    sums = run(rows)
    assert np.isnan(sums["total"][0])
    assert np.isfinite(sums["total"][1])
    pair = run(random_rows(2, 2064), rows)
    assert np.isnan(pair["base"]["total"][0])


def test_nan_shows_beside_nothing_but_minus_infinity() -> None:
    rows = np.full((2, 40), -np.inf, np.float32)
    rows[1, 20] = np.nan
    total = run(rows)["total"]
    assert total[0] == 0
    assert np.isnan(total[1])


def test_a_token_that_neither_model_can_choose_adds_nothing() -> None:
    rows, base = random_rows(1, 64), random_rows(1, 64, seed=1)
    without = run(rows[:, :63], base[:, :63])
    rows[0, 63] = base[0, 63] = -np.inf
    assert (run(rows, base)["row"]["top"] == without["row"]["top"]).all()
    assert run(rows, base)["moment"] == pytest.approx(without["moment"], rel=1e-12)


def test_a_token_that_only_the_base_can_choose_is_infinitely_far() -> None:
    rows, base = random_rows(1, 64), random_rows(1, 64, seed=1)
    rows[0, 5] = -np.inf
    assert run(rows, base)["moment"][0] == np.inf


@njit
def _exps(x, out, n):
    for i in range(n):
        e = dexp(widen(load_f32x16(x + 64 * i)))
        out[2 * i] = dsum(e)
        out[2 * i + 1] = dsum(weighted(e, widen(load_f32x16(x + 64 * i))))


def exps(x: F32) -> npt.NDArray[np.float64]:
    """Return exp(x) and exp(x) * x of each value, f64 (2, n), from vectors of it and 15 -inf."""
    spread = np.full((x.size, 16), -np.inf, np.float32)
    spread[np.arange(x.size), np.arange(x.size) % 16] = x
    out = np.zeros(2 * x.size)
    _exps(spread.ctypes.data, out, x.size)
    return out.reshape(-1, 2).T


def test_exp_is_precise_and_exact_where_it_must_be() -> None:
    x = np.concatenate([np.linspace(-699, 699, 9973), np.linspace(-1, 1, 1001)]).astype(np.float32)
    got, product = exps(x)
    exact = np.exp(x.astype(np.float64))
    # n * ln 2 and its rest are rounded when they are taken off x: a little of |x| stays behind
    assert (np.abs(got / exact - 1) <= TERM + 4 * UNIT).all()
    assert product == pytest.approx(got * x, rel=1e-15)
    special, weightless = exps(np.float32([0.0, -0.0, -np.inf, -701.0, -3e38]))
    assert special.tolist() == [1, 1, 0, 0, 0]
    assert weightless.tolist() == [0, 0, 0, 0, 0]
    assert np.isnan(exps(np.float32([np.nan]))[0][0])
