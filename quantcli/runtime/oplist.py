"""The list of kernel calls that lowering grows, and the barriers it needs between them."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from quantcli.kernels.jit import OpKernel
from quantcli.runtime.executor import OP, aligned


@dataclass(slots=True)
class Call:
    """One kernel call: its arguments and the memory it reads and writes, by region name."""

    kernel: OpKernel
    args: np.ndarray  # one record of the kernel's ARGS; owned here for as long as ops point at it
    reads: frozenset[str]
    writes: frozenset[str]


@dataclass(slots=True)
class OpList:
    """Calls in order; `build` turns them into an op array for the executor."""

    calls: list[Call] = field(default_factory=list)

    def add(self, kernel: OpKernel, args: np.ndarray, reads: set[str], writes: set[str]) -> np.void:
        """Append a call and return its argument record, to be filled in."""
        self.calls.append(Call(kernel, args, frozenset(reads), frozenset(writes)))
        record: np.void = args[0]
        return record

    def build(self) -> np.ndarray:
        """Return the op array, without barriers. Each call counts its work in its own entry."""
        ops = aligned(OP, len(self.calls))
        for i, call in enumerate(self.calls):
            ops[i]["kernel"] = call.kernel.address
            ops[i]["args"] = call.args.ctypes.data
            call.args["counter"] = ops.ctypes.data + i * OP.itemsize
        return ops

    def barriers(self, private: frozenset[str]) -> np.ndarray:
        """Return for each call whether threads must meet after it: i64 (n_calls).

        private   regions of which each thread has its own copy

        A call waits if it reads what was written, or writes what was read or written, since the
        last barrier.
        """
        barriers = np.zeros(len(self.calls), np.int64)
        read: set[str] = set()
        written: set[str] = set()
        for i, call in enumerate(self.calls):
            reads, writes = call.reads - private, call.writes - private
            if reads & written or writes & (read | written):
                barriers[i - 1] = 1
                read, written = set(), set()
            read |= reads
            written |= writes
        barriers[-1] = 1
        return barriers
