"""The steps of the chain on distributions of four or five tokens, with exact expected lists."""

from __future__ import annotations

import math

import numpy as np
import pytest

from quantcli.engine import sampling
from quantcli.engine.request import SamplingParams
from quantcli.engine.sampling import Candidates, Chooser, Sampler
from quantcli.errors import ModelError, UnknownName, UsageError
from quantcli.kernels.weights import weights_reference

OFF = {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0}


def logits_of(*probabilities: float) -> sampling.F32:
    with np.errstate(divide="ignore"):
        return np.log(np.array(probabilities)).astype(np.float32)


def kept(row: sampling.F32, **params: float) -> list[int]:
    left = sampling.candidates(row, SamplingParams(**{**OFF, **params}))  # type: ignore[arg-type]
    return [int(i) for i in left.ids]


def shares(c: Candidates) -> list[float]:
    weights = c.weights
    return [round(float(w), 4) for w in weights / weights.sum()]


def sampler_of(n_tokens: int = 4, *, seed: int = 0, banned: tuple[int, ...] = (), **params: object):
    chooser = Chooser(n_tokens, "reference")
    return Sampler(SamplingParams(**params), seed, chooser, banned, context=100)  # type: ignore[arg-type]


# The cases of the first block are those that llama.cpp's own test of its samplers uses.
@pytest.mark.parametrize(
    ("k", "tokens"), [(1, [3]), (2, [2, 3]), (3, [1, 2, 3]), (4, [0, 1, 2, 3]), (9, [0, 1, 2, 3])]
)
def test_top_k_keeps_the_k_most_likely(k: int, tokens: list[int]) -> None:
    assert kept(logits_of(0.1, 0.2, 0.3, 0.4), top_k=k) == tokens


@pytest.mark.parametrize(
    ("p", "tokens"),
    [
        (0.0, [3]),
        (0.39, [3]),
        (0.7, [2, 3]),
        (0.71, [1, 2, 3]),
        (0.8, [1, 2, 3]),
        (1.0, [0, 1, 2, 3]),
    ],
)
def test_top_p_keeps_the_most_likely_until_p_is_reached(p: float, tokens: list[int]) -> None:
    assert kept(logits_of(0.1, 0.2, 0.3, 0.4), top_p=p) == tokens


@pytest.mark.parametrize(
    ("p", "tokens"),
    [
        (0.0, [0, 1, 2, 3]),
        (0.24, [0, 1, 2, 3]),
        (0.26, [1, 2, 3]),
        (0.49, [1, 2, 3]),
        (0.51, [2, 3]),
        (0.74, [2, 3]),
        (0.76, [3]),
        (1.0, [3]),
    ],
)
def test_min_p_keeps_tokens_p_times_as_likely_as_the_first(p: float, tokens: list[int]) -> None:
    assert kept(logits_of(0.1, 0.2, 0.3, 0.4), min_p=p) == tokens


@pytest.mark.parametrize(
    ("probabilities", "p", "tokens"),
    [
        ((0.97, 0.01, 0.01, 0.01), 0.5, [0]),
        ((0.4, 0.2, 0.2, 0.2), 0.5, [1, 2, 3]),
        ((0.4, 0.2, 0.2, 0.2), 0.3, [1, 2]),  # of equal tokens the lower id goes first
        ((0.4, 0.2, 0.2, 0.2), 0.0, [1]),
    ],
)
def test_typical_p_keeps_tokens_of_typical_information(
    probabilities: tuple[float, ...], p: float, tokens: list[int]
) -> None:
    assert kept(logits_of(*probabilities), typical_p=p) == tokens


@pytest.mark.parametrize(
    ("t", "expected"),
    [
        (1.0, [0.1, 0.2, 0.3, 0.4]),
        (0.5, [0.0333, 0.1333, 0.3, 0.5333]),
        (2.0, [0.1627, 0.2301, 0.2818, 0.3254]),
        (1e6, [0.25, 0.25, 0.25, 0.25]),
        (1e-300, [0.0, 0.0, 0.0, 1.0]),
    ],
)
def test_temperature_sharpens_below_1_and_flattens_above(t: float, expected: list[float]) -> None:
    params = SamplingParams(**{**OFF, "temperature": t})  # type: ignore[arg-type]
    assert shares(sampling.candidates(logits_of(0.1, 0.2, 0.3, 0.4), params)) == expected


def test_temperature_0_keeps_the_most_likely_token_lower_id_first() -> None:
    assert kept(logits_of(0.2, 0.4, 0.4), temperature=0.0) == [1]


def test_equal_logits_are_cut_from_the_highest_id_down() -> None:
    row = np.zeros(6, np.float32)
    assert kept(row, top_k=2) == [0, 1]
    assert kept(row, top_p=0.5) == [0, 1, 2]


def test_minus_zero_ties_with_zero() -> None:
    assert kept(np.array([-0.0, 0.0], np.float32), top_k=1) == [0]
    assert kept(np.array([0.0, -0.0], np.float32), top_k=1) == [0]


def test_steps_go_in_the_order_of_the_chain() -> None:
    # top_k first: among the two left the first has 4/7, so top_p 0.5 keeps it alone. Alone, top_p
    # 0.5 would keep two.
    row = logits_of(0.1, 0.2, 0.3, 0.4)
    assert kept(row, top_p=0.5) == [2, 3]
    assert kept(row, top_p=0.5, top_k=2) == [3]
    # min_p compares before the temperature flattens.
    assert kept(row, min_p=0.51, temperature=100.0) == [2, 3]


def test_banned_tokens_are_never_drawn_whatever_the_temperature() -> None:
    row = np.array([-np.inf, 0.0, -np.inf, 0.0], np.float32)
    for u in (0.0, 0.5, 0.999999):
        params = SamplingParams(**{**OFF, "temperature": 1e6})  # type: ignore[arg-type]
        assert sampling.choose_reference(row, params, u) in (1, 3)


def test_draws_follow_the_probabilities_in_order_of_id() -> None:
    row = logits_of(0.1, 0.2, 0.3, 0.4)
    params = SamplingParams(**OFF)  # type: ignore[arg-type]
    marks = [0.0, 0.0999, 0.1001, 0.2999, 0.3001, 0.5999, 0.6001, 1 - 2**-53]
    drawn = [sampling.choose_reference(row, params, u) for u in marks]
    assert drawn == [0, 0, 1, 1, 2, 2, 3, 3]


def test_weights_are_exp_to_within_two_units() -> None:
    x = np.concatenate([-np.linspace(0, 70, 100_001), [-np.inf, -1e300]])
    exact = np.array([math.exp(v) * 2.0**42 for v in x])
    assert np.abs(weights_reference(x) - exact).max() <= 2.0
    assert list(weights_reference(np.array([0.0, -np.inf]))) == [2**42, 0]


# Penalties and biases ----------------------------------------------------------------------------


def choose_greedily(row: list[float], accepted: list[int], **params: object) -> int:
    sampler = sampler_of(len(row), temperature=0.0, **params)
    for token in accepted:
        sampler.accept(token)
    return sampler.choose(np.array(row, np.float32))


def adjusted(row: list[float], accepted: list[int], **params: object) -> list[float]:
    sampler = sampler_of(len(row), **params)
    for token in accepted:
        sampler.accept(token)
    return [round(float(x), 5) for x in sampler._adjusted(np.array(row, np.float32))]


def test_repeat_penalty_divides_positive_and_multiplies_negative_logits() -> None:
    got = adjusted([2.0, -2.0, 0.0, 2.0], [0, 1, 2, 0], repeat_penalty=2.0)
    assert got == [1.0, -4.0, 0.0, 2.0]


def test_presence_counts_once_and_frequency_every_time() -> None:
    got = adjusted([1.0, 1.0, 1.0], [0, 1, 1], presence_penalty=0.5, frequency_penalty=0.25)
    assert got == [0.25, 0.0, 1.0]


def test_only_the_last_n_tokens_are_penalized() -> None:
    accepted = [0, 1, 2, 2]
    assert adjusted([1.0] * 4, accepted, presence_penalty=1, repeat_last_n=3) == [1, 0, 0, 1]
    assert adjusted([1.0] * 4, accepted, presence_penalty=1, repeat_last_n=1) == [1, 1, 0, 1]
    assert adjusted([1.0] * 4, accepted, presence_penalty=1, repeat_last_n=0) == [1, 1, 1, 1]
    assert adjusted([1.0] * 4, accepted, presence_penalty=1, repeat_last_n=-1) == [0, 0, 0, 1]


def test_a_token_that_left_the_window_and_one_that_stays_are_counted_right() -> None:
    sampler = sampler_of(4, frequency_penalty=1.0, repeat_last_n=3)
    for token in (1, 1, 2, 1, 3):
        sampler.accept(token)
    assert list(sampler._adjusted(np.zeros(4, np.float32))) == [0, -1, -1, -1]


def test_logit_bias_comes_before_the_penalties() -> None:
    assert adjusted([1.0, 1.0], [0], logit_bias={0: 3.0}, repeat_penalty=2.0) == [2.0, 1.0]


def test_logit_bias_changes_the_choice_and_minus_inf_bans() -> None:
    assert choose_greedily([0.0, 1.0, 2.0], [], logit_bias={0: 5.0}) == 0
    assert choose_greedily([0.0, 1.0, 2.0], [], logit_bias={2: -math.inf}) == 1


def test_banned_tokens_stay_banned_under_a_bias() -> None:
    sampler = sampler_of(3, banned=(2,), temperature=0.0, logit_bias={2: 100.0})
    assert sampler.choose(np.array([0.0, 1.0, 2.0], np.float32)) == 1


def test_huge_logits_do_not_become_infinite() -> None:
    assert choose_greedily([3e38, -3e38], [0], repeat_penalty=0.01) == 0
    assert adjusted([-3e38, 0.0], [0], repeat_penalty=100.0)[0] == -math.inf


def test_the_models_row_is_not_changed() -> None:
    row = np.array([1.0, 2.0, 3.0, 4.0], np.float32)
    row.flags.writeable = False
    sampler = sampler_of(4, logit_bias={1: 1.0}, presence_penalty=1.0)
    sampler.accept(3)
    sampler.choose(row)
    assert list(row) == [1, 2, 3, 4]


# Seeds -------------------------------------------------------------------------------------------


def test_the_same_seed_gives_the_same_tokens_and_another_seed_others() -> None:
    row = np.zeros(1000, np.float32)

    def draw(seed: int) -> list[int]:
        sampler = sampler_of(1000, seed=seed, **OFF)
        return [sampler.choose(row) for _ in range(20)]

    assert draw(1) == draw(1)
    assert draw(1) != draw(2)


def test_requests_that_share_memory_do_not_share_randomness() -> None:
    chooser = Chooser(50, "reference")
    row = np.zeros(50, np.float32)
    params = SamplingParams(**OFF)  # type: ignore[arg-type]
    alone = Sampler(params, 7, chooser)
    expected = [alone.choose(row) for _ in range(10)]
    one, other = Sampler(params, 7, chooser), Sampler(params, 8, chooser)
    got = []
    for _ in range(10):
        other.choose(row)
        got.append(one.choose(row))
        other.choose(row)
    assert got == expected


# Errors ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("bad", [math.nan, -math.nan, math.inf])
@pytest.mark.parametrize("place", [0, 2, 3])
def test_a_logit_that_is_no_number_is_refused_with_its_place(bad: float, place: int) -> None:
    row = np.array([1.0, 2.0, 3.0, 4.0], np.float32)
    row[place] = bad
    with pytest.raises(ModelError, match=f"request 3: the logit of token {place} is"):
        sampler_of().choose(row, "request 3: ")


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_ban_does_not_hide_a_logit_that_is_no_number(bad: float) -> None:
    with pytest.raises(ModelError, match="the logit of token 1"):
        choose_greedily([0.0, bad], [1], logit_bias={1: -math.inf}, repeat_penalty=2.0)


def test_a_row_of_minus_inf_is_refused() -> None:
    with pytest.raises(ModelError, match="all 4 logits are -inf"):
        sampler_of().choose(np.full(4, -np.inf, np.float32))


def test_banning_every_token_is_the_requests_fault() -> None:
    with pytest.raises(UsageError, match="leave no token"):
        choose_greedily([0.0, 1.0], [], logit_bias={0: -math.inf, 1: -math.inf})


def test_a_bias_of_an_unknown_token_is_refused() -> None:
    with pytest.raises(UsageError, match="no token 4; the vocabulary has 4"):
        sampler_of(4, logit_bias={4: 1.0})


def test_an_unknown_backend_is_refused_by_name() -> None:
    with pytest.raises(UnknownName, match="Did you mean compiled"):
        Chooser(4, "compild")


# Log-probabilities -------------------------------------------------------------------------------


def test_logprobs_are_the_models_own() -> None:
    row = logits_of(0.1, 0.2, 0.3, 0.4) + np.float32(7.0)
    sampler = sampler_of(4, temperature=0.0, logit_bias={0: 100.0})
    token = sampler.choose(row)
    logprobs = sampler.logprobs(row, token, 2)
    assert token == 0
    assert logprobs.chosen == pytest.approx(math.log(0.1), abs=1e-6)
    assert [t for t, _ in logprobs.top] == [3, 2]
    assert [p for _, p in logprobs.top] == pytest.approx([math.log(0.4), math.log(0.3)], abs=1e-6)


def test_logprobs_without_alternatives_and_with_more_than_there_are() -> None:
    row = logits_of(0.25, 0.25, 0.5)
    sampler = sampler_of(3)
    assert sampler.logprobs(row, 0, 0).top == ()
    assert [t for t, _ in sampler.logprobs(row, 0, 10).top] == [2, 0, 1]
    assert sampler.logprobs(np.array([0.0, -np.inf, -np.inf], np.float32), 1, 1).chosen == -math.inf
