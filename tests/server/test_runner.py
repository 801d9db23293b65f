"""The runner alone: events find their inbox whatever comes first, and nothing is kept."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable

import pytest

from quantcli.engine.request import Event, FinishReason, Request
from quantcli.errors import Cancelled, UsageError
from quantcli.server.runner import Inbox, Runner


class FakeEngine:
    """Says what it is told to; `submit` can be held up, as by a grammar that is compiled."""

    def __init__(self) -> None:
        self.events: list[list[Event]] = []
        self.cancelled: list[int] = []
        self.number = 0
        self.before_submit: Callable[[int], None] = lambda number: None
        self.steps = 0

    @property
    def is_idle(self) -> bool:
        return not self.events

    def submit(self, request: Request) -> int:
        self.number += 1
        self.before_submit(self.number)
        return self.number

    def cancel(self, number: int) -> None:
        self.cancelled.append(number)

    def step(self) -> list[Event]:
        self.steps += 1
        return self.events.pop(0)


def is_kept(runner: Runner) -> bool:
    """Return whether a runner still has anything of a request."""
    kept = (runner._inboxes, runner._n_choices, runner._early, runner._outbox, runner._silent)
    return any(kept)


def drive(test: Callable[[Runner, FakeEngine], object]) -> None:
    """Run a coroutine function with a runner whose thread runs."""

    async def run() -> None:
        engine = FakeEngine()
        runner = Runner(engine)
        runner.attach(asyncio.get_running_loop())
        thread = threading.Thread(target=runner.run)
        thread.start()
        try:
            async with asyncio.timeout(10):
                await test(runner, engine)  # type: ignore[misc]
        finally:
            runner.stop()
            await asyncio.to_thread(thread.join)
        assert not is_kept(runner)

    asyncio.run(run())


def last(number: int, text: str = "", choice: int = 0) -> Event:
    return Event(number, text=text, finish=FinishReason.STOP, choice=choice)


def test_events_that_come_before_submit_returns_are_not_lost() -> None:
    async def test(runner: Runner, engine: FakeEngine) -> None:
        def early(number: int) -> None:
            engine.events.append([Event(number, 5, "a"), Event(99, 1, "nobody's")])
            engine.events.append([last(number, "b")])
            runner._wake.set()
            while engine.events:
                time.sleep(0.001)

        engine.before_submit = early
        inbox = Inbox()
        await asyncio.to_thread(runner.submit, Request((1,)), inbox, 7)
        found = await inbox.take()
        assert [(key, e.text) for key, e in found] == [(7, "a"), (7, "b")]

    drive(test)


def test_every_choice_has_to_end() -> None:
    async def test(runner: Runner, engine: FakeEngine) -> None:
        inbox = Inbox()
        runner.submit(Request((1,), n=2), inbox, 0)
        engine.events.append([last(1, choice=1)])
        runner._wake.set()
        assert len(await inbox.take()) == 1
        assert runner.n_open == 1
        engine.events.append([Event(1, 3, "x"), last(1)])
        runner._wake.set()
        while runner.n_open:
            await asyncio.sleep(0.001)
        assert [e.text for _, e in await inbox.take()] == ["x", ""]

    drive(test)


def test_what_comes_of_a_cancelled_request_is_dropped() -> None:
    async def test(runner: Runner, engine: FakeEngine) -> None:
        inbox = Inbox()
        number = runner.submit(Request((1,)), inbox, 0)
        runner.cancel(number)
        engine.events.append([Event(number, 1, "late"), last(number)])
        runner._wake.set()
        while engine.events:
            await asyncio.sleep(0.001)
        assert await inbox.take(0.02) == []
        assert engine.cancelled == [number]

    drive(test)


def test_a_refused_request_leaves_nothing() -> None:
    async def test(runner: Runner, engine: FakeEngine) -> None:
        def refuse(number: int) -> None:
            raise UsageError("no.")

        engine.before_submit = refuse
        with pytest.raises(UsageError):
            runner.submit(Request((1,)), Inbox(), 0)
        assert runner.n_open == 0

    drive(test)


def test_who_waits_when_it_stops_is_told_and_who_comes_later_is_refused() -> None:
    async def test(runner: Runner, engine: FakeEngine) -> None:
        inbox = Inbox()
        runner.submit(Request((1,)), inbox, 0)
        runner.stop()
        with pytest.raises(Cancelled):
            await inbox.take()
        with pytest.raises(Cancelled):
            runner.submit(Request((1,)), Inbox(), 0)
        assert engine.cancelled == [1]

    drive(test)


def test_many_events_cross_in_few_deliveries() -> None:
    async def test(runner: Runner, engine: FakeEngine) -> None:
        inboxes = [Inbox() for _ in range(16)]
        numbers = [runner.submit(Request((1,)), inbox, 0) for inbox in inboxes]
        engine.events += [[Event(n, 1, "x") for n in numbers] for _ in range(200)]
        engine.events.append([last(n) for n in numbers])
        runner._wake.set()
        takes = [0] * 16

        async def follow(i: int) -> str:
            text = ""
            while True:
                batch = await inboxes[i].take()
                takes[i] += 1
                text += "".join(e.text for _, e in batch)
                if batch[-1][1].finish is not None:
                    return text

        texts = await asyncio.gather(*map(follow, range(16)))
        assert set(texts) == {"x" * 200}
        assert max(takes) < 100

    drive(test)
