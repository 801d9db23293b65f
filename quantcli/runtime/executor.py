"""The compiled loop over the op array, the threads that run it and the barrier between ops.

All threads walk the same array. An op's work is claimed in chunks from its counter, so a slow
core does not hold back a fast one. After an op with `barrier` set, threads meet: the last to
arrive clears the counters behind it, copies the cancel word, then publishes the next phase, so
that all leave at the same op. Workers wait for the next step in compiled code, without the GIL.
"""

from __future__ import annotations

import ctypes
import os
import sys
import threading
import weakref

import numpy as np

from quantcli.kernels.jit import inline, njit
from quantcli.kernels.simd import (
    atomic_add,
    atomic_load,
    atomic_store,
    call_op,
    call_with_int,
    load_i64,
    pause,
    splat_i32,
    store_i32x16,
    store_i64,
    view,
)

LINE = 128  # bytes; two cache lines, since prefetchers fetch pairs

# One entry of the op array. The counters have a line of their own: an op may use just the first,
# or one for each of N_COUNTERS shares of its work.
N_COUNTERS = LINE // 8
OP = np.dtype(
    {
        "names": ["counters", "kernel", "args", "barrier"],
        "formats": [("i8", N_COUNTERS), "i8", "i8", "i8"],
        "offsets": [0, LINE, LINE + 8, LINE + 16],
        "itemsize": 2 * LINE,
    }
)

# What threads share. `phase` counts barriers passed and is never reset; `step` counts steps.
_ARRIVED, _PHASE, _CANCELLED = 0, LINE, LINE + 8
_STEP, _OPS, _N_OPS, _STOP = 2 * LINE, 2 * LINE + 8, 2 * LINE + 16, 2 * LINE + 24
_CANCEL = 3 * LINE
CONTROL = np.dtype(
    {
        "names": ["arrived", "phase", "cancelled", "step", "ops", "n_ops", "stop", "cancel"],
        "formats": ["i8"] * 8,
        "offsets": [_ARRIVED, _PHASE, _CANCELLED, _STEP, _OPS, _N_OPS, _STOP, _CANCEL],
        "itemsize": 4 * LINE,
    }
)
_OP_NBYTES = OP.itemsize

# Spins before giving the core away: about 20 us at a barrier, 1 ms between steps, where the
# engine is choosing the next token. Longer waits sleep.
_BARRIER_SPINS = 1000
_IDLE_SPINS = 50_000
_IDLE_YIELDS = 2_000


@njit
def _wait_barrier(control, phase, yield_address):
    """Spin until the phase passes, giving the core away when the wait is long."""
    spins = 0
    while atomic_load(control + _PHASE) == phase:
        pause()
        spins += 1
        if spins > _BARRIER_SPINS:
            call_with_int(yield_address, 0)


@inline
def _clear_counters(entry):
    """Zero the counters of an op for its next run."""
    store_i32x16(entry, splat_i32(0))
    store_i32x16(entry + 64, splat_i32(0))


@njit
def run_ops(control, ops, n_ops, thread, n_threads, yield_address):
    """Run the op array as one of n_threads threads; return 1 if it was cancelled."""
    first = 0  # the first op since the last barrier: its counters are still dirty
    for i in range(n_ops):
        entry = ops + i * _OP_NBYTES
        o = view(entry, OP)
        call_op(o.kernel, o.args, thread, n_threads)
        if o.barrier == 0:
            continue
        if n_threads == 1:
            for j in range(first, i + 1):
                _clear_counters(ops + j * _OP_NBYTES)
            store_i64(control + _CANCELLED, atomic_load(control + _CANCEL))
        else:
            phase = atomic_load(control + _PHASE)
            if atomic_add(control + _ARRIVED, 1) == n_threads - 1:
                store_i64(control + _ARRIVED, 0)
                for j in range(first, i + 1):
                    _clear_counters(ops + j * _OP_NBYTES)
                store_i64(control + _CANCELLED, atomic_load(control + _CANCEL))
                atomic_store(control + _PHASE, phase + 1)
            else:
                _wait_barrier(control, phase, yield_address)
        first = i + 1
        if load_i64(control + _CANCELLED) != 0:
            return 1
    return 0


@njit
def _serve(control, thread, n_threads, seen, yield_address, sleep_address, sleep_arg):
    """Run every step that is announced until told to stop: a worker's whole life."""
    while True:
        waited = 0
        while atomic_load(control + _STEP) == seen:
            if atomic_load(control + _STOP) != 0:
                return
            waited += 1
            if waited < _IDLE_SPINS:
                pause()
            elif waited < _IDLE_SPINS + _IDLE_YIELDS:
                call_with_int(yield_address, 0)
            else:
                call_with_int(sleep_address, sleep_arg)
        seen += 1
        ops = load_i64(control + _OPS)
        n_ops = load_i64(control + _N_OPS)
        run_ops(control, ops, n_ops, thread, n_threads, yield_address)


def _waiting_functions() -> tuple[int, int, int]:
    """Return the addresses of yield(int) and sleep(int), and sleep's argument for 0.2 to 1 ms."""
    if sys.platform == "win32":
        kernel32 = ctypes.windll.kernel32  # type: ignore[attr-defined]
        yield_, sleep, amount = kernel32.SwitchToThread, kernel32.Sleep, 1
    else:
        libc = ctypes.CDLL(None)
        yield_, sleep, amount = libc.sched_yield, libc.usleep, 200
    addresses = [ctypes.cast(f, ctypes.c_void_p).value or 0 for f in (yield_, sleep)]
    return addresses[0], addresses[1], amount


def aligned(dtype: np.dtype, count: int = 1) -> np.ndarray:
    """Return a zeroed array of records that starts on a LINE boundary."""
    nbytes = dtype.itemsize * count
    raw = np.zeros(nbytes + LINE, np.uint8)
    start = -raw.ctypes.data % LINE
    return raw[start : start + nbytes].view(dtype)


class Executor:
    """Runs op arrays on n_threads threads, the caller's being thread 0."""

    def __init__(self, n_threads: int) -> None:
        """Start the workers; they wait in compiled code."""
        self.n_threads = n_threads
        self._control = aligned(CONTROL)
        self._address = self._control.ctypes.data
        self._yield, self._sleep, self._sleep_arg = _waiting_functions()
        self._pid = os.getpid()
        self._compile()
        waiting = (self._yield, self._sleep, self._sleep_arg)
        workers = [
            threading.Thread(
                target=_serve,
                args=(self._address, thread, n_threads, 0, *waiting),
                name=f"quantcli-{thread}",
                daemon=True,
            )
            for thread in range(1, n_threads)
        ]
        for worker in workers:
            worker.start()
        # The workers hold no reference to us, so this also runs when we are collected, and at
        # exit, before the interpreter takes the memory they read away.
        self._stop = weakref.finalize(self, _stop, self._control, workers)

    def run(self, ops: np.ndarray) -> bool:
        """Run an array of OP records to its end; return False if `cancel` cut it short.

        The last op must have `barrier` set, or a worker might still be running when this returns.
        """
        assert os.getpid() == self._pid, "an executor does not survive a fork"
        assert self._stop.alive, "the executor is closed"
        control = self._control[0]
        if self.n_threads > 1:
            control["ops"] = ops.ctypes.data
            control["n_ops"] = len(ops)
            _publish(self._address)
        stopped = run_ops(self._address, ops.ctypes.data, len(ops), 0, self.n_threads, self._yield)
        control["cancel"] = 0
        return not stopped

    def cancel(self) -> None:
        """Make the step that is running end at its next barrier. Any thread may call this."""
        self._control[0]["cancel"] = 1

    def forget_cancel(self) -> None:
        """Take back a cancel that came when nothing ran, or it would end the next step."""
        self._control[0]["cancel"] = 0

    def close(self) -> None:
        """Stop the workers and wait for them."""
        self._stop()

    def _compile(self) -> None:
        """Compile both loops before any worker starts, so that threads never compile at once."""
        _publish(self._address)
        self._control[0]["step"] = 0
        run_ops(self._address, 0, 0, 0, 1, self._yield)
        self._control[0]["stop"] = 1
        _serve(self._address, 0, 1, 0, self._yield, self._sleep, self._sleep_arg)
        self._control[0]["stop"] = 0


def _stop(control: np.ndarray, workers: list[threading.Thread]) -> None:
    control[0]["stop"] = 1
    for worker in workers:
        worker.join()


@njit
def _publish(control):
    """Announce a step to the workers, after everything it reads has been written."""
    atomic_add(control + _STEP, 1)
