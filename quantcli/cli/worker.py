"""The thread that computes, apart from the main one, which stays free for Ctrl-C and the terminal.

The engine's executor counts the thread that calls it as one of its own, so a model is loaded, run
and closed by one and the same worker.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from queue import Empty, SimpleQueue
from types import TracebackType
from typing import Generic, TypeVar

T = TypeVar("T")
Progress = Callable[[str, int, int], None]

_POLL_S = 0.1  # Windows delivers Ctrl-C only between waits
_GRACE_S = 0.5  # for the task at hand to notice that it should stop


class Stopped(Exception):
    """Raised inside a task that reports progress after `stop`."""


class _Task(Generic[T]):
    """One thing to do and the queue its items come back through."""

    def __init__(self, produce: Callable[[], Iterator[T]]) -> None:
        self.produce = produce
        self.items: SimpleQueue[T] = SimpleQueue()
        self.error: BaseException | None = None
        self.done = threading.Event()

    def run(self, is_stopped: Callable[[], bool]) -> None:
        try:
            iterator = self.produce()
            try:
                for item in iterator:
                    self.items.put(item)
                    if is_stopped():
                        break
            finally:
                close = getattr(iterator, "close", None)
                if close is not None:
                    close()
        except Stopped:
            pass
        except BaseException as error:  # noqa: BLE001 - raised again by the thread that waits
            self.error = error
        finally:
            self.done.set()


class Stream(Iterator[T]):
    """The items of a task, as they come, and its error after them.

    Unlike a generator it survives a KeyboardInterrupt while waiting: iterate again for the rest.
    """

    def __init__(self, task: _Task[T]) -> None:
        """Read the items of a task that was handed to a worker."""
        self._task = task

    def __next__(self) -> T:
        """Wait for the next item; raise the task's error after the last."""
        while True:
            finished = self._task.done.is_set()  # first: after it the queue gets nothing more
            try:
                return self._task.items.get(timeout=0 if finished else _POLL_S)
            except Empty:
                if not finished:
                    continue
            error, self._task.error = self._task.error, None
            if error is not None:
                raise error
            raise StopIteration


class Worker:
    """A thread that does one task after the other; a context manager.

    Leaving the `with` block waits for the task at hand to stop. One that does not, because it is
    deep in a compiler, is left behind: `is_busy` is then still true, and the process must end
    with os._exit, for an orderly exit would free the arrays that the thread is computing on.
    """

    def __init__(self) -> None:
        """Start the thread."""
        self._tasks: SimpleQueue[_Task[object] | None] = SimpleQueue()
        self._stop = threading.Event()
        self._current: _Task[object] | None = None
        self._thread = threading.Thread(target=self._loop, name="engine", daemon=True)
        self._thread.start()

    @property
    def is_busy(self) -> bool:
        """Return whether a task is at hand."""
        return self._current is not None and not self._current.done.is_set()

    def checked(self, progress: Progress) -> Progress:
        """Return a progress callback that ends the task at hand, by Stopped, after `stop`."""

        def report(stage: str, done: int, total: int) -> None:
            if self._stop.is_set():
                raise Stopped
            progress(stage, done, total)

        return report

    def call(self, function: Callable[[], T]) -> T:
        """Run a function on the worker and return its result or raise its error."""

        def produce() -> Iterator[T]:
            yield function()

        items = list(self.stream(produce))
        if not items:
            raise KeyboardInterrupt  # it was stopped
        return items[0]

    def stream(self, produce: Callable[[], Iterator[T]]) -> Stream[T]:
        """Iterate on the worker; what comes back yields the items on this thread."""
        assert not self.is_busy, "the worker has one task at a time"
        task = _Task(produce)
        self._stop.clear()
        self._current = task  # type: ignore[assignment]
        self._tasks.put(task)  # type: ignore[arg-type]
        return Stream(task)

    def stop(self, grace_s: float = _GRACE_S) -> bool:
        """Ask the task at hand to stop and wait for it; return whether it did."""
        self._stop.set()
        end = time.monotonic() + grace_s
        while self.is_busy and time.monotonic() < end:
            assert self._current is not None
            self._current.done.wait(_POLL_S)
        return not self.is_busy

    def __enter__(self) -> Worker:
        """Return the worker."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Stop the task at hand and end the thread."""
        if self.stop():
            self._tasks.put(None)
            self._thread.join()

    def _loop(self) -> None:
        while (task := self._tasks.get()) is not None:
            task.run(self._stop.is_set)
            del task  # or the last result would live until the next task
