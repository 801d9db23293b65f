"""Drafts drawn at random: what is chosen is distributed as if there were none."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from driving import finish_all, is_empty
from fakes import F32, FakeModel, FakeTokenizer, History
from scipy.stats import chisquare

from quantcli.engine import drafting, rng
from quantcli.engine.leviathan import Guess, draw, settle
from quantcli.engine.loop import Engine
from quantcli.engine.options import EngineOptions
from quantcli.engine.request import Request, SamplingParams
from quantcli.engine.sampling import candidates

LEVEL = 1e-3  # a true null hypothesis fails once in a thousand seeds; the seeds are fixed


def i64(*values: int) -> np.ndarray:
    return np.array(values, np.int64)


@pytest.mark.parametrize(
    ("ids", "p", "draft_ids", "q"),
    [
        ([0, 1, 2, 3], [4, 3, 2, 1], [0, 1, 2, 3], [1, 2, 3, 4]),
        ([0, 1, 2, 3], [4, 3, 2, 1], [0, 1, 2, 3], [4, 3, 2, 1]),
        ([1, 3, 5], [5, 1, 4], [0, 3, 4, 9], [1, 7, 1, 1]),  # what the model never says
        ([1, 3, 5], [5, 1, 4], [0, 2], [1, 1]),  # nothing in common
        ([2], [1], [1, 2], [9, 1]),
        ([0, 1, 2], [1, 1, 8], [0], [1]),  # a guess that is always the same
    ],
)
def test_what_is_chosen_has_the_models_own_odds(
    ids: list[int], p: list[int], draft_ids: list[int], q: list[int]
) -> None:
    n = 5000
    u = np.random.default_rng(1).random((n, 3))
    counts: Counter[int] = Counter()
    for a, b, c in u:
        token = draw(i64(*draft_ids), i64(*q), a)
        guess = Guess(token, i64(*draft_ids), i64(*q))
        counts[settle(guess, i64(*ids), i64(*p), b, c)] += 1
    assert set(counts) <= set(ids)
    expected = np.array(p) / sum(p) * n
    observed = [counts[i] for i in ids]
    assert len(ids) == 1 or chisquare(observed, expected).pvalue > LEVEL


def test_an_equal_draft_is_always_accepted() -> None:
    ids, weights = i64(0, 1, 2), i64(5, 2, 3)
    for token in range(3):
        assert settle(Guess(token, ids, weights), ids, weights, 0.999999, 0.5) == token


def test_draws_follow_the_weights() -> None:
    ids, weights = i64(4, 7, 9), i64(1, 0, 3)
    assert [draw(ids, weights, u) for u in (0.0, 0.2499, 0.25, 0.5, 0.9999999)] == [4, 4, 9, 9, 9]


def target(history: History) -> F32:
    return np.sin(np.arange(6) * 2.0 + sum(history[-2:])).astype(np.float32)


def small(history: History) -> F32:
    return np.cos(np.arange(6) * 1.1 + history[-1]).astype(np.float32)


@pytest.mark.parametrize("top_k", [0, 4])
def test_an_engines_answers_with_sampled_drafts_have_the_odds_of_plain_sampling(
    monkeypatch: pytest.MonkeyPatch, top_k: int
) -> None:
    monkeypatch.setattr(drafting, "draft_length", lambda rates, n_most, *_: n_most)
    n_answers = 700
    model = FakeModel(target, n_vocab=6, context=16, n_sequences=8)
    draft = FakeModel(small, n_vocab=6, context=16, n_sequences=8)
    tokenizer = FakeTokenizer([str(i) for i in range(6)])
    options = EngineOptions(draft_sampling=True, max_draft=2, prefix_caching=False)
    engine = Engine(model, tokenizer, options=options, draft=draft, sampler="reference")
    params = SamplingParams(temperature=1.0, top_k=top_k, top_p=1.0, min_p=0.0, max_tokens=4)
    answers: Counter[tuple[int, ...]] = Counter()
    numbers = []
    for seed in range(n_answers):
        request = Request((1, 2), SamplingParams(**{**fields(params), "seed": seed}))
        numbers.append(engine.submit(request))
    events = finish_all(engine)
    for number in numbers:
        tokens = [e.token for e in events[number]]
        answers[tuple(tokens[1:3])] += 1  # type: ignore[arg-type]
    assert 0.2 < engine.status().n_accepted / engine.status().n_drafted < 0.95
    odds = pair_odds(params)
    pairs = [pair for pair, chance in odds.items() if chance * n_answers >= 5]
    rest = 1 - sum(odds[pair] for pair in pairs)
    observed = [answers[pair] for pair in pairs]
    expected = [odds[pair] * n_answers for pair in pairs]
    if rest > 1e-9:
        observed.append(n_answers - sum(observed))
        expected.append(rest * n_answers)
    assert chisquare(observed, expected).pvalue > LEVEL
    assert is_empty(model)
    assert is_empty(draft)


def fields(params: SamplingParams) -> dict[str, object]:
    return {name: getattr(params, name) for name in params.__dataclass_fields__}


def pair_odds(params: SamplingParams) -> dict[tuple[int, int], float]:
    """Return the odds of the second and third token after (1, 2), summed over the first."""

    def odds(history: History) -> dict[int, float]:
        left = candidates(target(history), params)
        total = left.weights.sum()
        return {int(i): w / total for i, w in zip(left.ids, left.weights, strict=True)}

    result: dict[tuple[int, int], float] = {}
    for first, p_first in odds((1, 2)).items():
        for second, p_second in odds((1, 2, first)).items():
            for third, p_third in odds((1, 2, first, second)).items():
                pair = (second, third)
                result[pair] = result.get(pair, 0.0) + p_first * p_second * p_third
    return result


def test_streams_of_one_seed_have_nothing_in_common() -> None:
    numbers = np.array([[rng.uniform(7, i, stream) for i in range(4000)] for stream in range(4)])
    correlation = np.corrcoef(numbers) - np.eye(4)
    assert np.abs(correlation).max() < 4 / np.sqrt(4000)
    assert [rng.bits(7, i) for i in range(3)] == [rng.bits(7, i, 0) for i in range(3)]
