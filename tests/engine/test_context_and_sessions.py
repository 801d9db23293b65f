"""Context shifts, and chats that keep their cache between turns."""

from __future__ import annotations

import pytest
from driving import answer, engine_of, finish_all, greedy, is_empty
from fakes import FakeModel, History, script

from quantcli.engine.options import EngineOptions
from quantcli.engine.request import Request
from quantcli.errors import UsageError

# Context shift ------------------------------------------------------------------------------------


def test_context_shift_goes_on_with_the_start_and_the_newer_half() -> None:
    seen: list[History] = []

    def say(history: History) -> int:
        seen.append(history)
        return len(seen) % 50

    model = FakeModel(say, context=16)
    request = Request(tuple(range(50, 60)), greedy(max_tokens=9), context_shift=True, n_keep=2)
    engine = engine_of(model)
    number = engine.submit(request)
    events = finish_all(engine)[number]
    assert [e.token for e in events] == list(range(1, 10))
    assert events[-1].finish == "length"
    assert events[-1].stats is not None
    assert events[-1].stats.n_shifts == 1
    assert len(seen[6]) == 16
    # 17 tokens: 2 are kept, 7 of the other 15 are dropped.
    assert seen[7] == (50, 51, 59, 1, 2, 3, 4, 5, 6, 7)
    assert is_empty(model)


def test_context_shift_cuts_a_prompt_that_is_too_long() -> None:
    model = FakeModel(script(3, after=16), context=16)
    request = Request(tuple(range(30)), greedy(max_tokens=1), context_shift=True, n_keep=2)
    answer(engine_of(model), request)
    # 30 -> 2 + 14 = 16 tokens fit.
    assert model.batches[0].tokens == [0, 1, *range(16, 22)]
    assert sum(model.n_rows) == 16


def test_a_context_shift_that_keeps_everything_is_refused() -> None:
    engine = engine_of(FakeModel(context=16))
    for n_keep, length in ((15, 4), (-1, 15)):
        with pytest.raises(UsageError, match=f"cannot keep {15} tokens in a context of 16"):
            engine.submit(Request((1,) * length, context_shift=True, n_keep=n_keep))


@pytest.mark.parametrize("n_keep", [0, 5, 14, -1])
def test_context_shift_never_ends_by_itself(n_keep: int) -> None:
    model = FakeModel(lambda history: len(history) % 60, context=16)
    request = Request((1,) * 5, greedy(max_tokens=100), context_shift=True, n_keep=n_keep)
    _, tokens, finish = answer(engine_of(model), request)
    assert (len(tokens), finish) == (100, "length")
    assert is_empty(model)


# Sessions -----------------------------------------------------------------------------------------


def test_a_chat_computes_only_what_is_new_and_says_the_same() -> None:
    turns = [[5, 6, 7], [8, 9], [10]]
    results = []
    for session, is_cached in ((1, True), (None, True), (1, False)):
        model = FakeModel(context=48)
        engine = engine_of(model, options=EngineOptions(prefix_caching=is_cached))
        tokens: list[int] = []
        said, reused = [], []
        for turn in turns:
            tokens += turn
            number = engine.submit(Request(tuple(tokens), greedy(max_tokens=4), session=session))
            events = finish_all(engine)[number]
            tokens += [e.token for e in events if e.token is not None]
            said.append(tokens[-4:])
            assert events[-1].stats is not None
            reused.append(events[-1].stats.n_reused)
        assert is_empty(model)
        results.append((said, reused))
    assert results[0][0] == results[1][0] == results[2][0]
    assert results[0][1] == results[1][1] == [0, 6, 12]  # all but the last token chosen
    assert results[2][1] == [0, 0, 0]


def test_a_session_shares_its_turns_with_nobody() -> None:
    engine = engine_of(FakeModel(context=48))
    reused = []
    for session, salt in ((1, ""), (2, ""), (None, ""), (1, "salt"), (1, "")):
        request = Request((5, 6, 7), greedy(max_tokens=1), session=session, cache_salt=salt)
        stats = list(engine.generate(request))[-1].stats
        assert stats is not None
        reused.append(stats.n_reused)
    assert reused == [0, 0, 0, 0, 2]
