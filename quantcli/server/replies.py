"""What is sent: JSON bodies, errors in OpenAI's shape, and streams of events."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from quantcli.errors import (
    ModelError,
    QuantcliError,
    QueueFull,
    RequestError,
    ResourceError,
    UsageError,
)

RETRY_S = 1  # what Retry-After says; a queue of short answers moves about this fast
_NO_RETRY = {"x-should-retry": "false"}  # openai's client repeats 5xx otherwise
_RETRY = {"retry-after": str(RETRY_S)}


def dumped(value: object) -> bytes:
    """Return JSON in one line. Halves of surrogate pairs, which a request may hold, are escaped."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    return text.encode("utf-8", "backslashreplace")


class JsonReply(Response):
    """A JSON body."""

    media_type = "application/json"

    def __init__(
        self, content: object, status: int = 200, headers: Mapping[str, str] | None = None
    ) -> None:
        """Send a value."""
        super().__init__(dumped(content), status, dict(headers or {}))


def error_reply(error: BaseException, request_id: str) -> JsonReply:
    """Return the response that tells an error. A bug's text stays in the log."""
    status, body, headers = described(error)
    if status >= 500:
        body["message"] = f"{body['message']} Request {request_id}."
    return JsonReply({"error": body}, status, headers)


def described(error: BaseException) -> tuple[int, dict[str, object], dict[str, str]]:
    """Return an error's status, its body and the headers that belong to it."""
    message = " ".join(str(error).split())
    if isinstance(error, RequestError):
        body = _body(message, error.kind, error.param, error.code)
        return error.status, {**body, **error.details}, _RETRY if error.status in (429, 503) else {}
    if isinstance(error, QueueFull):
        return 429, _body(message, "rate_limit_error", None, "rate_limit_exceeded"), _RETRY
    if isinstance(error, UsageError | ResourceError):
        return 400, _body(message, "invalid_request_error"), {}
    if isinstance(error, ModelError):
        # The same request would end in the same way, so this is no 5xx, which clients repeat.
        return 422, _body(message, "model_error"), _NO_RETRY
    if isinstance(error, QuantcliError):
        return 503, _body(message or "the server stops.", "unavailable_error"), _RETRY
    message = "the server met an error of its own; its log tells more."
    return 500, _body(message, "server_error"), _NO_RETRY


def _body(
    message: str, kind: str, param: str | None = None, code: str | None = None
) -> dict[str, object]:
    return {"message": message, "type": kind, "param": param, "code": code}


def event(value: object) -> bytes:
    """Return one server-sent event."""
    return b"data: " + dumped(value) + b"\n\n"


DONE = b"data: [DONE]\n\n"
PING = b":\n\n"  # a comment, which clients skip


class EventStream(Response):
    """Server-sent events as they come. Ends when the client leaves, or reads too slowly."""

    media_type = "text/event-stream"

    def __init__(self, pieces: AsyncIterator[bytes], send_s: float) -> None:
        """Send pieces, each within a time.

        pieces   closed when the stream ends for whatever reason
        """
        super().__init__(
            headers={"cache-control": "no-cache, no-transform", "x-accel-buffering": "no"}
        )
        del self.headers["content-length"]
        self._pieces = pieces
        self._send_s = send_s

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the response."""
        left = asyncio.ensure_future(until_gone(receive))
        sending = asyncio.ensure_future(self._send_all(send))
        try:
            await asyncio.wait({left, sending}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (left, sending):
                task.cancel()
            await asyncio.gather(left, sending, return_exceptions=True)
        if not sending.cancelled() and (error := sending.exception()) is not None:
            raise error

    async def _send_all(self, send: Send) -> None:
        start = {"type": "http.response.start", "status": 200, "headers": self.raw_headers}
        try:
            await send(start)
            async for piece in self._pieces:
                body = {"type": "http.response.body", "body": piece, "more_body": True}
                try:
                    async with asyncio.timeout(self._send_s):
                        await send(body)
                except (TimeoutError, OSError):
                    return
            await send({"type": "http.response.body", "body": b"", "more_body": False})
        finally:
            close = getattr(self._pieces, "aclose", None)
            if close is not None:
                await close()


async def until_gone(receive: Receive) -> None:
    """Wait until the client has closed its connection."""
    while (await receive())["type"] != "http.disconnect":
        pass
