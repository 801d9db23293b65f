"""Every step of the sampling chain, over random rows."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from quantcli.engine.request import SamplingParams
from quantcli.engine.sampling import CHAIN, Candidates, Step, candidates

# Parameter: a value that changes nothing, and values that do.
ON = {
    "top_k": (0, st.integers(1, 50)),
    "typical_p": (1.0, st.floats(0.0, 0.99)),
    "top_p": (1.0, st.floats(0.0, 0.99)),
    "min_p": (0.0, st.floats(0.01, 1.0)),
    "temperature": (1.0, st.floats(0.0, 5.0).filter(lambda t: t != 1)),
}

LOGIT = st.one_of(
    st.floats(-30, 30, width=32), st.sampled_from([0.0, -0.0, 1.0, -3e38, 3e38, -np.inf])
)
ROWS = arrays.arrays(np.float32, st.integers(1, 40), elements=LOGIT).filter(
    lambda row: row.max() > -np.inf
)
STEPS = pytest.mark.parametrize("step", CHAIN, ids=lambda step: step.apply.__name__)


def start(row: np.ndarray) -> Candidates:
    return Candidates(np.arange(row.size), row.astype(np.float64))


def neutral() -> SamplingParams:
    return SamplingParams(**{name: off for name, (off, _) in ON.items()})  # type: ignore[arg-type]


def test_every_step_has_a_row_here() -> None:
    assert [step.apply.__name__ for step in CHAIN] == list(ON)


@STEPS
def test_the_off_value_is_off_and_the_others_are_on(step: Step) -> None:
    assert step.is_off(neutral())
    name = step.apply.__name__
    on = replace(neutral(), **{name: 3 if name == "top_k" else 0.5})
    assert not step.is_off(on)
    assert all(other.is_off(on) for other in CHAIN if other is not step)


def test_with_everything_off_the_chain_keeps_all() -> None:
    row = np.array([3.0, -np.inf, 1.0], np.float32)
    left = candidates(row, neutral())
    assert list(left.ids) == [0, 1, 2]
    assert list(left.logits) == [3.0, -np.inf, 1.0]


@STEPS
@given(data=st.data(), row=ROWS)
@settings(max_examples=80, deadline=None)
def test_at_least_one_token_stays_and_it_can_be_drawn(
    step: Step, data: st.DataObject, row: np.ndarray
) -> None:
    name = step.apply.__name__
    params = replace(neutral(), **{name: data.draw(ON[name][1])})
    left = step.apply(start(row), params)
    assert left.ids.size >= 1
    assert list(left.ids) == sorted(set(left.ids.tolist()))
    if left.logits.max() > -np.inf:
        assert left.weights.sum() > 0
        assert left.weights.max() == 2**42


@STEPS
@given(data=st.data(), row=ROWS)
@settings(max_examples=80, deadline=None)
def test_most_likely_token_survives_all_but_typical(
    step: Step, data: st.DataObject, row: np.ndarray
) -> None:
    name = step.apply.__name__
    params = replace(neutral(), **{name: data.draw(ON[name][1])})
    if name != "typical_p":
        assert int(row.argmax()) in step.apply(start(row), params).ids


@pytest.mark.parametrize("name", ["top_k", "top_p", "min_p"])
@given(data=st.data(), row=ROWS)
@settings(max_examples=80, deadline=None)
def test_what_is_kept_outranks_what_is_not(name: str, data: st.DataObject, row: np.ndarray) -> None:
    step = next(step for step in CHAIN if step.apply.__name__ == name)
    left = step.apply(start(row), replace(neutral(), **{name: data.draw(ON[name][1])}))
    kept = {int(i) for i in left.ids}
    worst = min((float(row[i]), -i) for i in kept)
    best = max(((float(row[i]), -i) for i in range(row.size) if i not in kept), default=None)
    assert best is None or best < worst
