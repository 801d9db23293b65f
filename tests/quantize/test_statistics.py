"""Moments of inputs, against f64 products."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from quantcli.errors import ModelError
from quantcli.quantize.statistics import Moments
from quantcli.runtime.executor import Executor

pytestmark = pytest.mark.jit


@pytest.fixture(scope="module")
def executors() -> Iterator[dict[int, Executor]]:
    made = {n: Executor(n) for n in (1, 3)}
    yield made
    for executor in made.values():
        executor.close()


@pytest.mark.parametrize(("n_in", "counts"), [(32, [1, 70]), (100, [33, 32, 5]), (288, [513])])
def test_moments_are_the_means_of_products(
    n_in: int, counts: list[int], executors: dict[int, Executor]
) -> None:
    random = np.random.default_rng(n_in)
    rows = random.standard_normal((sum(counts), n_in)).astype(np.float32)
    rows *= np.exp(random.standard_normal(n_in)).astype(np.float32)
    moments = Moments(n_in, executors[3], with_hessian=True)
    for part in np.split(rows, np.cumsum(counts)[:-1]):
        moments.add(part)
    found = moments.statistics()
    want = np.float64(rows).T @ np.float64(rows) / len(rows)
    assert found.n_tokens == len(rows)
    assert found.hessian is not None
    # f32 sums: each addition of n rounds by at most 2**-24 of what has been added up.
    size = np.sqrt(np.outer(np.diag(want), np.diag(want)))
    assert (np.abs(found.hessian - want) <= 2**-24 * (len(rows) + 4) * size).all()
    np.testing.assert_allclose(found.importance, np.diag(want), rtol=1e-6)
    np.testing.assert_array_equal(found.hessian, found.hessian.T)


def test_moments_are_the_same_bytes_on_any_number_of_threads(
    executors: dict[int, Executor],
) -> None:
    rows = np.random.default_rng(1).standard_normal((77, 64)).astype(np.float32)
    results = []
    for executor in executors.values():
        moments = Moments(64, executor, with_hessian=True)
        moments.add(rows)
        moments.add(rows[:9])
        results.append(moments.statistics().hessian)
    assert results[0] is not None
    assert results[1] is not None
    assert results[0].tobytes() == results[1].tobytes()


def test_without_a_hessian_only_the_diagonal_is_kept(executors: dict[int, Executor]) -> None:
    moments = Moments(3, executors[1], with_hessian=False)
    moments.add(np.array([[1, 2, 3], [3, 0, -3]], np.float32))
    found = moments.statistics()
    assert found.hessian is None
    np.testing.assert_array_equal(found.importance, [5, 2, 9])


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf, 3e38])
def test_an_input_that_is_not_finite_is_named(bad: float, executors: dict[int, Executor]) -> None:
    rows = np.ones((4, 32), np.float32)
    rows[2, 7] = bad
    moments = Moments(32, executors[1], with_hessian=True)
    place = "position 2, value 7" if not np.isfinite(bad) else "3e.38"
    with pytest.raises(ModelError, match=rf"the input of blk.0.attn_q.*{place}"):
        moments.add(rows, "the input of blk.0.attn_q.weight")


def test_no_tokens_give_zeros(executors: dict[int, Executor]) -> None:
    found = Moments(16, executors[1], with_hessian=True).statistics()
    assert found.n_tokens == 0
    assert not found.importance.any()
    assert found.hessian is not None
    assert not found.hessian.any()
