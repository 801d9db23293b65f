"""Listening and stopping: uvicorn around the app, with time limits that it lacks."""

from __future__ import annotations

import asyncio
import logging
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from quantcli.errors import ResourceError
from quantcli.server.app import create_app
from quantcli.server.guard import HEADERS_NBYTES
from quantcli.server.service import Service

_KEEP_ALIVE_S = 60
# Threads that compute give the GIL back this soon when the engine asks: the usual 5 ms are longer
# than a step of a small model.
_SWITCH_S = 0.0005
_SIGNALS = (signal.SIGINT, signal.SIGTERM)


def bound(host: str, port: int) -> socket.socket:
    """Return a socket with an address; it will listen. Raises ResourceError if that is taken."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # asyncio turns off the wait for full packets, 40 ms each, only where TCP is spelled out.
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        if sys.platform != "win32":  # where it would let two servers share a port
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
    except OSError as error:
        listener.close()
        raise ResourceError(
            f"cannot listen at {host} port {port}: {(error.strerror or str(error)).lower()}. "
            "Choose another with --port, or stop what uses it."
        ) from error
    return listener


def address(listener: socket.socket) -> str:
    """Return the URL of a socket."""
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


class Server:
    """Serves until it is told to stop: by `stop`, or in the main thread by Ctrl-C or SIGTERM."""

    def __init__(self, service: Service, listener: socket.socket) -> None:
        """Prepare to serve on a socket from `bound`."""
        limits = service.settings.limits
        config = uvicorn.Config(
            create_app(service),
            http=_protocol(limits.header_s),
            ws="none",
            lifespan="on",
            log_config=None,
            log_level=logging.CRITICAL,
            access_log=False,
            server_header=False,
            proxy_headers=False,
            limit_concurrency=limits.n_connections,
            backlog=limits.n_connections,
            timeout_keep_alive=_KEEP_ALIVE_S,
            timeout_graceful_shutdown=int(service.settings.grace_s) + 5,
            h11_max_incomplete_event_size=HEADERS_NBYTES,
        )
        self._server = _Uvicorn(config, service)
        self._service = service
        self.listener = listener

    def run(self, ready: Callable[[], None] | None = None) -> None:
        """Serve in this thread; `ready` is called when requests are answered."""
        self._server.ready = ready
        previous = sys.getswitchinterval()
        sys.setswitchinterval(_SWITCH_S)
        try:
            self._server.run(sockets=[self.listener])
        finally:
            sys.setswitchinterval(previous)
            self._service.runner.stop()

    def stop(self) -> None:
        """Take no more requests and end `run` when those under way have ended. Any thread."""
        self._server.should_exit = True


class _Uvicorn(uvicorn.Server):
    """uvicorn's server, which tells the service when it stops and keeps the signal to itself."""

    def __init__(self, config: uvicorn.Config, service: Service) -> None:
        super().__init__(config)
        self.ready: Callable[[], None] | None = None
        self._service = service

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.ready is not None:
            self.ready()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._service.drain()
        await super().shutdown(sockets)

    @contextmanager
    def capture_signals(self) -> Iterator[None]:  # type: ignore[override]
        """Take signals as uvicorn does, but do not raise them again: the server has stopped."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = {number: signal.signal(number, self.handle_exit) for number in _SIGNALS}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """End when answers under way have ended; at a second signal, at once."""
        if self.should_exit:
            self.force_exit = True
        self.should_exit = True


def _protocol(header_s: float) -> type[asyncio.Protocol]:
    """Return uvicorn's HTTP protocol with a limit to the time that headers may take."""

    class Protocol(H11Protocol):
        """Closes connections whose request does not come."""

        _waiting: asyncio.TimerHandle | None = None

        def connection_made(self, transport: asyncio.BaseTransport) -> None:  # type: ignore[override]
            super().connection_made(transport)  # type: ignore[arg-type]
            self._waiting = self.loop.call_later(header_s, self._give_up)

        def data_received(self, data: bytes) -> None:
            cycle = self.cycle
            super().data_received(data)
            if self.cycle is not cycle:
                self._stop_waiting()
            elif self._waiting is None and (cycle is None or cycle.response_complete):
                self._waiting = self.loop.call_later(header_s, self._give_up)

        def connection_lost(self, exc: Exception | None) -> None:
            self._stop_waiting()
            super().connection_lost(exc)

        def _stop_waiting(self) -> None:
            if self._waiting is not None:
                self._waiting.cancel()
                self._waiting = None

        def _give_up(self) -> None:
            self._waiting = None
            if self.transport is not None:
                self.transport.close()

    return Protocol
