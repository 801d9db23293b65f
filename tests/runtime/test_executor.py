"""The executor: claims, barriers, cancelling, closing, on one to four threads."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from typing import ClassVar

import numpy as np
import pytest
from kernel_calls import Threads
from kernel_calls import threads as open_threads

from quantcli.kernels.jit import OpKernel, op
from quantcli.kernels.simd import atomic_add, atomic_load, atomic_store, pause, store_i64, view
from quantcli.runtime.executor import LINE, N_COUNTERS, OP, Executor, _waiting_functions, aligned

pytestmark = pytest.mark.jit

ARGS = np.dtype([("counter", "i8"), ("n", "i8"), ("here", "i8"), ("there", "i8"), ("flag", "i8")])
N_THREADS = [1, 2, 3, 4]


@op
def claim(args, thread, n_threads):
    """Add 1 to each of n words, each claimed by one thread."""
    a = view(args, ARGS)
    item = atomic_add(a.counter, 1)
    while item < a.n:
        atomic_add(a.here + 8 * item, 1)
        item = atomic_add(a.counter, 1)


@op
def claim_share(args, thread, n_threads):
    """Claim from the counter of this thread's own share."""
    a = view(args, ARGS)
    item = atomic_add(a.counter + 8 * thread, 1)
    while item < a.n:
        atomic_add(a.here + 8 * item, 1)
        item = atomic_add(a.counter + 8 * thread, 1)


@op
def meet(args, thread, n_threads):
    """Note in `flag` if a thread comes here before all have been at the op before."""
    a = view(args, ARGS)
    if a.there != 0 and atomic_load(a.there) % n_threads != 0:
        atomic_add(a.flag, 1)
    atomic_add(a.here, 1)


@op
def wait(args, thread, n_threads):
    """Say that this thread is here, and wait until the flag is set."""
    a = view(args, ARGS)
    atomic_add(a.here, 1)
    while atomic_load(a.flag) == 0:
        pause()


@op
def who(args, thread, n_threads):
    """Write down this thread's number and how many there are."""
    a = view(args, ARGS)
    store_i64(a.here + 16 * thread, thread + 1)
    atomic_store(a.here + 16 * thread + 8, n_threads)


@pytest.fixture(scope="module")
def threads() -> Iterator[Threads]:
    with open_threads() as pool:
        yield pool


class Ops:
    """A growing list of ops; the arguments that op arrays point at are kept for good."""

    kept: ClassVar[list[np.ndarray]] = []

    def __init__(self) -> None:
        self._ops: list[tuple[OpKernel, np.ndarray, bool]] = []

    def add(self, kernel: OpKernel, barrier: bool = True, **fields: int | np.ndarray) -> Ops:
        args = np.zeros(1, ARGS)
        for name, value in fields.items():
            args[name] = value.ctypes.data if isinstance(value, np.ndarray) else value
        self._ops.append((kernel, args, barrier))
        return self

    def build(self) -> np.ndarray:
        ops = aligned(OP, len(self._ops))
        for i, (kernel, args, barrier) in enumerate(self._ops):
            ops[i]["kernel"], ops[i]["args"] = kernel.address, args.ctypes.data
            ops[i]["barrier"] = barrier
            args["counter"] = ops.ctypes.data + i * OP.itemsize
            self.kept.append(args)
        return ops


def words(n: int = 1) -> np.ndarray:
    return np.zeros(n, np.int64)


@pytest.mark.parametrize("n_threads", N_THREADS)
def test_every_item_is_claimed_once_in_every_step(n_threads: int, threads: Threads) -> None:
    for n in (0, 1, 7, 1000):
        seen = words(1000)
        array = Ops().add(claim, n=n, here=seen).build()
        for step in range(1, 101):
            assert threads[n_threads].run(array)
            assert (seen[:n] == step).all()
            assert not seen[n:].any()
        assert not array["counters"].any()


@pytest.mark.parametrize("n_threads", N_THREADS)
def test_counters_of_all_shares_start_at_zero_in_every_step(
    n_threads: int, threads: Threads
) -> None:
    seen = words(10)
    array = Ops().add(claim_share, n=10, here=seen).build()
    assert array["counters"].shape == (1, N_COUNTERS)
    for step in range(1, 50):
        threads[n_threads].run(array)
        assert (seen == step * n_threads).all()
        assert not array["counters"].any()


@pytest.mark.parametrize("n_threads", N_THREADS)
def test_no_thread_passes_a_barrier_before_all_are_there(n_threads: int, threads: Threads) -> None:
    n_ops = 40
    places, early = [words(16) for _ in range(n_ops)], words()
    ops = Ops()
    for i, place in enumerate(places):
        ops.add(meet, here=place, there=places[i - 1] if i else 0, flag=early)
    array = ops.build()
    for step in range(1, 101):
        assert threads[n_threads].run(array)
        assert early[0] == 0
        assert [int(place[0]) for place in places] == [step * n_threads] * n_ops


@pytest.mark.parametrize("n_threads", N_THREADS)
def test_ops_without_a_barrier_are_cleared_at_the_next(n_threads: int, threads: Threads) -> None:
    seen = [words(30) for _ in range(5)]
    ops = Ops()
    for i, place in enumerate(seen):
        ops.add(claim, barrier=i in (2, 4), n=30, here=place)
    array = ops.build()
    for step in range(1, 101):
        assert threads[n_threads].run(array)
        assert all((place == step).all() for place in seen)
    assert not array["counters"].any()


@pytest.mark.parametrize("n_threads", N_THREADS)
def test_threads_know_their_number(n_threads: int, threads: Threads) -> None:
    seen = words(2 * n_threads)
    assert threads[n_threads].run(Ops().add(who, here=seen).build())
    assert seen[::2].tolist() == list(range(1, n_threads + 1))
    assert (seen[1::2] == n_threads).all()


@pytest.mark.parametrize("n_threads", N_THREADS)
def test_op_arrays_take_turns(n_threads: int, threads: Threads) -> None:
    one, two = words(5), words(9)
    arrays = [
        Ops().add(claim, n=5, here=one).build(),
        Ops().add(claim, n=9, here=two).add(claim, n=9, here=two).build(),
    ]
    for _ in range(50):
        for array in arrays:
            assert threads[n_threads].run(array)
    assert (one == 50).all()
    assert (two == 100).all()


@pytest.mark.parametrize("n_threads", N_THREADS)
def test_cancel_ends_a_step_at_its_next_barrier(n_threads: int, threads: Threads) -> None:
    executor, here, flag, after = threads[n_threads], words(16), words(16), words(5)
    ops = Ops().add(wait, barrier=False, here=here, flag=flag).add(claim, n=5, here=after)
    array = ops.add(claim, n=5, here=after).add(claim, n=5, here=after).build()

    def stop() -> None:
        while here[0] < n_threads:
            time.sleep(0.001)
        executor.cancel()
        flag[0] = 1

    for step in range(1, 6):
        here[0] = flag[0] = 0
        stopper = threading.Thread(target=stop)
        stopper.start()
        assert executor.run(array) is False
        stopper.join()
        assert (after == step).all(), "the op before the barrier ran, and none behind it"
        assert not array["counters"].any()
    after[:] = 0
    assert executor.run(array), "the step after a cancelled one is whole"
    assert (after == 3).all()


@pytest.mark.parametrize("n_threads", [1, 3])
def test_cancel_holds_for_one_step(n_threads: int, threads: Threads) -> None:
    seen = words(4)
    array = Ops().add(claim, n=4, here=seen).add(claim, n=4, here=seen).build()
    threads[n_threads].cancel()
    assert [threads[n_threads].run(array) for _ in range(3)] == [False, True, True]
    assert (seen == 5).all()


@pytest.mark.parametrize("n_threads", [1, 2, 4])
def test_workers_that_fell_asleep_wake_up(n_threads: int, threads: Threads) -> None:
    seen = words(50)
    array = Ops().add(claim, n=50, here=seen).build()
    for step in range(1, 4):
        time.sleep(0.1)  # they spin for about a millisecond
        assert threads[n_threads].run(array)
        assert (seen == step).all()


def workers_of(n_threads: int) -> set[threading.Thread]:
    return {
        t for t in threading.enumerate() if t.name in {f"quantcli-{i}" for i in range(1, n_threads)}
    }


def test_close_ends_the_workers_and_no_step_runs_after_it() -> None:
    before = workers_of(3)
    executor = Executor(3)
    mine = workers_of(3) - before
    assert len(mine) == 2
    assert all(worker.daemon for worker in mine)
    executor.close()
    assert not any(worker.is_alive() for worker in mine)
    executor.close()
    with pytest.raises(AssertionError, match="closed"):
        executor.run(Ops().add(claim, n=0).build())


def test_an_executor_that_nobody_holds_ends_its_workers() -> None:
    before = workers_of(3)
    executor = Executor(3)
    mine = workers_of(3) - before
    executor.run(Ops().add(claim, n=0).build())
    del executor
    gc.collect()
    assert len(mine) == 2
    assert not any(worker.is_alive() for worker in mine)


def test_an_executor_refuses_to_run_in_a_fork(monkeypatch: pytest.MonkeyPatch) -> None:
    executor = Executor(1)
    array = Ops().add(claim, n=0).build()
    assert executor.run(array)
    pid = os.getpid()
    monkeypatch.setattr(os, "getpid", lambda: pid + 1)
    with pytest.raises(AssertionError, match="an executor does not survive a fork"):
        executor.run(array)
    executor.close()


def test_a_program_ends_though_it_closed_nothing() -> None:
    code = (
        "from quantcli.runtime.executor import Executor\n"
        "kept = [Executor(n) for n in (1, 2, 4)]\n"
        "print('made', flush=True)\n"
    )
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, timeout=300
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "made\n", "")


@pytest.mark.parametrize("count", [1, 2, 7])
def test_records_start_on_a_line_of_their_own(count: int) -> None:
    for _ in range(5):
        array = aligned(OP, count)
        assert array.shape == (count,)
        assert array.ctypes.data % LINE == 0
        assert array.dtype.itemsize % LINE == 0
        assert not array.view(np.uint8).any()


def test_waiting_is_done_by_functions_of_the_system() -> None:
    yield_, sleep, amount = _waiting_functions()
    assert yield_ > 0
    assert sleep > 0
    assert yield_ != sleep
    assert amount in (1, 200)  # Windows counts milliseconds
