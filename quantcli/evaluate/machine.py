"""What this machine can do at most, and how much of it a model's steps ask for.

A decode step reads every weight once, so memory bounds it; a prompt multiplies every weight with
many tokens, so the integer dots bound it. Both limits are measured on the executor's threads, with
the instruction set that QUANTCLI_ISA or the CPU chose.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import prod

import numpy as np

from quantcli.kernels import matmul, peaks
from quantcli.kernels.jit import OpKernel
from quantcli.plan import Op, Plan
from quantcli.runtime.executor import Executor, aligned
from quantcli.runtime.memory import available_memory, kv_nbytes_per_token
from quantcli.runtime.oplist import OpList
from quantcli.runtime.weights import packed_nbytes

Clock = Callable[[], float]
RunOp = Callable[[OpKernel, np.ndarray], None]  # args: one record, `counter` left open

_READ_NBYTES = 512 << 20  # several times the last-level cache of any laptop
_LEAST_READ_NBYTES = 16 << 20
_N_LOOPS = 1 << 21  # of dots: some 10 ms, beside which waking the threads is little
_PRODUCTS = ("linear", "expert_linear", "head_linear")
_FEW = 0.01  # of the multiply-adds may be of plain floats: what routes rows to experts is
_ROUNDS = 2  # a sample is the best of so many


@dataclass(frozen=True, slots=True)
class Limits:
    """What the machine did at most: bytes read a second, int8 multiply-adds a second."""

    read_nbytes_per_s: float
    dot_macs_per_s: float

    def best(self, other: Limits) -> Limits:
        """Return the higher of each."""
        return Limits(
            max(self.read_nbytes_per_s, other.read_nbytes_per_s),
            max(self.dot_macs_per_s, other.dot_macs_per_s),
        )


class Peaks:
    """Measures the limits on threads that it is lent, with buffers of its own."""

    def __init__(
        self,
        run_op: RunOp,
        n_threads: int,
        read_nbytes: int | None = None,
        n_loops: int = _N_LOOPS,
        clock: Clock = time.perf_counter,
    ) -> None:
        """Compile both loops and touch the memory.

        run_op       runs a kernel on n_threads threads, such as a model's own
        read_nbytes  how much to read; by default 512 MiB, or a quarter of what is available
        """
        if read_nbytes is None:
            read_nbytes = min(_READ_NBYTES, available_memory() // 4)
        n_chunks = max(read_nbytes, _LEAST_READ_NBYTES) // peaks.CHUNK_NBYTES
        self.memory = aligned(np.dtype("u1"), n_chunks * peaks.CHUNK_NBYTES)
        self.memory[:] = 1
        self.codes = aligned(np.dtype("u1"), peaks.CODES_NBYTES)
        self.codes[:] = 3
        self.activations = aligned(np.dtype("i1"), peaks.ACTIVATIONS_NBYTES)
        self.activations[:] = 5
        self.out = aligned(np.dtype("i4"), n_threads * peaks.OUT_NBYTES // 4)
        self.n_loops = n_loops
        self._n_threads = n_threads
        self._run_op = run_op
        self._clock = clock
        self._read = self._args(start=self.memory, n=n_chunks)
        self._multiply = self._args(start=self.codes, activations=self.activations, n=n_loops)
        self._seconds(peaks.read, self._read)
        self._seconds(peaks.multiply, self._multiply)

    @property
    def nbytes(self) -> int:
        """Return the bytes of memory that the buffers hold."""
        return self.memory.nbytes

    def bytes_per_s(self) -> float:
        """Return how fast memory is read."""
        return self.memory.size / self._seconds(peaks.read, self._read)

    def macs_per_s(self) -> float:
        """Return how many int8 multiply-adds are done a second."""
        n_macs = self.n_loops * peaks.MACS_PER_LOOP * self._n_threads
        return n_macs / self._seconds(peaks.multiply, self._multiply)

    def sample(self) -> Limits:
        """Return the best of a few measurements of each."""
        return Limits(
            max(self.bytes_per_s() for _ in range(_ROUNDS)),
            max(self.macs_per_s() for _ in range(_ROUNDS)),
        )

    def _seconds(self, kernel: OpKernel, args: np.ndarray) -> float:
        assert kernel.address  # compiles
        began = self._clock()
        self._run_op(kernel, args)
        return self._clock() - began

    def _args(self, **fields: int | np.ndarray) -> np.ndarray:
        args = np.zeros(1, peaks.ARGS)
        for name, value in (fields | {"out": self.out}).items():
            args[name] = value.ctypes.data if isinstance(value, np.ndarray) else value
        return args


def lend(executor: Executor) -> RunOp:
    """Return a function that runs a kernel on an executor's threads."""

    def run_op(kernel: OpKernel, args: np.ndarray) -> None:
        calls = OpList()
        calls.add(kernel, args, set(), set())
        ops = calls.build()
        ops["barrier"] = 1
        executor.run(ops)

    return run_op


def read_bandwidth(n_threads: int) -> int:
    """Return how many bytes a second `n_threads` threads read from memory, best of five."""
    executor = Executor(n_threads)
    try:
        measured = Peaks(lend(executor), n_threads, n_loops=1)
        return int(max(measured.bytes_per_s() for _ in range(5)))
    finally:
        executor.close()


def _share_read(op: Op) -> float:
    """Return how much of a product's weights a row reads: of experts, those that it goes to."""
    return op.routing.n_used / op.routing.n_experts if op.routing else 1.0


@dataclass(frozen=True, slots=True)
class Demand:
    """What a model's steps ask of the machine.

    weights_nbytes     packed weights that a step with logits reads, however many rows it has; of
                       experts, those that one row goes to
    macs_per_token     multiply-adds of a prompt's token: all matrices but the output, which only
                       rows with logits pay for
    integer            whether all but a few are int8 dots; plain floats are not
    """

    plan: Plan
    kv_type: str
    weights_nbytes: int
    macs_per_token: int
    integer: bool

    @classmethod
    def of(cls, plan: Plan, formats: Mapping[str, str], kv_type: str) -> Demand:
        """Return the demand of a plan; `formats` maps tensor names to block formats."""
        shares = {op.weights[0]: _share_read(op) for op in plan.ops if op.kind in _PRODUCTS}
        macs = {name: share * prod(plan.weights[name]) for name, share in shares.items()}
        floats = sum(m for n, m in macs.items() if matmul.module(formats[n]).PANEL.is_float)
        nbytes = sum(s * packed_nbytes(plan.weights[n], formats[n]) for n, s in shares.items())
        return cls(
            plan=plan,
            kv_type=kv_type,
            weights_nbytes=round(nbytes),
            macs_per_token=round(sum(list(macs.values())[:-1])),  # most rows need no logits
            integer=floats <= _FEW * sum(macs.values()),
        )

    def kv_nbytes(self, n_keys: float) -> float:
        """Return the bytes of keys and values that a row reads which sees `n_keys` positions."""
        total = 0.0
        for heads in (op.heads for op in self.plan.ops if op.heads):
            seen = min(n_keys, heads.window or n_keys)
            total += seen * kv_nbytes_per_token(
                1, heads.n_kv_heads, heads.head_dim, self.kv_type, heads.value_dim
            )
        return total

    def read_share(
        self, limits: Limits, steps_per_s: float, n_sequences: int, n_keys: float
    ) -> float:
        """Return how much of the plain-read speed decode steps reach.

        n_keys   positions that a row sees, on average
        """
        nbytes = self.weights_nbytes + n_sequences * self.kv_nbytes(n_keys)
        return nbytes * steps_per_s / limits.read_nbytes_per_s

    def dot_share(self, limits: Limits, tokens_per_s: float) -> float | None:
        """Return how much of the dots' speed a prompt reaches; None if it is not all dots."""
        if not self.integer:
            return None
        return self.macs_per_token * tokens_per_s / limits.dot_macs_per_s
