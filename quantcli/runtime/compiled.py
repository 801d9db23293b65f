"""The compiled backend: a lowered plan, its weights and cache, and the threads that run it."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from quantcli.checkpoint import Checkpoint
from quantcli.errors import Cancelled
from quantcli.formats import F32
from quantcli.kernels import attention, heads, matmul
from quantcli.kernels.activations import stage
from quantcli.kernels.jit import OpKernel
from quantcli.kvcache import Copy, KVCache
from quantcli.plan import OUTPUTS, TOKENS, Plan, Rope
from quantcli.runtime.executor import Executor
from quantcli.runtime.hidden import final_norm, normalized
from quantcli.runtime.kv_storage import KvStorage, PageTables
from quantcli.runtime.lower import Lowering, Sources
from quantcli.runtime.oplist import OpList
from quantcli.runtime.rope_tables import factors_of, rope_angles
from quantcli.runtime.sizing import Sizing
from quantcli.runtime.staging import FLOAT, INT8
from quantcli.runtime.step import Batch, Step
from quantcli.runtime.weights import Weights, is_matrix

Progress = Callable[[str, int, int], None]

_ANGLE_ROWS = 256  # positions whose angles are computed at a time


class _Segment:
    """An op array that runs as a whole, with the barriers of either mode."""

    def __init__(self, calls: OpList, executor: Executor) -> None:
        self._ops = calls.build()
        self._calls = calls  # owns the arguments
        self._barriers = (calls.barriers(frozenset()), calls.barriers(frozenset({INT8, FLOAT})))
        self._executor = executor
        self._mode = -1

    def run(self, private: bool) -> bool:
        """Run to the end, and return True; False if it was cut short."""
        if self._mode != private:
            self._mode = int(private)
            self._ops["barrier"] = self._barriers[self._mode]
        return self._executor.run(self._ops)


class CompiledBackend:
    """Runs a plan with the compiled kernels. Owns every array an op points at."""

    def __init__(
        self,
        checkpoint: Checkpoint,
        sizing: Sizing,
        cache: KVCache,
        n_threads: int,
        kv_type: str,
        progress: Progress | None = None,
        executor: Executor | None = None,
    ) -> None:
        """Compile what is needed, read the weights, lower the plan.

        executor   another backend's, to compute in turns on its threads; it stays the other's
        """
        plan = sizing.plan
        # First of all, since it refuses heads that do not fit the cache.
        self._kv = KvStorage([op.heads for op in plan.ops if op.heads], kv_type, cache)
        self._tables = PageTables(cache)
        _compile(_kernels(checkpoint, plan, kv_type), progress)
        self._owns_executor = executor is None
        self._executor = executor or Executor(n_threads)
        try:
            self._weights = Weights.load(checkpoint, plan.weights, self._executor, progress)
            self._angles = _Angles(plan, self._weights, sizing.memory.context)
        except BaseException:
            self.close()
            raise
        self._step = Step(sizing.max_rows, sizing.max_outputs)
        self._max_outputs = sizing.max_outputs
        self._n_vocab = plan.logits.width
        sources = Sources(
            weights=self._weights,
            kv=self._kv,
            step=self._step,
            angles=self._angles.tables,
            n_threads=n_threads,
            max_rows={TOKENS: sizing.max_rows, OUTPUTS: sizing.max_outputs},
        )
        self._lowering = Lowering(plan, sources)
        self._logits = self._lowering.logits.array[:, : self._n_vocab]
        self._trunk = _Segment(self._lowering.trunk, self._executor)
        self._head = _Segment(self._lowering.head, self._executor)
        self._is_cancelled = False  # since the forward that runs, or ran last, began

    @property
    def executor(self) -> Executor:
        """The threads, for another backend to share."""
        return self._executor

    def forward(self, batch: Batch) -> F32:
        """Return f32 (len(batch.outputs), n_vocab), valid until the next call."""
        self._run_trunk(batch)
        n, most = len(batch.outputs), self._max_outputs
        if n <= most:
            self._run_head(batch.outputs)
            return self._logits[:n]
        logits = np.empty((n, self._n_vocab), np.float32)
        start = 0
        for part in self._heads(batch.outputs):
            logits[start : start + len(part)] = part
            start += len(part)
        return logits

    def slices(self, batch: Batch) -> Iterator[F32]:
        """Yield the same logits a few rows at a time, each valid until the next is asked for."""
        self._run_trunk(batch)
        yield from self._heads(batch.outputs)

    def copy_slots(self, copies: list[Copy]) -> None:
        """Copy slots between pages of the KV cache."""
        self._kv.copy(copies)

    def hidden(self, batch: Batch) -> F32:
        """Return f32 (len(batch.outputs), width), the states after the final norm."""
        norm = final_norm(self._lowering.plan)
        source = norm.inputs[0]
        region = self._lowering.placed[source]
        self._run_trunk(batch)
        rows = np.empty((len(batch.outputs), source.width), np.float32)
        start = 0
        # The head computes logits as well, from these rows; they are left as they were.
        for part in self._heads(batch.outputs):
            rows[start : start + len(part)] = region.array[: len(part), : source.width]
            start += len(part)
        return normalized(rows, norm, self._weights.vectors)

    def run_op(self, kernel: OpKernel, args: np.ndarray) -> None:
        """Run a kernel on the threads that compute the model."""
        calls = OpList()
        calls.add(kernel, args, set(), set())
        if not _Segment(calls, self._executor).run(private=False):
            raise Cancelled("stopped.")

    def cancel(self) -> None:
        """Make a forward that is running end at its next op."""
        self._is_cancelled = True
        self._executor.cancel()

    def close(self) -> None:
        """Stop the threads."""
        if self._owns_executor:
            self._executor.close()

    def _run_trunk(self, batch: Batch) -> None:
        self._executor.forget_cancel()
        self._is_cancelled = False
        addresses = {s: self._tables.address(s) for s in set(batch.sequences)}
        self._step.set_rows(batch, [addresses[s] for s in batch.sequences])
        self._angles.fill(max(batch.positions) + 1)
        self._run(self._trunk, private=len(batch.tokens) == 1)

    def _heads(self, outputs: list[int]) -> Iterator[F32]:
        """Yield the logits of the trunk's rows, as many at a time as there is room for."""
        for start in range(0, len(outputs), self._max_outputs):
            rows = outputs[start : start + self._max_outputs]
            self._run_head(rows)
            yield self._logits[: len(rows)]

    def _run_head(self, rows: list[int]) -> None:
        if rows:
            self._step.set_outputs(rows)
            self._run(self._head, private=len(rows) == 1)

    def _run(self, segment: _Segment, private: bool) -> None:
        # The executor forgets a cancel that comes between two segments.
        if not segment.run(private) or self._is_cancelled:
            raise Cancelled("stopped.")


class _Angles:
    """RoPE's cosines and sines of every position, computed as far as positions have come."""

    def __init__(self, plan: Plan, weights: Weights, context: int) -> None:
        self._context = context
        self._filled = 0
        self._factors: dict[Rope, F32 | None] = {}
        self.tables: dict[Rope, np.ndarray] = {}
        for op in plan.ops:
            if op.rope and op.rope not in self.tables:
                rope = op.rope
                name = factors_of(rope, context)
                self._factors[rope] = weights.vectors[name][: rope.n_rot // 2] if name else None
                self.tables[rope] = np.zeros((context, rope.n_rot), np.float32)
        self.fill(1)  # now, since it refuses frequency factors that are none

    def fill(self, n_positions: int) -> None:
        """Make sure that positions [0, n_positions) are there."""
        if n_positions <= self._filled:
            return
        stop = min(-(-n_positions // _ANGLE_ROWS) * _ANGLE_ROWS, self._context)
        for rope, table in self.tables.items():
            positions = np.arange(self._filled, stop)
            cos, sin = rope_angles(rope, self._factors[rope], positions)
            table[self._filled : stop, : rope.n_rot // 2] = cos
            table[self._filled : stop, rope.n_rot // 2 :] = sin
        self._filled = stop


def _kernels(checkpoint: Checkpoint, plan: Plan, kv_type: str) -> list[OpKernel]:
    """Return the kernels that take long to compile and that a plan needs."""
    kernels: list[OpKernel] = [stage, heads.PREPARE[kv_type], attention.ATTENTION[kv_type]]
    formats = {
        checkpoint.tensors[name].format.name
        for name, shape in plan.weights.items()
        if is_matrix(name, shape)
    }
    for name in sorted(formats):
        kernels += [matmul.module(name).pack, matmul.module(name).matmul]
    embeds = {op.weights[0] for op in plan.ops if op.kind == "embed"}
    kernels += [matmul.module(checkpoint.tensors[name].format.name).embed for name in embeds]
    return kernels


def _compile(kernels: list[OpKernel], progress: Progress | None) -> None:
    """Compile kernels, or load them from disk, before any thread could need them."""
    for done, kernel in enumerate(kernels):
        if progress and not kernel.is_compiled:
            progress("preparing kernels for this CPU, slow only once", done, len(kernels))
        assert kernel.address
    if progress:
        progress("preparing kernels for this CPU, slow only once", len(kernels), len(kernels))
