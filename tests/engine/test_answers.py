"""What one request answers: its text, its end, what is refused, what is counted."""

from __future__ import annotations

import math

import numpy as np
import pytest
from driving import GREEDY, answer, engine_of, finish_all, greedy, is_empty
from fakes import F32, FakeModel, FakeTokenizer, History, script

from quantcli.engine.request import Request, SamplingParams
from quantcli.errors import ResourceError, UsageError

# How requests end ---------------------------------------------------------------------------------


def test_tokens_become_text_until_an_end_of_generation_token() -> None:
    model = FakeModel(script(3, 4, 5, 63, after=2))
    engine = engine_of(model, FakeTokenizer(eog=(62, 63)))
    assert answer(engine, Request((1, 2), GREEDY)) == ("<3><4><5>", [3, 4, 5, 63], "stop")
    assert is_empty(model)


def test_max_tokens() -> None:
    model = FakeModel(script(3, 4, 5, 6, after=2))
    assert answer(engine_of(model), Request((1, 2), greedy(max_tokens=3))) == (
        "<3><4><5>",
        [3, 4, 5],
        "length",
    )
    assert is_empty(model)


def test_max_tokens_0_computes_the_prompt_alone() -> None:
    model = FakeModel(script(3, after=2))
    assert answer(engine_of(model), Request((1, 2), greedy(max_tokens=0))) == ("", [], "length")
    assert model.n_rows == [2]


@pytest.mark.parametrize("max_tokens", [None, -1])
def test_without_a_limit_the_context_ends_the_answer(max_tokens: int | None) -> None:
    model = FakeModel(lambda history: 1, context=16)
    text, tokens, finish = answer(
        engine_of(model), Request((1,) * 10, greedy(max_tokens=max_tokens))
    )
    # 16 slots hold 10 + 6 tokens; the 7th is chosen, but there is no place to compute it.
    assert (text, tokens, finish) == ("<1>" * 7, [1] * 7, "context")


def test_a_prompt_that_fills_the_context_still_gets_one_token() -> None:
    model = FakeModel(lambda history: 1, context=16)
    assert answer(engine_of(model), Request((1,) * 16, GREEDY)) == ("<1>", [1], "context")


def test_the_last_token_of_both_limits_is_length() -> None:
    model = FakeModel(lambda history: 1, context=16)
    assert answer(engine_of(model), Request((1,) * 15, greedy(max_tokens=2)))[2] == "length"


def test_ignore_eos_never_chooses_an_end() -> None:
    def say(history: History) -> F32:
        row = np.zeros(64, np.float32)
        row[63], row[5] = 9, 1
        return row

    engine = engine_of(FakeModel(say), FakeTokenizer(eog=(63,)))
    assert answer(engine, Request((1,), greedy(ignore_eos=True, max_tokens=2)))[1] == [5, 5]


# Text ---------------------------------------------------------------------------------------------


def texts_of(pieces: list[str | bytes], tokens: list[int], **params: object) -> list[str]:
    model = FakeModel(script(*tokens, after=1), n_vocab=len(pieces))
    engine = engine_of(model, FakeTokenizer(pieces, eog=(0,)))
    number = engine.submit(Request((1,), greedy(**params)))
    return [event.text for event in finish_all(engine)[number]]


def test_a_stop_string_across_tokens_does_not_leak() -> None:
    pieces: list[str | bytes] = ["", "a", "E", "N", "D", "b"]
    assert texts_of(pieces, [1, 2, 3, 4, 5], stop=("END",)) == ["a", "", "", ""]


def test_text_held_back_comes_out_in_the_end() -> None:
    pieces: list[str | bytes] = ["", "a", "E", "N"]
    assert texts_of(pieces, [1, 2, 3, 0], stop=("END",)) == ["a", "", "", "EN"]
    assert texts_of(pieces, [1, 2, 3], stop=("END",), max_tokens=3) == ["a", "", "EN"]
    assert texts_of(pieces, [2] * 60, stop=("END",), max_tokens=3) == ["", "E", "EE"]


def test_half_a_character_is_held_back_and_may_belong_to_a_stop_string() -> None:
    pieces: list[str | bytes] = ["", "a", b"\xc3", b"\xa9", "b"]
    assert texts_of(pieces, [1, 2, 3, 4, 0]) == ["a", "", "é", "b", ""]
    assert texts_of(pieces, [1, 2, 3, 4, 0], stop=("éb",)) == ["a", "", "", ""]
    assert texts_of(pieces, [1, 2, 0]) == ["a", "", "\ufffd"]
    assert texts_of(pieces, [1, 2, 0], stop=("\ufffd",)) == ["a", "", ""]


def test_a_cancelled_answer_gives_out_what_was_held_back() -> None:
    pieces: list[str | bytes] = ["", "a", "E"]
    engine = engine_of(FakeModel(lambda history: 2, n_vocab=3), FakeTokenizer(pieces))
    number = engine.submit(Request((1,), greedy(stop=("EX",))))
    assert engine.step()[0].text == ""
    engine.cancel(number)
    (event,) = engine.step()
    assert (event.text, event.finish) == ("E", "cancelled")


# Prompts ------------------------------------------------------------------------------------------


def test_an_empty_prompt_starts_from_bos() -> None:
    model = FakeModel(script(3, after=1))
    engine = engine_of(model, FakeTokenizer(bos=7))
    answer(engine, Request((), greedy(max_tokens=1)))
    assert model.batches[0].tokens == [7]


def test_an_empty_prompt_without_bos_is_refused() -> None:
    with pytest.raises(UsageError, match="prompt is empty, and the model has no BOS"):
        engine_of(FakeModel()).submit(Request(()))


@pytest.mark.parametrize("token", [-1, 64, 2**40])
def test_a_token_outside_the_vocabulary_is_refused(token: int) -> None:
    with pytest.raises(UsageError, match=f"no token {token}; the vocabulary has 64"):
        engine_of(FakeModel(n_vocab=80)).submit(Request((1, token)))


def test_a_prompt_longer_than_the_context_is_refused_with_both_counts() -> None:
    with pytest.raises(UsageError, match="prompt has 49 tokens, and the context 48"):
        engine_of(FakeModel()).submit(Request((1,) * 49))


def test_a_prompt_longer_than_the_whole_cache_is_refused() -> None:
    model = FakeModel(context=200, n_slots=128)
    with pytest.raises(ResourceError, match="prompt has 150 tokens, and the KV cache 128 slots"):
        engine_of(model).submit(Request((1,) * 150))


def test_a_cache_smaller_than_the_context_ends_the_answer_as_the_context_does() -> None:
    model = FakeModel(lambda history: 1, context=200, n_slots=64)
    assert answer(engine_of(model), Request((1,) * 60, GREEDY))[1:] == ([1] * 5, "context")


def test_a_bias_of_an_unknown_token_is_refused_at_once() -> None:
    model = FakeModel()
    engine = engine_of(model)
    with pytest.raises(UsageError, match="no token 64"):
        engine.submit(Request((1,), SamplingParams(logit_bias={64: 1.0})))
    assert engine.is_idle


def test_a_padded_vocabulary_is_never_chosen_from() -> None:
    def say(history: History) -> F32:
        row = np.zeros(80, np.float32)
        row[70], row[5] = math.nan, 1.0
        return row

    engine = engine_of(FakeModel(say, n_vocab=80))
    assert answer(engine, Request((1,), greedy(max_tokens=1)))[1] == [5]


def test_prompts_are_cut_and_requests_decode_together() -> None:
    model = FakeModel(lambda history: 1, max_rows=8)
    engine = engine_of(model)
    for length in (20, 2):
        engine.submit(Request((1,) * length, greedy(max_tokens=3)))
    finish_all(engine)
    assert model.n_rows == [8, 8, 6, 2, 2]
    assert [len(batch.outputs) for batch in model.batches] == [0, 0, 2, 2, 2]


# Stats, log-probabilities, seeds ------------------------------------------------------------------


def test_stats_count_tokens_and_time() -> None:
    engine = engine_of(FakeModel(script(3, 4, 63, after=10), max_rows=4), FakeTokenizer(eog=(63,)))
    number = engine.submit(Request((1,) * 10, greedy(seed=5)))
    stats = finish_all(engine)[number][-1].stats
    assert stats is not None
    assert (stats.n_prompt, stats.n_reused, stats.n_generated, stats.seed) == (10, 0, 3, 5)
    assert stats.first_token_s is not None
    assert stats.first_token_s >= stats.prompt_s > 0
    assert stats.decode_s > 0


@pytest.mark.parametrize("seed", [None, -1])
def test_a_seed_is_drawn_and_told(seed: int | None) -> None:
    seeds = set()
    for _ in range(3):
        engine = engine_of(FakeModel())
        number = engine.submit(Request((1,), SamplingParams(seed=seed, max_tokens=1)))
        stats = finish_all(engine)[number][-1].stats
        assert stats is not None
        assert 0 <= stats.seed < 2**32
        seeds.add(stats.seed)
    assert len(seeds) > 1


def test_logprobs_come_with_each_token() -> None:
    engine = engine_of(FakeModel(script(3, 4, after=1)))
    number = engine.submit(Request((1,), greedy(max_tokens=2, n_logprobs=2)))
    events = finish_all(engine)[number]
    one, zero = (x - math.log(math.e + 63) for x in (1, 0))
    for event, token in zip(events, (3, 4), strict=True):
        assert event.logprobs is not None
        assert event.logprobs.chosen == pytest.approx(one)
        assert [t for t, _ in event.logprobs.top] == [token, 0]
        assert [p for _, p in event.logprobs.top] == pytest.approx([one, zero])
