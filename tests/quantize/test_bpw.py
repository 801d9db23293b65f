"""The best mix at a size: the budget is never exceeded, and nothing better was overlooked."""

from __future__ import annotations

from itertools import pairwise, product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import Bounds, LinearConstraint, milp

from quantcli.quantize import bpw
from quantcli.quantize.bpw import Option, allocate

options = st.lists(
    st.tuples(st.integers(1, 40), st.floats(0.0, 10.0, allow_nan=False)), min_size=1, max_size=5
).map(lambda some: [Option(str(i), n, loss) for i, (n, loss) in enumerate(some)])
problems = st.lists(options, min_size=1, max_size=5).map(
    lambda some: {f"t{i}": o for i, o in enumerate(some)}
)


def least(problem: dict[str, list[Option]]) -> int:
    return sum(min(o.nbytes for o in some) for some in problem.values())


@settings(max_examples=200, deadline=None)
@given(problem=problems, extra=st.integers(0, 120))
def test_small_problems_are_solved_exactly_and_the_budget_is_kept(
    problem: dict[str, list[Option]], extra: int
) -> None:
    budget = least(problem) + extra
    found = allocate(problem, budget)
    assert found.nbytes <= budget
    picked = {n: next(o for o in problem[n] if o.format == f) for n, f in found.formats.items()}
    assert found.nbytes == sum(o.nbytes for o in picked.values())
    assert found.loss == pytest.approx(sum(o.loss for o in picked.values()))
    best = min(
        sum(o.loss for o in some)
        for some in product(*problem.values())
        if sum(o.nbytes for o in some) <= budget
    )
    assert found.loss == pytest.approx(best)


def realistic(n: int, seed: int) -> dict[str, list[Option]]:
    """Return matrices of a few sizes whose loss falls fourfold with each bit."""
    random = np.random.default_rng(seed)
    bits = (2.625, 3.4375, 4.25, 4.5, 5.5, 6.5625, 8.5)
    problem = {}
    for i in range(n):
        n_weights = int(random.choice([65536, 196608, 589824]))
        weight = float(np.exp(random.normal()))
        problem[f"t{i}"] = [
            Option(
                f"{b}", int(n_weights * b / 8), weight * 4.0**-b * float(random.uniform(0.8, 1.2))
            )
            for b in bits
        ]
    return problem


@pytest.mark.parametrize("cells", [60_000_000, 200_000], ids=["exact", "rounded"])
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("bits", [3.0, 4.5, 6.1])
def test_the_mix_is_an_exact_solvers_or_within_a_hundredth(
    seed: int, bits: float, cells: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bpw, "_MAX_CELLS", cells)
    problem = realistic(24, seed)
    budget = int(sum(some[0].nbytes for some in problem.values()) * bits / 2.625)
    found = allocate(problem, budget)
    assert found.nbytes <= budget
    flat = [o for some in problem.values() for o in some]
    one = np.zeros((len(problem), len(flat)))
    at = 0
    for i, some in enumerate(problem.values()):
        one[i, at : at + len(some)] = 1
        at += len(some)
    scale = 1 / max(o.loss for o in flat)
    exact = milp(
        np.array([o.loss for o in flat]) * scale,
        constraints=[
            LinearConstraint(one, 1, 1),
            LinearConstraint(np.array([[o.nbytes for o in flat]]) / budget, 0, 1),
        ],
        integrality=np.ones(len(flat)),
        bounds=Bounds(0, 1),
        options={"mip_rel_gap": 1e-6, "time_limit": 20},
    )
    worse = 1.0001 if cells > 1_000_000 else 1.01
    assert found.loss * scale <= exact.fun * worse + 1e-12


def test_more_room_never_loses_more() -> None:
    problem = realistic(30, 7)
    smallest = sum(some[0].nbytes for some in problem.values())
    losses = [allocate(problem, int(smallest * f)).loss for f in np.linspace(1, 4, 20)]
    assert all(b <= a * 1.0001 for a, b in pairwise(losses))


def test_a_budget_below_the_smallest_options_is_refused() -> None:
    problem = realistic(3, 1)
    with pytest.raises(ValueError, match=r"\d+"):
        allocate(problem, 1000)
