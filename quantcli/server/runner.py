"""The engine in a thread of its own: takes requests from the event loop and brings events back.

Only this thread computes. Events cross to the loop's thread in batches, no more often than readers
can make use of, since every crossing takes the GIL from the engine.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Protocol

from quantcli.engine.options import EngineStatus
from quantcli.engine.request import Event, Request
from quantcli.errors import Cancelled

# A loop's wake-up and a chunk to each reader take 0.1 ms; 400 chunks a second in all are 4% of one
# thread, and each of 16 readers still gets 25 a second.
_DELIVERY_S = 0.0025
_IDLE_S = 1.0  # between looks at whether to stop


class Engine(Protocol):
    """What the runner needs of `quantcli.engine.loop.Engine`."""

    @property
    def is_idle(self) -> bool:
        """Whether no request is open."""
        ...

    def submit(self, request: Request) -> int:
        """Put a request in the queue; any thread."""
        ...

    def cancel(self, number: int) -> None:
        """End a request; any thread."""
        ...

    def step(self) -> list[Event]:
        """Compute once; the engine's thread."""
        ...


class Inbox:
    """Where the events of some requests arrive, in the loop's thread."""

    def __init__(self) -> None:
        """Start empty."""
        self._events: deque[tuple[int, Event]] = deque()
        self._error: BaseException | None = None
        self._arrived = asyncio.Event()

    def put(self, key: int, event: Event) -> None:
        """Add an event of the request that was submitted with this key."""
        self._events.append((key, event))
        self._arrived.set()

    def fail(self, error: BaseException) -> None:
        """End what is waited for."""
        self._error = error
        self._arrived.set()

    async def take(self, timeout_s: float | None = None) -> list[tuple[int, Event]]:
        """Wait for events and return all there are; [] if none came in time.

        Raises what the engine failed with.
        """
        try:
            async with asyncio.timeout(timeout_s):
                await self._arrived.wait()
        except TimeoutError:
            return []
        self._arrived.clear()
        if self._error is not None:
            raise self._error
        events = list(self._events)
        self._events.clear()
        return events


class Runner:
    """Runs an engine until it is stopped.

    `run` is for the engine's thread, `submit` and `cancel` for any; the rest is for the loop's.
    """

    def __init__(self, engine: Engine) -> None:
        """Wrap an engine that nothing else steps."""
        self._engine = engine
        self._loop: asyncio.AbstractEventLoop | None = None
        self._lock = threading.Lock()  # of the next seven
        self._inboxes: dict[int, tuple[Inbox, int]] = {}  # by request
        self._n_choices: dict[int, int] = {}  # of each request, how many are still open
        self._silent: set[int] = set()  # requests without an event so far
        self._n_submitting = 0
        self._early: dict[int, list[Event]] = {}  # events that came while one was submitted
        self._outbox: list[tuple[Inbox, int, Event]] = []
        self._is_delivery_due = False
        self._delivered = 0.0
        self._wake = threading.Event()
        self._is_stopped = False
        self._steps_since = time.monotonic()
        self.is_running = False
        self.on_event: Callable[[Event], None] | None = None
        self.on_step: Callable[[float, int], None] | None = None
        self.on_failure: Callable[[BaseException], None] | None = None

    def attach(self, loop: asyncio.AbstractEventLoop) -> None:
        """Deliver events in this loop's thread."""
        self._loop = loop

    def status(self) -> EngineStatus | None:
        """Return what the engine is doing, None from one that does not tell."""
        tell = getattr(self._engine, "status", None)
        return tell() if tell is not None else None

    @property
    def n_open(self) -> int:
        """Requests that have not ended."""
        return len(self._inboxes)

    @property
    def stalled_s(self) -> float:
        """Seconds since the engine's thread last gave a sign of life."""
        return time.monotonic() - self._steps_since

    def submit(self, request: Request, inbox: Inbox, key: int) -> int:
        """Hand a request to the engine and return its number; its events go to an inbox.

        Raises what the engine says of the request.
        """
        if self._is_stopped:
            raise Cancelled("the server stops.")
        with self._lock:
            self._n_submitting += 1
        number = -1
        try:
            number = self._engine.submit(request)
        finally:
            with self._lock:
                self._n_submitting -= 1
                if number >= 0:
                    self._inboxes[number] = (inbox, key)
                    self._n_choices[number] = request.n
                    self._silent.add(number)
                    self._place(self._early.pop(number, []))
                if not self._n_submitting:
                    self._early.clear()
        self._wake.set()
        return number

    def cancel(self, number: int) -> None:
        """End a request; nothing more of it is delivered."""
        with self._lock:
            self._inboxes.pop(number, None)
            self._n_choices.pop(number, None)
            self._silent.discard(number)
        self._engine.cancel(number)
        self._wake.set()

    def stop(self) -> None:
        """Make `run` return after the step at hand; whoever still waits is told."""
        self._is_stopped = True
        self._wake.set()

    def run(self) -> None:
        """Step the engine while there is something to do, and wait otherwise, until stopped."""
        self.is_running = True
        try:
            while not self._is_stopped:
                self._run_step()
        finally:
            self.is_running = False
            self._is_stopped = True
            self.fail_all(Cancelled("the server stops."))

    def _run_step(self) -> None:
        if self._engine.is_idle:
            self._steps_since = time.monotonic()
            self._wake.wait(_IDLE_S)
            self._wake.clear()
            self._steps_since = time.monotonic()
        else:
            failures: list[BaseException] = []
            events: list[Event] = []
            try:
                events = self._engine.step()
            except Exception as error:  # noqa: BLE001 - raised again by every request that waits
                failures.append(error)
            for failure in failures:
                self.fail_all(failure)
            self._dispatch(events)
            start, self._steps_since = self._steps_since, time.monotonic()
            n_tokens = sum(event.token is not None for event in events)
            if self.on_step is not None and n_tokens:
                self.on_step(self._steps_since - start, n_tokens)

    def _dispatch(self, events: list[Event]) -> None:
        """Put events where they belong, and see to it that the loop takes them."""
        if events:
            with self._lock:
                self._place(events)

    def _place(self, events: list[Event]) -> None:
        """Do so while holding the lock, so that a request's events stay in order."""
        is_urgent = False
        for event in events:
            place = self._inboxes.get(event.request)
            if place is None:
                # Its submit has not returned; or it was cancelled, and nobody waits.
                if self._n_submitting:
                    self._early.setdefault(event.request, []).append(event)
                continue
            self._outbox.append((*place, event))
            if event.request in self._silent:
                is_urgent = True  # a first token is waited for
                self._silent.discard(event.request)
            if event.finish is not None:
                is_urgent = True
                self._close_choice(event.request)
        if not self._outbox or (self._is_delivery_due and not is_urgent):
            return
        self._is_delivery_due = True
        if self._loop is not None:
            deliver = self._deliver if is_urgent else self._deliver_soon
            self._loop.call_soon_threadsafe(deliver)

    def _close_choice(self, number: int) -> None:
        self._n_choices[number] -= 1
        if not self._n_choices[number]:
            del self._inboxes[number], self._n_choices[number]

    def _deliver_soon(self) -> None:
        assert self._loop is not None
        wait_s = self._delivered + _DELIVERY_S * len(self._inboxes) - self._loop.time()
        if wait_s > 0:
            self._loop.call_later(wait_s, self._deliver)
        else:
            self._deliver()

    def _deliver(self) -> None:
        """Hand what has come to those who wait. Runs in the loop's thread."""
        assert self._loop is not None
        with self._lock:
            outbox, self._outbox = self._outbox, []
            self._is_delivery_due = False
        self._delivered = self._loop.time()
        for inbox, key, event in outbox:
            if self.on_event is not None:
                self.on_event(event)
            inbox.put(key, event)

    def fail_all(self, error: BaseException) -> None:
        """End all requests; whoever waits for one gets the error. Any thread."""
        if self.on_failure is not None:
            self.on_failure(error)
        with self._lock:
            places = list(self._inboxes.items())
            self._inboxes.clear()
            self._n_choices.clear()
            self._silent.clear()
        for number, (inbox, _) in places:
            self._engine.cancel(number)
            if self._loop is not None:
                self._loop.call_soon_threadsafe(inbox.fail, error)
