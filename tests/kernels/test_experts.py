"""Experts: which are chosen, how entries are sorted, and what is made of what they say."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
from kernel_calls import Guarded, Threads, call, guarded

from quantcli.formats import F32
from quantcli.kernels import experts
from quantcli.plan import Routing
from quantcli.runtime import reference_experts
from quantcli.runtime.executor import Executor

pytestmark = pytest.mark.jit

UNIT = 2.0**-24
SCORES = {
    "softmax": experts.SOFTMAX,
    "sigmoid": experts.SIGMOID,
    "softmax_of_chosen": experts.SOFTMAX_OF_CHOSEN,
}


def values(seed: int, *shape: int) -> F32:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


@dataclass
class Routed:
    """What a route op wrote down."""

    ids: np.ndarray
    weights: F32
    runs: np.ndarray
    rows: np.ndarray
    places: np.ndarray


def route(
    logits: F32,
    n_used: int,
    score: int = experts.SOFTMAX,
    *,
    bias: F32 | None = None,
    normalize: bool = True,
    scale: float = 1.0,
    executor: Executor | None = None,
) -> Routed:
    """Run the kernel over rows of logits, behind which lies what must not count."""
    n_rows, n_experts = logits.shape
    padded = -(-n_experts // 16) * 16
    rows = Guarded((n_rows, padded), np.float32)
    rows.array[:], rows.array[:, :n_experts] = 1e30, logits
    shift = np.full(padded, 1e30, np.float32)
    shift[:n_experts] = 0 if bias is None else bias
    n_threads = executor.n_threads if executor else 1
    scratch = Guarded((n_threads, 2 * padded), np.float32)
    ids, places = (Guarded((n_rows, n_used), np.int64) for _ in range(2))
    weights, entries = Guarded((n_rows, n_used), np.float32), Guarded(n_rows * n_used, np.int64)
    runs, following = Guarded((n_experts, 3), np.int64), Guarded(n_experts, np.int64)
    words = np.array([n_rows, 0, 0, 0], np.int64)
    a = np.zeros(1, experts.ROUTE_ARGS)
    a["n_rows"], a["n_runs"], a["n_entries"], a["done"] = words.ctypes.data + 8 * np.arange(4)
    a["logits"], a["logits_stride"] = rows.address, 4 * padded
    a["n_experts"], a["n_used"], a["score"] = n_experts, n_used, score
    a["bias"] = 0 if bias is None else shift.ctypes.data
    a["normalize"], a["scale"] = normalize, scale
    a["scratch"], a["scratch_stride"] = scratch.address, 8 * padded
    a["ids"], a["weights"], a["places"] = ids.address, weights.address, places.address
    a["runs"], a["next"], a["rows"] = runs.address, following.address, entries.address
    call(experts.route, a, executor)
    for memory in (rows, scratch, ids, places, weights, entries, runs, following):
        memory.check()
    assert words[2] == n_rows * n_used
    assert words[3] == 0, "a later step would count wrongly"
    found = runs.array[: words[1]]
    return Routed(ids.array, weights.array, found, entries.array, places.array)


@pytest.mark.parametrize("score", SCORES)
@pytest.mark.parametrize("normalize", [False, True])
@pytest.mark.parametrize("has_bias", [False, True])
@pytest.mark.parametrize(("n_experts", "n_used"), [(1, 1), (4, 2), (8, 8), (60, 4), (128, 8)])
def test_rows_choose_as_both_twins_do(
    score: str, normalize: bool, has_bias: bool, n_experts: int, n_used: int
) -> None:
    logits = values(1, 33, n_experts) * np.float32(3)
    bias = values(2, n_experts) * np.float32(0.2) if has_bias else None
    options = {"normalize": normalize, "scale": 2.5}
    found = route(logits, n_used, SCORES[score], bias=bias, **options)
    ids, weights = experts.reference(
        logits, n_used, SCORES[score], bias=0.0 if bias is None else bias, **options
    )
    np.testing.assert_array_equal(found.ids, ids)
    np.testing.assert_allclose(found.weights, weights, rtol=32 * UNIT)
    name = "bias" if has_bias else None
    routing = Routing(n_experts, n_used, score, name, normalize, 2.5)
    other = reference_experts.choose(logits, routing, bias)
    np.testing.assert_array_equal(found.ids, other[:, :n_used])
    np.testing.assert_allclose(found.weights, other[:, n_used:], rtol=32 * UNIT)


def test_entries_are_sorted_by_expert_and_then_by_row() -> None:
    found = route(values(1, 50, 12), 3)
    assert sorted(found.runs[:, 0]) == found.runs[:, 0].tolist() == sorted(set(found.ids.flat))
    np.testing.assert_array_equal(np.cumsum(found.runs[:, 2]) - found.runs[:, 2], found.runs[:, 1])
    assert found.runs[:, 2].sum() == 150
    for expert, first, count in found.runs:
        mine = found.rows[first : first + count]
        assert sorted(mine) == mine.tolist()
        for entry, row in enumerate(mine, first):
            assert found.places[row][found.ids[row] == expert] == [entry]


@pytest.mark.parametrize("n_threads", [1, 2, 3])
def test_threads_and_single_rows_give_the_same(n_threads: int, threads: Threads) -> None:
    logits = values(1, 60, 40)
    want, found = route(logits, 6), route(logits, 6, executor=threads[n_threads])
    for name in ("ids", "weights", "runs", "rows", "places"):
        assert getattr(found, name).tobytes() == getattr(want, name).tobytes()
    for row in range(60):
        alone = route(logits[row : row + 1], 6)
        assert alone.weights.tobytes() == want.weights[row].tobytes()
        assert alone.ids.tobytes() == want.ids[row].tobytes()
        np.testing.assert_array_equal(alone.runs[:, 0], np.sort(want.ids[row]))


def test_of_equals_the_lower_expert_is_chosen() -> None:
    assert route(np.zeros((2, 9), np.float32), 4).ids.tolist() == [[0, 1, 2, 3]] * 2
    assert route(np.array([[1, 3, 2, 3]], np.float32), 3).ids.tolist() == [[1, 3, 2]]


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("score", SCORES.values())
def test_whatever_logits_are_experts_are_some_that_exist(score: int, bad: float) -> None:
    logits = values(1, 6, 20)
    logits[1, 4], logits[3], logits[5, ::2] = bad, bad, bad
    found = route(logits, 5, score)
    assert ((found.ids >= 0) & (found.ids < 20)).all()
    assert all(len(set(row)) == 5 for row in found.ids.tolist())
    want = route(logits[::2][:2], 5, score)
    np.testing.assert_array_equal(found.ids[[0, 2]], want.ids)


def test_scores_that_vanish_do_not_divide_by_zero() -> None:
    found = route(np.full((1, 8), -200, np.float32), 2, experts.SIGMOID)
    assert np.isfinite(found.weights).all()


@pytest.mark.parametrize("n_threads", [1, 2])
@pytest.mark.parametrize("has_base", [False, True])
def test_entries_are_added_up(has_base: bool, n_threads: int, threads: Threads) -> None:
    routed = route(values(1, 21, 10), 4)
    x = guarded(values(2, 84, 48))
    out, count = guarded(values(3, 21, 48)), np.array([21], np.int64)
    base = out.array.copy() if has_base else np.zeros((21, 48), np.float32)
    a = np.zeros(1, experts.MIX_ARGS)
    a["n_rows"], a["x"], a["x_stride"] = count.ctypes.data, x.address, 4 * 48
    a["n_used"], a["width"] = 4, 48
    a["places"], a["weights"] = routed.places.ctypes.data, routed.weights.ctypes.data
    a["out"], a["out_stride"] = out.address, 4 * 48
    a["base"], a["base_stride"] = out.address if has_base else 0, 4 * 48
    call(experts.mix, a, threads[n_threads])
    out.check()
    entries = x.array[routed.places]
    want = experts.reference_mix(entries, routed.weights, base)
    magnitude = experts.reference_mix(np.abs(entries), routed.weights, np.abs(base))
    assert (np.abs(out.array - want) <= 6 * UNIT * magnitude).all()
