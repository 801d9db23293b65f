"""The worker thread: items and errors come back, and it stops when it is asked to."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from quantcli.cli.worker import Worker


def test_a_result_comes_back_from_another_thread() -> None:
    with Worker() as worker:
        first = worker.call(threading.get_ident)
        second = worker.call(threading.get_ident)
    assert first == second != threading.get_ident()


def test_items_come_in_order_and_then_the_error() -> None:
    def produce() -> Iterator[int]:
        yield from range(100)
        raise ValueError("after the items")

    with Worker() as worker:
        stream = worker.stream(produce)
        assert [next(stream) for _ in range(100)] == list(range(100))
        with pytest.raises(ValueError, match="after the items"):
            next(stream)


def test_the_worker_lives_on_after_an_error() -> None:
    def fail() -> int:
        raise ValueError("no")

    with Worker() as worker:
        with pytest.raises(ValueError, match="no"):
            worker.call(fail)
        assert worker.call(lambda: 7) == 7


def test_stop_ends_a_stream_and_closes_its_iterator() -> None:
    closed = threading.Event()

    def produce() -> Iterator[int]:
        try:
            n = 0
            while True:
                yield n
                n += 1
        finally:
            closed.set()

    with Worker() as worker:
        stream = worker.stream(produce)
        assert next(stream) == 0
        assert worker.stop()
        assert closed.is_set()
        assert worker.call(lambda: "next") == "next"


def test_a_report_of_progress_ends_a_task_that_was_asked_to_stop() -> None:
    started = threading.Event()

    def load() -> None:
        started.set()
        report = worker.checked(lambda *_: None)
        while True:
            report("loading", 1, 2)

    def interrupt() -> None:
        started.wait()
        worker.stop()

    with Worker() as worker:
        threading.Thread(target=interrupt).start()
        with pytest.raises(KeyboardInterrupt):
            worker.call(load)
        assert not worker.is_busy


def test_a_task_that_does_not_stop_is_left_behind() -> None:
    release = threading.Event()
    with Worker() as worker:
        stream = worker.stream(lambda: iter([release.wait()]))
        thread = threading.Thread(target=lambda: list(stream))
        thread.start()
        while not worker.is_busy:
            pass
        assert not worker.stop(grace_s=0.01)
        assert worker.is_busy
        release.set()
        thread.join()
    assert not worker.is_busy
