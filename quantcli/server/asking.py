"""From a request to the engine and back: submit, follow, and cancel when the client leaves."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Coroutine, Sequence
from typing import Protocol, TypeVar

from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from quantcli.engine.request import Event
from quantcli.engine.request import Request as EngineRequest
from quantcli.errors import Cancelled
from quantcli.server.replies import DONE, PING, EventStream, JsonReply, described, event, until_gone
from quantcli.server.runner import Inbox, Runner
from quantcli.server.service import Service

T = TypeVar("T")
Events = list[tuple[int, Event]]


class Answer(Protocol):
    """What a kind of endpoint makes of a request and of the engine's events."""

    is_streamed: bool

    def requests(self) -> Sequence[EngineRequest]:
        """Return what to ask the engine. Runs in a thread for prompts."""
        ...

    def take(self, key: int, event: Event) -> None:
        """Take an event of the request at this place in `requests`."""
        ...

    def chunks(self) -> Sequence[object]:
        """Return the chunks of a stream that what was taken since the last call amounts to."""
        ...

    def last_chunks(self) -> Sequence[object]:
        """Return the chunks that end a stream."""
        ...

    def body(self) -> object:
        """Return the response of what was taken, when all is there."""
        ...

    def noted(self) -> dict[str, object]:
        """Return numbers for the log."""
        ...


class Asked:
    """The engine's requests that one HTTP request stands for."""

    def __init__(self, runner: Runner) -> None:
        """Start with none, in the loop's thread."""
        self.inbox = Inbox()
        self._runner = runner
        self._lock = threading.Lock()  # of the next two
        self._numbers: list[int] = []
        self._is_cancelled = False
        self._n_open = 0  # choices

    def submit(self, requests: Sequence[EngineRequest]) -> None:
        """Submit all, or none if one is refused. Any thread."""
        self._n_open = sum(request.n for request in requests)
        try:
            for key, request in enumerate(requests):
                number = self._runner.submit(request, self.inbox, key)
                with self._lock:
                    self._numbers.append(number)
                    if self._is_cancelled:
                        raise Cancelled("the client left.")
        except BaseException:
            self.cancel()
            raise

    def cancel(self) -> None:
        """End what has not ended. Any thread."""
        with self._lock:
            self._is_cancelled = True
            numbers, self._numbers = self._numbers, []
        for number in numbers:
            self._runner.cancel(number)

    async def events(self, silence_s: float | None = None) -> AsyncIterator[Events]:
        """Yield events until all has ended, and [] after each time of silence.

        Raises the error of a request that ends in one, or what the engine failed with.
        """
        while self._n_open:
            batch = await self.inbox.take(silence_s)
            for _, happened in batch:
                if happened.error is not None:
                    raise happened.error
                self._n_open -= happened.finish is not None
            yield batch
        with self._lock:
            self._numbers.clear()  # nothing is left to cancel


async def respond(service: Service, request: Request, answer: Answer) -> Response:
    """Ask the engine, and return the response or the stream of it.

    A stream's headers are sent with its first token, or after a time of silence: an error before
    that is an ordinary response.
    """
    asked = Asked(service.runner)
    request.state.answer = answer
    try:
        if not answer.is_streamed:
            await attended(request, _collect(service, asked, answer))
            return JsonReply(answer.body())
        await attended(request, _submit(service, asked, answer))
        pieces = _pieces(service, asked, answer)
        first = await attended(request, _first(pieces))
    except BaseException:
        asked.cancel()
        raise
    return EventStream(_chained(first, pieces), service.settings.limits.send_s)


async def _submit(service: Service, asked: Asked, answer: Answer) -> None:
    service.check_room()
    await service.in_pool(lambda: asked.submit(answer.requests()))


async def _collect(service: Service, asked: Asked, answer: Answer) -> None:
    """Take all events of a request."""
    await _submit(service, asked, answer)
    async for batch in asked.events():
        for key, happened in batch:
            answer.take(key, happened)


async def _pieces(service: Service, asked: Asked, answer: Answer) -> AsyncIterator[bytes]:
    """Yield a stream's bytes, from the first token to the end; the engine stops when it is closed.

    Raises an error that comes before anything was yielded; later ones are told in the stream.
    """
    has_begun = False
    failures: list[BaseException] = []
    try:
        try:
            async for batch in asked.events(service.settings.limits.ping_s):
                for key, happened in batch:
                    answer.take(key, happened)
                data = b"".join(map(event, answer.chunks())) if batch else PING
                if data:
                    yield data
                    has_begun = True
        except Exception as error:  # noqa: BLE001 - raised again, or told in the stream
            failures.append(error)
        for failure in failures:
            if not has_begun:
                raise failure
            service.report(failure)
            yield event({"error": described(failure)[1]})
        if not failures:
            yield b"".join(map(event, answer.last_chunks())) + DONE
    finally:
        asked.cancel()


async def _first(pieces: AsyncIterator[bytes]) -> bytes:
    return await anext(pieces)


async def _chained(first: bytes, pieces: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    try:
        yield first
        async for piece in pieces:
            yield piece
    finally:
        await pieces.aclose()  # type: ignore[attr-defined]


async def attended(request: Request, work: Coroutine[object, object, T]) -> T:
    """Return what some work returns; break it off if the client leaves meanwhile.

    Raises ClientDisconnect then.
    """
    left = asyncio.ensure_future(until_gone(request.receive))
    task = asyncio.ensure_future(work)
    try:
        await asyncio.wait({left, task}, return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise ClientDisconnect
        return task.result()
    finally:
        for each in (left, task):
            each.cancel()
        await asyncio.gather(left, task, return_exceptions=True)
