"""Lowering of attention, and of what happens to single heads before it."""

from __future__ import annotations

import numpy as np

from quantcli.kernels import attention, heads
from quantcli.plan import Heads, Op
from quantcli.runtime.lowering import Lowerer, Sources
from quantcli.runtime.regions import Region
from quantcli.runtime.rope_tables import temperatures

_HEAD_CHUNK = 4  # heads of one row a thread prepares at a time
_STYLES = {"norm": heads.NORM, "neox": heads.NEOX}


class AttentionScratch:
    """Scratch and shared chunk results that the attentions of a plan use one after the other."""

    def __init__(self, shapes: list[Heads], sources: Sources) -> None:
        """Make room for the widest of them."""
        n_threads, kv = sources.n_threads, sources.kv
        # Chunks of a row are worth sharing while there are fewer rows and heads than this.
        self._split = 2 * n_threads if n_threads > 1 else 0
        widest = max((s.head_dim for s in shapes), default=16)
        group = max((s.n_heads // s.n_kv_heads for s in shapes), default=1)
        self._own = -(-attention.scratch_nbytes(widest) // 128) * 128
        self._scratch = np.zeros(self._own * n_threads + 128, np.uint8)
        shared = attention.partials_nbytes(self._split, kv.max_chunks, group, widest)
        self._partials = np.zeros(max(shared, 1), np.uint8)
        self._done = np.zeros(max(self._split, 1), np.int64)

    def point(self, a: np.void) -> None:
        """Tell an op where its scratch lies."""
        start = self._scratch.ctypes.data
        a["scratch"], a["scratch_stride"] = start + -start % 128, self._own
        if "partials" in (a.dtype.names or ()):
            a["partials"], a["split_items"] = self._partials.ctypes.data, self._split
            a["done"] = self._done.ctypes.data


class AttentionLowerer(Lowerer):
    """Lowers attention; see `lower.Lowering`."""

    _scratch: AttentionScratch | None = None
    _temperatures: dict[tuple[float, int], np.ndarray] | None = None

    @property
    def scratch(self) -> AttentionScratch:
        """What the plan's attentions share."""
        if self._scratch is None:
            shapes = [op.heads for op in self.plan.ops if op.heads]
            self._scratch = AttentionScratch(shapes, self.sources)
        return self._scratch

    def _lower_attention(self, op: Op) -> None:
        shape, kv, step = op.heads, self.sources.kv, self.sources.step
        assert shape is not None
        assert op.layer is not None
        q, k = (self.regions[self.fusion.paths[b].source] for b in op.inputs[:2])
        self._lower_heads(op, shape, q, k)
        out = self.place(op.output)
        cache = f"cache {op.layer}"
        kernel = attention.ATTENTION[kv.format.name]
        a = self.call(kernel, attention.ARGS, {q.name, cache}, {out.name, "partials"})
        a["q"], a["q_stride"] = q.address, q.stride
        a["out"], a["out_stride"] = out.address, out.stride
        a["head_dim"], a["n_heads"] = shape.head_dim, shape.n_heads
        a["value_dim"] = shape.value_width
        a["window"], a["softcap"], a["scale"] = shape.window, shape.softcap, shape.scale
        if shape.sinks:
            a["sinks"] = self.vector(shape.sinks)
        kv.point(a, op.layer)
        for name in ("n_tiles", "max_chunks"):
            a[name] = step.word(name)
        for name in ("positions", "tables", "tile_starts", "tile_rows"):
            a[name] = getattr(step, name).ctypes.data
        self.scratch.point(a)

    def _lower_heads(self, op: Op, shape: Heads, q: Region, k: Region) -> None:
        """Lower what happens to single heads before attention, and the storing of k and v."""
        kv, step = self.sources.kv, self.sources.step
        assert op.layer is not None
        v = self.regions[op.inputs[2]]
        regions = {q.name, k.name, v.name}
        writes = {q.name, k.name, f"cache {op.layer}"}
        a = self.call(heads.PREPARE[kv.format.name], heads.ARGS, regions, writes)
        a["q"], a["k"], a["v"] = q.address, k.address, v.address
        a["q_stride"], a["k_stride"], a["v_stride"] = q.stride, k.stride, v.stride
        a["n_heads"], a["head_dim"] = shape.n_heads, shape.head_dim
        a["value_dim"] = shape.value_width
        a["n_rows"] = step.word("n_tokens")
        a["positions"], a["tables"] = step.positions.ctypes.data, step.tables.ctypes.data
        a["chunk"] = _HEAD_CHUNK
        self._point_paths(a, op)
        if shape.temperature:
            a["temperatures"] = self._temperature_table(shape).ctypes.data
        kv.point(a, op.layer)
        self.scratch.point(a)

    def _point_paths(self, a: np.void, op: Op) -> None:
        """Tell a heads op how q and k are normed and rotated."""
        q_path, k_path = (self.fusion.paths[buffer] for buffer in op.inputs[:2])
        assert q_path.norm_last == k_path.norm_last, op
        a["norm_last"] = q_path.norm_last
        for name, path in (("q_norm", q_path), ("k_norm", k_path)):
            if path.norm:
                a[name] = self.vector(path.norm.weights[0])
                a["eps"] = path.norm.number("eps")
        ropes = [path.rope.rope for path in (q_path, k_path) if path.rope]
        assert len(ropes) in (0, 2), op
        if ropes and ropes[0]:
            assert ropes[0] == ropes[1], op
            a["style"], a["n_rot"] = _STYLES[ropes[0].style], ropes[0].n_rot
            a["start"] = ropes[0].start
            a["angles"] = self.sources.angles[ropes[0]].ctypes.data

    def _temperature_table(self, shape: Heads) -> np.ndarray:
        """Return f32 (positions,): the factor on q, the same array for all layers that agree."""
        if self._temperatures is None:
            self._temperatures = {}
        key = shape.temperature, shape.temperature_length
        if key not in self._temperatures:
            positions = np.arange(self.sources.kv.max_chunks * attention.CHUNK_KEYS)
            self._temperatures[key] = temperatures(shape, positions)
        return self._temperatures[key]
