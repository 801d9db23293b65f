"""Who may ask: the name a server is called by, the page that asks, the key.

A server on loopback can be reached by any web page that its user opens. What keeps pages out: a
foreign Origin is refused, and so is a Host that is not ours, since a page's own name can be made
to point at 127.0.0.1 (DNS rebinding).
"""

from __future__ import annotations

import hmac
import socket
from hashlib import sha256
from ipaddress import ip_address
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from quantcli.errors import RequestError
from quantcli.server.replies import error_reply
from quantcli.server.settings import LOOPBACK, Settings

# No secrets, no work: a page that asks for the key has to be there first.
PUBLIC = frozenset({"/", "/health", "/v1/health"})
HEADERS_NBYTES = 16 << 10
_MOST_HEADERS = 100
_WILDCARDS = frozenset({"0.0.0.0", "::", ""})


class Guard:
    """Refuses requests before anything of them is read; passes the others on."""

    def __init__(self, app: ASGIApp, settings: Settings) -> None:
        """Stand before an app."""
        self._app = app
        self._settings = settings
        self._digests = [sha256(key.encode()).digest() for key in settings.api_keys]
        self._names = {*LOOPBACK, settings.host.lower(), *map(str.lower, settings.allowed_hosts)}
        self._is_wide = settings.host in _WILDCARDS
        if self._is_wide:
            self._names.add(socket.gethostname().lower())

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request that is refused, or pass it on."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        request_id = scope["state"]["request_id"]
        origin = headers.get("origin")
        try:
            _check_size(scope["headers"])
            self._check_host(headers)
            is_foreign = self._check_origin(origin, headers)
            if is_foreign and scope["method"] == "OPTIONS":
                response: ASGIApp = _preflight()
            else:
                scope["state"]["key"] = self._check_key(scope["path"], headers)
                response = self._app
        except RequestError as error:
            is_foreign = origin in self._settings.cors_origins
            response = error_reply(error, request_id)
        allowed = origin if is_foreign else None
        await response(scope, receive, _marked(send, request_id, allowed))

    def _check_host(self, headers: Headers) -> None:
        """Raise RequestError if the server is called by a name that is not its own."""
        name = host_name(headers.get("host", ""))
        if name in self._names or (self._is_wide and _is_address(name)):
            return
        raise RequestError(
            f"this server does not go by the name {name[:80]!r}. Call it by its address, or start "
            "it with --allowed-host NAME.",
            status=403,
            kind="permission_error",
        )

    def _check_origin(self, origin: str | None, headers: Headers) -> bool:
        """Return whether a page of another origin asks that may; raise RequestError if not."""
        if origin is None:
            return False
        if origin in self._settings.cors_origins:
            return True
        parts = urlsplit(origin)
        if parts.scheme == "http" and parts.netloc == headers.get("host"):
            return False
        raise RequestError(
            f"pages of {origin[:80]} may not use this server. Start it with --cors-origin "
            "followed by their origin if they may.",
            status=403,
            kind="permission_error",
        )

    def _check_key(self, path: str, headers: Headers) -> int:
        """Return which key was given, from 1, or 0 if none is needed; raise RequestError if not."""
        if not self._digests or path in PUBLIC:
            return 0
        scheme, _, given = headers.get("authorization", "").partition(" ")
        if scheme.lower() != "bearer" or not given:
            given = headers.get("x-api-key", "")
        digest = sha256(given.strip().encode("utf-8", "replace")).digest()
        found = 0
        for number, known in enumerate(self._digests, 1):
            if hmac.compare_digest(digest, known):
                found = number
        if not found:
            raise RequestError(
                "the API key is missing or wrong. Send it as 'Authorization: Bearer KEY'.",
                status=401,
                kind="authentication_error",
                code="invalid_api_key",
            )
        return found


def _check_size(headers: list[tuple[bytes, bytes]]) -> None:
    """Raise RequestError for headers that are too many or too long."""
    n_nbytes = sum(len(name) + len(value) for name, value in headers)
    if n_nbytes > HEADERS_NBYTES or len(headers) > _MOST_HEADERS:
        raise RequestError(
            f"the headers are {len(headers)} of {n_nbytes} bytes; at most {_MOST_HEADERS} of "
            f"{HEADERS_NBYTES} bytes are allowed.",
            status=431,
        )


def host_name(host: str) -> str:
    """Return the name in a Host header, without port and brackets."""
    try:
        return (urlsplit("//" + host).hostname or "").rstrip(".")
    except ValueError:
        return ""


def _is_address(name: str) -> bool:
    try:
        ip_address(name)
    except ValueError:
        return False
    return True


def _preflight() -> Response:
    return Response(
        status_code=204,
        headers={
            "access-control-allow-methods": "GET, POST",
            "access-control-allow-headers": "authorization, content-type, x-api-key",
            "access-control-max-age": "600",
        },
    )


def _marked(send: Send, request_id: str, origin: str | None) -> Send:
    """Return a `send` that adds the headers which every response has."""

    async def marked(message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = MutableHeaders(scope=message)
            headers["x-request-id"] = request_id
            headers["x-content-type-options"] = "nosniff"
            if origin is not None:
                headers["access-control-allow-origin"] = origin
                headers["vary"] = "Origin"
        await send(message)

    return marked
