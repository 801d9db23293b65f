"""Running some ops of a plan by themselves, in f32, over rows whose buffers are given.

What calibration needs: one layer's weights in memory at a time, exact activations, and the inputs
of matrices to look at. The same lowering and the same kernels as a model's; weights are packed as
f32, so that activations are not rounded to int8.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from quantcli.errors import Cancelled
from quantcli.formats import F32
from quantcli.kernels import matmul
from quantcli.kernels.matmul import PANEL_ROWS
from quantcli.kvcache import create
from quantcli.plan import ENTRIES, OUTPUTS, TOKENS, Buffer, Op, Plan
from quantcli.qtensor import QTensor
from quantcli.runtime.executor import Executor
from quantcli.runtime.kv_storage import KvStorage, PageTables
from quantcli.runtime.lower import Lowering, Sources
from quantcli.runtime.rope_tables import factors_of, rope_angles
from quantcli.runtime.step import Batch, Step
from quantcli.runtime.weights import (
    ALIGNMENT,
    Matrix,
    Weights,
    is_matrix,
    pack,
    packed_nbytes,
    padded,
)

I64 = npt.NDArray[np.int64]

_FORMAT = "f32"
_SLAB = 1 << 22  # weights decoded and packed at a time


def all_rows(plan: Plan) -> list[Op]:
    """Return a plan's ops without `select`: every row goes through to the end."""
    now: dict[Buffer, Buffer] = {}
    ops = []
    for op in plan.ops:
        inputs = tuple(now[buffer] for buffer in op.inputs)
        if op.kind == "select":
            now[op.output] = inputs[0]
            continue
        axis = {OUTPUTS: TOKENS, ENTRIES[OUTPUTS]: ENTRIES[TOKENS]}.get(op.output.axis)
        now[op.output] = replace(op.output, axis=axis) if axis else op.output
        ops.append(replace(op, inputs=inputs, output=now[op.output]))
    return ops


def inputs_of(ops: Sequence[Op]) -> list[Buffer]:
    """Return the buffers that ops read and none of them writes, in the order of first use."""
    written = {op.output for op in ops}
    read = dict.fromkeys(buffer for op in ops for buffer in op.inputs)
    return [buffer for buffer in read if buffer not in written]


class Stretch:
    """Consecutive ops, compiled, with their weights in f32. Runs one sequence at a time.

    They may begin and end anywhere but between a query's or key's matrix and its attention.

    inputs   buffers to fill before a run, by name of the plan's
    outputs  buffers to look at after it
    """

    def __init__(
        self,
        ops: Sequence[Op],
        outputs: Iterable[Buffer],
        weights: Mapping[str, F32 | QTensor],
        executor: Executor,
        *,
        max_rows: int,
        kv_type: str = "f16",
    ) -> None:
        """Pack the weights and lower the ops.

        outputs   of these ops or given; their memory is not reused
        weights   all that the ops read, in the plan's shapes
        max_rows  longest sequence
        """
        self._executor = executor
        plan = _plan(ops, outputs)
        heads = [op.heads for op in plan.ops if op.heads]
        cache = create("contiguous", context=-(-max_rows // 16) * 16, n_sequences=1)
        cache.reserve(0, max_rows)
        self._tables = PageTables(cache)
        self._step = Step(max_rows, max_rows)
        self._weights = _pack(plan, weights, executor)
        ropes = dict.fromkeys(op.rope for op in plan.ops if op.rope)
        positions = np.arange(max_rows)
        angles = {}
        for rope in ropes:
            name = factors_of(rope, max_rows)
            factors = self._weights.vectors[name][: rope.n_rot // 2] if name else None
            angles[rope] = np.concatenate(rope_angles(rope, factors, positions), axis=1)
        sources = Sources(
            weights=self._weights,
            kv=KvStorage(heads, kv_type, cache),
            step=self._step,
            angles=angles,
            n_threads=executor.n_threads,
            max_rows={TOKENS: max_rows},
        )
        self._lowering = Lowering(plan, sources)
        self._calls = self._lowering.trunk
        self._ops = self._calls.build() if self._calls.calls else None
        if self._ops is not None:
            self._ops["barrier"] = self._calls.barriers(frozenset())
        self._n_rows = 0
        self.inputs = tuple(self._lowering.given)
        self.outputs = tuple(self._lowering.kept)

    def run(self, values: Mapping[Buffer, F32], n_rows: int) -> dict[Buffer, F32]:
        """Run the ops over one sequence from its start.

        values   f32 (n_rows, width) for each of `inputs`
        return   f32 (n_rows, width) for each of `outputs`, valid until the next run; of entries of
                 experts, a row for each

        Raises Cancelled if `Executor.cancel` was called meanwhile.
        """
        for buffer, region in self._lowering.given.items():
            region.array[:n_rows, : buffer.width] = values[buffer]
        positions = list(range(n_rows))
        batch = Batch([0] * n_rows, positions, [0] * n_rows, [])
        self._step.set_rows(batch, [self._tables.address(0)] * n_rows)
        self._step.words["private_tokens"] = 0  # the barriers are those of many rows
        if self._ops is not None and not self._executor.run(self._ops):
            raise Cancelled("stopped.")
        self._n_rows = n_rows
        return {
            buffer: region.array[: self._n_kept(buffer), : buffer.width]
            for buffer, region in self._lowering.kept.items()
        }

    def experts(self) -> I64:
        """Return the experts that each row of the last run went to: i64 (n_rows, n_used)."""
        return self._lowering.routes[TOKENS].ids[: self._n_rows]  # type: ignore[no-any-return]

    def experts_of_entries(self) -> I64:
        """Return the expert that made each entry of the last run: i64 (n_rows * n_used,)."""
        ids = self.experts()
        places = self._lowering.routes[TOKENS].places[: self._n_rows]
        experts = np.empty(ids.size, np.int64)
        experts[places.reshape(-1)] = ids.reshape(-1)
        return experts

    def _n_kept(self, buffer: Buffer) -> int:
        """Return the rows that a buffer has after a run."""
        is_entry = buffer.axis == ENTRIES[TOKENS]
        return self._n_rows * (self.experts().shape[1] if is_entry else 1)


def _plan(ops: Sequence[Op], outputs: Iterable[Buffer]) -> Plan:
    """Return the ops between pseudo-ops that give their inputs and keep what is looked at."""
    outputs = tuple(dict.fromkeys(outputs))
    written = {op.output for op in ops}
    wanted = dict.fromkeys([*inputs_of(ops), *(b for b in outputs if b not in written)])
    plan = Plan()
    plan.ops = [Op("given", (), buffer) for buffer in wanted]
    n_attentions = 0
    for op in ops:
        assert op.kind != "embed", "look tokens up beforehand"
        # The storage of keys and values counts the attentions of these ops.
        plan.ops.append(replace(op, layer=n_attentions))
        n_attentions += op.kind == "attention"
    for i, buffer in enumerate(outputs):
        plan.ops.append(Op("keep", (buffer,), Buffer(f"kept {i}", buffer.width)))
    plan.weights = {}
    return plan


def _pack(plan: Plan, weights: Mapping[str, F32 | QTensor], executor: Executor) -> Weights:
    """Return every weight that the ops read, matrices in f32 panels."""
    names = dict.fromkeys(weights_of(plan.ops))
    matrices = [name for name in names if is_matrix(name, weights[name].shape)]
    nbytes = sum(packed_nbytes(weights[name].shape, _FORMAT) + ALIGNMENT for name in matrices)
    packed = Weights(nbytes)
    panel = matmul.module(_FORMAT).PANEL
    for name in names:
        weight = weights[name]
        if name in matrices:
            _pack_matrix(weight, packed.take(name, panel, weight.shape), executor)
        else:
            vector = weight.dequantize() if isinstance(weight, QTensor) else weight
            packed.vectors[name] = padded(vector)
    return packed


def weights_of(ops: Iterable[Op]) -> Iterator[str]:
    """Yield the names of the tensors that ops read, some more than once."""
    for op in ops:
        yield from op.weights
        if op.rope:
            yield from filter(None, (op.rope.freq_factors, op.rope.long_factors))
        if op.heads and op.heads.sinks:
            yield op.heads.sinks


def _pack_matrix(weight: F32 | QTensor, matrix: Matrix, executor: Executor) -> None:
    """Pack one matrix, or one expert's after the other, in slabs of whole panels."""
    width = matrix.n_blocks * matrix.panel.n_inputs
    slab_rows = max(_SLAB // width // PANEL_ROWS, 1) * PANEL_ROWS
    slab = np.zeros((min(slab_rows, matrix.n_out), width), np.float32)
    flat = weight if isinstance(weight, QTensor) else weight.reshape(-1, matrix.n_in)
    for expert in range(matrix.n_experts):
        for row in range(0, matrix.n_out, slab_rows):
            n_rows = min(slab_rows, matrix.n_out - row)
            start = expert * matrix.n_out + row
            stop = start + n_rows
            slab[:n_rows, : matrix.n_in] = (
                flat.rows(start, stop).dequantize()
                if isinstance(flat, QTensor)
                else flat[start:stop]
            )
            panel = matrix.address + expert * matrix.expert_nbytes
            panel += row // PANEL_ROWS * matrix.panel_nbytes
            pack(matrix, slab, n_rows, 4 * matrix.panel.n_inputs, panel, executor)
