"""Turn a plan into op arrays of addresses for the compiled executor.

The plan is cut at its first `select`: the trunk runs once a step, the head once for each slice of
rows whose logits are wanted. They share no region, so that every slice finds the trunk's as it was.
Everything an address points at is owned by the Lowered plan or what it holds.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from quantcli.kernels import activations, attention, elementwise, embed, heads, matmul
from quantcli.kernels.matmul.rows import ARGS as MATMUL_ARGS
from quantcli.plan import OUTPUTS, TOKENS, Buffer, Op, Plan, Rope
from quantcli.runtime.executor import N_COUNTERS
from quantcli.runtime.fusion import Fusion
from quantcli.runtime.kv_storage import KvStorage
from quantcli.runtime.oplist import OpList
from quantcli.runtime.regions import Region, RegionPool
from quantcli.runtime.staging import Staging
from quantcli.runtime.step import Step
from quantcli.runtime.weights import Weights

_HEAD_CHUNK = 4  # heads of one row a thread prepares at a time
_MATMUL_CHUNKS = 4  # chunks of a thread's share of panels, so that others can help it finish
_STYLES = {"norm": heads.NORM, "neox": heads.NEOX}
_ACTS = {"silu": elementwise.gated_silu, "gelu_tanh": elementwise.gated_gelu_tanh}


@dataclass(slots=True)
class Sources:
    """What a plan is lowered against."""

    weights: Weights
    kv: KvStorage
    step: Step
    angles: dict[Rope, np.ndarray]  # f32 (context, n_rot): cosines then sines of each position
    n_threads: int
    max_rows: dict[str, int]  # of each axis


class Lowering:
    """Lowers one plan: `trunk` and `head` grow as its ops are read in order."""

    def __init__(self, plan: Plan, sources: Sources) -> None:
        """Lower every op of a plan."""
        self.plan = plan
        self.sources = sources
        self.fusion = Fusion(plan)
        self.pool = RegionPool(sources.max_rows)
        self.trunk, self.head = OpList(), OpList()
        self.ops = self.trunk
        self.staging = Staging(sources.n_threads, sources.max_rows[TOKENS], sources.step)
        self.scratch = np.zeros(0, np.uint8)
        self.given: dict[Buffer, Region] = {}
        self.kept: dict[Buffer, Region] = {}
        self.placed: dict[Buffer, Region] = {}  # every buffer, if only for a while
        self._attention: list[np.void] = []
        self._regions: dict[Buffer, Region] = {}
        self._uses = {buffer: 0 for buffer in self.fusion.producers}
        self._done: set[Buffer] = set()
        for op in plan.ops:
            if not self.fusion.is_fused(op):
                for root in self._inputs(op):
                    self._uses[root] += 1
        for op in plan.ops:
            self._lower(op)
        self.staging.allocate()
        self._allocate_attention()

    @property
    def logits(self) -> Region:
        """Where the head leaves its logits."""
        return self._regions[self.plan.logits]

    def _inputs(self, op: Op) -> list[Buffer]:
        """Return the stored buffers an op reads, one entry a read."""
        return [root for buffer in op.inputs for root in self.fusion.roots(buffer)]

    def _lower(self, op: Op) -> None:
        if op.kind == "select":
            self.ops = self.head
        assert op.output.axis == (OUTPUTS if self.ops is self.head else TOKENS), op
        if self.fusion.is_fused(op):
            return
        if op.output not in self._done:
            getattr(self, f"_lower_{op.kind}")(op)
        for root in self._inputs(op):
            self._uses[root] -= 1
            if self._uses[root] == 0:
                self._release(root)

    def _release(self, buffer: Buffer) -> None:
        """Give a buffer's region back, unless a later buffer lives in it."""
        region = self._regions.pop(buffer)
        if region not in self._regions.values():
            self.pool.give_back(buffer, region)

    def _place(self, buffer: Buffer, like: Buffer | None = None) -> Region:
        """Give a buffer a region: its own, or that of one which nothing else reads any more."""
        region = self._regions[like] if like else self.pool.take(buffer)
        self._regions[buffer] = self.placed[buffer] = region
        return region

    def _rows_word(self, axis: str) -> int:
        return self.sources.step.word("n_outputs" if axis == OUTPUTS else "n_tokens")

    # ---- one method for each kind of op

    def _lower_given(self, op: Op) -> None:
        """Make room for a buffer that whoever runs the ops fills, see `runtime.stretch`."""
        self.given[op.output] = self._place(op.output)

    def _lower_keep(self, op: Op) -> None:
        """Remember where a buffer lies that is looked at after the last op."""
        self.kept[op.inputs[0]] = self._regions[op.inputs[0]]

    def _lower_embed(self, op: Op) -> None:
        matrix = self.sources.weights.matrices[op.weights[0]]
        out = self._place(op.output)
        kernel = matmul.module(matrix.panel.name).embed
        a = self.ops.add(kernel, np.zeros(1, embed.ARGS), set(), {out.name})
        a["n_rows"] = self._rows_word(op.output.axis)
        a["tokens"] = self.sources.step.tokens.ctypes.data
        a["weights"], a["panel_nbytes"] = matrix.address, matrix.panel_nbytes
        a["block_nbytes"], a["n_blocks"] = matrix.panel.block_nbytes, matrix.n_blocks
        a["block_inputs"] = matrix.panel.n_inputs
        a["out"], a["out_stride"] = out.address, out.stride
        a["scale"] = op.number("scale")

    def _lower_linear(self, op: Op) -> None:
        weights = self.sources.weights
        matrix = weights.matrices[op.weights[0]]
        acts = self._stage(op, matrix.panel.is_float)
        add = self.fusion.residual_add(op)
        residual = add.inputs[0] if add else None
        in_place = residual in self._regions and self._uses[residual] == 1
        if in_place and add and residual:
            out = self._place(op.output, like=residual)
            self._regions[add.output] = self.placed[add.output] = out
            self._done.add(add.output)
        else:
            out = self._place(op.output)
        kernel = matmul.module(matrix.panel.name).matmul
        reads = {acts.name} | ({out.name} if in_place else set())
        a = self.ops.add(kernel, np.zeros(1, MATMUL_ARGS), reads, {out.name})
        self.staging.point(a, acts, matrix.panel)
        a["n_rows"] = self._rows_word(op.output.axis)
        a["weights"], a["panel_nbytes"] = matrix.address, matrix.panel_nbytes
        a["n_panels"], a["n_blocks"] = matrix.n_panels, matrix.n_blocks
        a["out"], a["out_stride"], a["is_add"] = out.address, out.stride, in_place
        if len(op.weights) > 1:
            a["bias"] = weights.vectors[op.weights[1]].ctypes.data
        a["n_shares"] = min(self.sources.n_threads, N_COUNTERS)
        a["chunk"] = max(1, matrix.n_panels // (self.sources.n_threads * _MATMUL_CHUNKS))

    def _stage(self, op: Op, is_float: bool):  # type: ignore[no-untyped-def]
        """Stage a linear's input, unless the linear before it has; return where it lies."""
        source = op.inputs[0]
        known = self.staging.current(source, is_float)
        if known:
            return known
        roots = self.fusion.roots(source)
        readers = [
            self.sources.weights.matrices[reader.weights[0]].panel
            for reader in self.fusion.readers[source]
            if reader.kind == "linear"
        ]
        acts = self.staging.begin(source, is_float, readers, self.ops is self.head)
        regions = [self._regions[root] for root in roots]
        args = np.zeros(1, activations.ARGS)
        a = self.ops.add(activations.stage, args, {r.name for r in regions}, {acts.name})
        self.staging.describe(a, acts)
        a["n_rows"] = self._rows_word(source.axis)
        a["x"], a["x_stride"] = regions[0].address, regions[0].stride
        a["width"], a["n_true"] = acts.width, source.width
        producer = self.fusion.producers[source]
        if source in self.fusion.staged and producer.kind == "rms_norm":
            a["transform"] = activations.RMS_NORM
            a["norm"] = self.sources.weights.vectors[producer.weights[0]].ctypes.data
            a["eps"] = producer.number("eps")
        elif source in self.fusion.staged:
            silu = producer.params["act"] == "silu"
            a["transform"] = activations.SILU if silu else activations.GELU_TANH
            a["up"] = regions[1].address
        return acts

    def _lower_attention(self, op: Op) -> None:
        shape, kv, step = op.heads, self.sources.kv, self.sources.step
        assert shape is not None
        assert op.layer is not None
        q, k = (self._regions[self.fusion.paths[b].source] for b in op.inputs[:2])
        v = self._regions[op.inputs[2]]
        self._lower_heads(op, q, k, v)
        out = self._place(op.output)
        cache = f"cache {op.layer}"
        kernel = attention.ATTENTION[kv.format.name]
        args = np.zeros(1, attention.ARGS)
        a = self.ops.add(kernel, args, {q.name, cache}, {out.name, "partials"})
        a["q"], a["q_stride"], a["out"] = q.address, q.stride, out.address
        a["head_dim"], a["n_heads"] = shape.head_dim, shape.n_heads
        a["window"], a["softcap"], a["scale"] = shape.window, shape.softcap, shape.scale
        if shape.sinks:
            a["sinks"] = self.sources.weights.vectors[shape.sinks].ctypes.data
        kv.point(a, op.layer)
        for name in ("n_tiles", "max_chunks"):
            a[name] = step.word(name)
        for name in ("positions", "tables", "tile_starts", "tile_rows"):
            a[name] = getattr(step, name).ctypes.data
        self._attention.append(a)

    def _lower_heads(self, op: Op, q: Region, k: Region, v: Region) -> None:
        """Lower what happens to single heads before attention, and the storing of k and v."""
        shape, kv, step = op.heads, self.sources.kv, self.sources.step
        assert shape is not None
        assert op.layer is not None
        q_path, k_path = (self.fusion.paths[buffer] for buffer in op.inputs[:2])
        regions = {q.name, k.name, v.name}
        writes = {q.name, k.name, f"cache {op.layer}"}
        a = self.ops.add(heads.PREPARE[kv.format.name], np.zeros(1, heads.ARGS), regions, writes)
        a["q"], a["k"], a["v"] = q.address, k.address, v.address
        a["q_stride"], a["k_stride"], a["v_stride"] = q.stride, k.stride, v.stride
        a["n_heads"], a["head_dim"] = shape.n_heads, shape.head_dim
        a["n_rows"] = step.word("n_tokens")
        a["positions"], a["tables"] = step.positions.ctypes.data, step.tables.ctypes.data
        a["chunk"] = _HEAD_CHUNK
        for name, path in (("q_norm", q_path), ("k_norm", k_path)):
            if path.norm:
                a[name] = self.sources.weights.vectors[path.norm.weights[0]].ctypes.data
                a["eps"] = path.norm.number("eps")
        ropes = [path.rope.rope for path in (q_path, k_path) if path.rope]
        assert len(ropes) in (0, 2), op
        if ropes and ropes[0]:
            assert ropes[0] == ropes[1], op
            a["style"], a["n_rot"] = _STYLES[ropes[0].style], ropes[0].n_rot
            a["angles"] = self.sources.angles[ropes[0]].ctypes.data
        kv.point(a, op.layer)
        self._attention.append(a)

    def _allocate_attention(self) -> None:
        """Make the scratch and the shared chunk results that attention and its heads use."""
        shapes = [op.heads for op in self.plan.ops if op.heads]
        n_threads, kv = self.sources.n_threads, self.sources.kv
        # Chunks of a row are worth sharing while there are fewer rows and heads than this.
        split = 2 * n_threads if n_threads > 1 else 0
        widest = max((s.head_dim for s in shapes), default=16)
        group = max((s.n_heads // s.n_kv_heads for s in shapes), default=1)
        own = -(-attention.scratch_nbytes(widest) // 128) * 128
        self.scratch = np.zeros(own * n_threads + 128, np.uint8)
        shared = attention.partials_nbytes(split, kv.max_chunks, group, widest)
        self.partials = np.zeros(max(shared, 1), np.uint8)
        self.done = np.zeros(max(split, 1), np.int64)
        start = self.scratch.ctypes.data
        for a in self._attention:
            a["scratch"], a["scratch_stride"] = start + -start % 128, own
            if "partials" in (a.dtype.names or ()):
                a["partials"], a["split_items"] = self.partials.ctypes.data, split
                a["done"] = self.done.ctypes.data

    def _lower_add(self, op: Op) -> None:
        x = op.inputs[0]
        post_norm = self.fusion.post_norms.get(op.inputs[1])
        y = post_norm.inputs[0] if post_norm else op.inputs[1]
        kernel = elementwise.add_norm if post_norm else elementwise.add
        a = self._lower_rows(op, kernel, x, y)
        if post_norm:
            a["norm"] = self.sources.weights.vectors[post_norm.weights[0]].ctypes.data
            a["value"] = post_norm.number("eps")

    def _lower_rms_norm(self, op: Op) -> None:
        assert not op.params["group"], "a norm over heads is read by attention only"
        a = self._lower_rows(op, elementwise.rms_norm, op.inputs[0])
        a["norm"] = self.sources.weights.vectors[op.weights[0]].ctypes.data
        a["value"] = op.number("eps")

    def _lower_gated(self, op: Op) -> None:
        self._lower_rows(op, _ACTS[str(op.params["act"])], *op.inputs)

    def _lower_scale(self, op: Op) -> None:
        self._lower_rows(op, elementwise.scale, op.inputs[0])["value"] = op.number("factor")

    def _lower_softcap(self, op: Op) -> None:
        self._lower_rows(op, elementwise.softcap, op.inputs[0])["value"] = op.number("cap")

    def _lower_select(self, op: Op) -> None:
        a = self._lower_rows(op, elementwise.select, op.inputs[0])
        a["rows"] = self.sources.step.outputs.ctypes.data

    def _lower_rows(self, op: Op, kernel, x: Buffer, y: Buffer | None = None):  # type: ignore[no-untyped-def]
        """Lower a row-wise op; it writes over its first input where nothing else reads that."""
        source, other = self._regions[x], self._regions[y] if y else None
        same = op.output.axis == x.axis and self._uses[x] == 1
        out = self._place(op.output, like=x if same else None)
        reads = {source.name} | ({other.name} if other else set())
        a = self.ops.add(kernel, np.zeros(1, elementwise.ARGS), reads, {out.name})
        a["n_rows"] = self._rows_word(op.output.axis)
        a["x"], a["x_stride"] = source.address, source.stride
        if other:
            a["y"], a["y_stride"] = other.address, other.stride
        a["out"], a["out_stride"] = out.address, out.stride
        a["width"], a["n_true"] = out.padded_width, op.output.width
        return a
