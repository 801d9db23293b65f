"""What lowering a plan has in common for all kinds of ops: regions, their uses, lists of calls."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from quantcli.kernels.jit import OpKernel
from quantcli.plan import ENTRIES, OUTPUTS, TOKENS, Buffer, Op, Plan, Rope
from quantcli.runtime.fusion import Fusion
from quantcli.runtime.kv_storage import KvStorage
from quantcli.runtime.oplist import OpList
from quantcli.runtime.regions import Region, RegionPool
from quantcli.runtime.routes import Routes
from quantcli.runtime.staging import Staging
from quantcli.runtime.step import Step
from quantcli.runtime.weights import Weights


@dataclass(slots=True)
class Sources:
    """What a plan is lowered against."""

    weights: Weights
    kv: KvStorage
    step: Step
    angles: dict[Rope, np.ndarray]  # f32 (context, n_rot): cosines then sines of each position
    n_threads: int
    max_rows: dict[str, int]  # of each axis


class Lowerer:
    """A plan on its way to calls: `trunk` and `head` grow as its ops are read in order."""

    def __init__(self, plan: Plan, sources: Sources) -> None:
        """Make room for what changes from step to step; nothing is lowered yet."""
        self.plan = plan
        self.sources = sources
        self.fusion = Fusion(plan)
        self.routes = _routes(plan, sources)
        max_rows = dict(sources.max_rows)
        max_rows |= {ENTRIES[axis]: routes.entries for axis, routes in self.routes.items()}
        self.pool = RegionPool(max_rows)
        self.trunk, self.head = OpList(), OpList()
        self.ops = self.trunk
        self.staging = Staging(sources.n_threads, max_rows, sources.step)
        self.regions: dict[Buffer, Region] = {}
        self.placed: dict[Buffer, Region] = {}  # every buffer, if only for a while
        self.uses = {buffer: 0 for buffer in self.fusion.producers}
        self.done: set[Buffer] = set()
        for op in plan.ops:
            if not self.fusion.is_fused(op):
                for root in self.inputs_of(op):
                    self.uses[root] += 1

    def inputs_of(self, op: Op) -> list[Buffer]:
        """Return the stored buffers an op reads, one entry a read."""
        return [root for buffer in op.inputs for root in self.fusion.roots(buffer)]

    def use(self, op: Op) -> None:
        """Take note that an op has read its inputs; give back what nothing reads any more."""
        for root in self.inputs_of(op):
            self.uses[root] -= 1
            if self.uses[root] == 0:
                self._release(root)

    def _release(self, buffer: Buffer) -> None:
        """Give a buffer's region back, unless a later buffer, or a part, lives in it."""
        whole = self.regions.pop(buffer).root
        if not any(region.root is whole for region in self.regions.values()):
            self.pool.give_back(whole)

    def place(self, buffer: Buffer, like: Buffer | None = None) -> Region:
        """Give a buffer a region: its own, or that of one which nothing else reads any more."""
        region = self.regions[like] if like else self.pool.take(buffer)
        self.regions[buffer] = self.placed[buffer] = region
        return region

    def vector(self, name: str) -> int:
        """Return the address of a vector of weights."""
        return int(self.sources.weights.vectors[name].ctypes.data)

    def rows_word(self, axis: str) -> int:
        """Return the address of the number of rows of an axis."""
        for rows, entries in ENTRIES.items():
            if axis == entries:
                return self.routes[rows].n_entries
        return self.sources.step.word("n_outputs" if axis == OUTPUTS else "n_tokens")

    def call(self, kernel: OpKernel, dtype: np.dtype, reads: set[str], writes: set[str]) -> np.void:
        """Append a call and return its arguments, to be filled in."""
        return self.ops.add(kernel, np.zeros(1, dtype), reads, writes)


def _routes(plan: Plan, sources: Sources) -> dict[str, Routes]:
    """Return the tables of each axis on which rows are routed."""
    tables = {}
    for axis in (TOKENS, OUTPUTS):
        ops: Sequence[Op] = [op for op in plan.ops if op.kind == "route"]
        routings = [op.routing for op in ops if op.output.axis == axis and op.routing]
        if routings:
            tables[axis] = Routes(axis, routings, sources.max_rows[axis], sources.n_threads)
    return tables
