"""What all requests of one server share: the model, the engine's runner, settings and counts."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from starlette.requests import ClientDisconnect

from quantcli.errors import Cancelled, QuantcliError, QueueFull, RequestError
from quantcli.server.metrics import Metrics
from quantcli.server.runner import Runner
from quantcli.server.served import Served
from quantcli.server.settings import Settings

T = TypeVar("T")

_STALLED_S = 300.0  # a step of the largest model takes seconds
_N_PROMPT_THREADS = 2  # one long prompt does not keep the others waiting


class Service:
    """A model, the engine that runs it, and how it is served.

    is_draining   whether the server is about to stop and takes no more requests
    """

    def __init__(self, served: Served, runner: Runner, settings: Settings, n_parallel: int) -> None:
        """Join the parts.

        n_parallel   answers that the engine computes at once; more wait
        """
        self.served = served
        self.runner = runner
        self.settings = settings
        self.n_parallel = n_parallel
        self.metrics = Metrics()
        self.is_draining = False
        self._reported: BaseException | None = None
        self._pool = ThreadPoolExecutor(_N_PROMPT_THREADS, "prompts")
        runner.on_event = self.metrics.take
        runner.on_step = self.metrics.take_step
        runner.on_failure = self.report

    async def in_pool(self, work: Callable[[], T]) -> T:
        """Run what takes long, such as reading a prompt of a million characters, in a thread."""
        return await asyncio.get_running_loop().run_in_executor(self._pool, work)

    def check_room(self) -> None:
        """Raise QueueFull if too many requests wait, RequestError if the server is stopping."""
        if self.is_draining:
            raise RequestError("the server stops.", status=503, kind="unavailable_error")
        if self.runner.n_open >= self.n_parallel + self.settings.limits.n_waiting:
            raise QueueFull(
                f"{self.runner.n_open} requests are computed or wait. Try again a little later."
            )

    def attach(self) -> None:
        """Have events delivered in the loop that runs, which is the server's."""
        self.runner.attach(asyncio.get_running_loop())

    def compute(self) -> Iterator[None]:
        """Step the engine in this thread until the server stops; yields nothing."""
        self.runner.run()
        yield from ()

    def health(self) -> tuple[int, dict[str, object]]:
        """Return the status and body of /health."""
        if self.is_draining:
            return 503, {"status": "stopping"}
        if not self.runner.is_running or self.runner.stalled_s > _STALLED_S:
            return 503, {"status": "error"}
        return 200, {"status": "ok"}

    def drain(self) -> None:
        """Take no more requests, and break off those under way after the time of grace."""
        self.is_draining = True
        loop = asyncio.get_running_loop()
        loop.call_later(self.settings.grace_s, self.runner.fail_all, Cancelled("the server stops."))

    def close(self) -> None:
        """Let go of the threads for prompts."""
        self._pool.shutdown(wait=False, cancel_futures=True)

    def log(self, entry: dict[str, object]) -> None:
        """Tell the log what is known of a request."""
        if self.settings.log is not None:
            self.settings.log(entry)

    def report(self, error: BaseException) -> None:
        """Tell the log, once, of an error that is a bug of ours."""
        if not isinstance(error, QuantcliError | ClientDisconnect) and error is not self._reported:
            self._reported = error
            import traceback

            self.log({"level": "error", "traceback": "".join(traceback.format_exception(error))})
