"""A KV cache for kernel tests: real pages full of garbage, filled and read by the real kernels."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from kernel_calls import Guarded, call, guarded

from quantcli.formats import F32
from quantcli.kernels import attention, heads
from quantcli.kernels.kv_cache import KV_FORMATS, RECORD_KEYS, KvFormat
from quantcli.runtime.executor import Executor


@dataclass
class Cache:
    """Keys and values of one layer. Pages of a sequence are shuffled; all bytes start as 0xFF.

    page_size   slots a page; 0: one page as long as the context
    """

    kv_type: str
    n_kv_heads: int
    head_dim: int
    context: int
    page_size: int = 0
    n_sequences: int = 1
    byte: int = 0xFF  # what slots hold that were never written: NaN
    value_dim: int = 0  # 0: as wide as keys
    tables: list[np.ndarray] = field(init=False)
    keys: Guarded = field(init=False)
    values: Guarded = field(init=False)

    def __post_init__(self) -> None:
        """Lay pages out."""
        self.page_size = self.page_size or -(-self.context // 16) * 16
        self.value_dim = self.value_dim or self.head_dim
        per_sequence = -(-self.context // self.page_size)
        n_pages = per_sequence * self.n_sequences
        order = np.random.default_rng(0).permutation(n_pages).astype(np.int64)
        self.tables = [guarded(part).array for part in np.split(order, self.n_sequences)]
        self.keys, self.values = (
            Guarded(n_pages * self.page_nbytes(width), np.uint8, self.byte)
            for width in (self.head_dim, self.value_dim)
        )

    @property
    def format(self) -> KvFormat:
        """How records lie in memory."""
        return KV_FORMATS[self.kv_type]

    def page_nbytes(self, width: int) -> int:
        """Return the bytes of one page of keys or values of a width."""
        records = self.n_kv_heads * self.page_size // RECORD_KEYS
        return records * self.format.record_nbytes(width)

    def point(self, a: np.ndarray) -> None:
        """Tell a kernel where the pages lie."""
        a["k_pages"], a["v_pages"] = self.keys.address, self.values.address
        a["page_size"], a["n_kv_heads"] = self.page_size, self.n_kv_heads
        for prefix, width in (("", self.head_dim), ("value_", self.value_dim)):
            a[f"{prefix}page_nbytes"] = self.page_nbytes(width)
            a[f"{prefix}record_nbytes"] = self.format.record_nbytes(width)
        a["head_dim"], a["value_dim"] = self.head_dim, self.value_dim

    def store(
        self,
        q: F32,
        k: F32,
        v: F32,
        positions: list[int],
        sequences: list[int] | None = None,
        *,
        angles: F32 | None = None,
        style: int = heads.NONE,
        q_norm: F32 | None = None,
        k_norm: F32 | None = None,
        norm_last: bool = False,
        start: int = 0,
        temperatures: F32 | None = None,
        eps: float = 1e-6,
        chunk: int = 3,
        executor: Executor | None = None,
    ) -> tuple[F32, F32]:
        """Norm, rotate and store k and v (rows, heads, head_dim); return q and k as they end."""
        rows = _Rows(self, positions, sequences)
        arrays = [guarded(np.ascontiguousarray(x, np.float32)) for x in (q, k, v)]
        n_threads = executor.n_threads if executor else 1
        scratch = Guarded((n_threads, 64), np.float32)
        a = np.zeros(1, heads.ARGS)
        self.point(a)
        rows.point(a)
        for name, array in zip("qkv", arrays, strict=True):
            a[name], a[f"{name}_stride"] = array.address, array.array.strides[0]
        a["n_heads"] = q.shape[1]
        a["q_norm"] = 0 if q_norm is None else q_norm.ctypes.data
        a["k_norm"] = 0 if k_norm is None else k_norm.ctypes.data
        a["norm_last"], a["start"] = norm_last, start
        a["temperatures"] = 0 if temperatures is None else temperatures.ctypes.data
        if angles is not None:
            a["angles"], a["n_rot"], a["style"] = angles.ctypes.data, angles.shape[1], style
        a["scratch"], a["scratch_stride"] = scratch.address, 256
        a["eps"], a["chunk"] = eps, chunk
        call(heads.PREPARE[self.kv_type], a, executor)
        for memory in (*arrays, scratch, self.keys, self.values):
            memory.check()
        np.testing.assert_array_equal(arrays[2].array, v)
        return arrays[0].array, arrays[1].array

    def fill(self, k: F32, v: F32, sequence: int = 0) -> None:
        """Store keys and values (length, n_kv_heads, head_dim) from position 0 on."""
        q = np.zeros_like(k)
        self.store(q, k, v, list(range(len(k))), [sequence] * len(k), chunk=64)

    def read(self, length: int, sequence: int = 0) -> tuple[F32, F32]:
        """Return keys and values f32 (length, n_kv_heads, head_dim) by the layout's description."""
        k = np.empty((length, self.n_kv_heads, self.head_dim), np.float32)
        v = np.empty((length, self.n_kv_heads, self.value_dim), np.float32)
        for position in range(length):
            page, slot = divmod(position, self.page_size)
            number = int(self.tables[sequence][page])
            for head in range(self.n_kv_heads):
                record, key = head * self.page_size // 16 + slot // 16, slot % 16
                k[position, head] = self._record(self.keys, number, record, by_dim=True)[key]
                v[position, head] = self._record(self.values, number, record, by_dim=False)[key]
        return k, v

    def _record(self, pages: Guarded, page: int, record: int, *, by_dim: bool) -> F32:
        """Return f32 (16, width): one record, keys by dimension or values by key."""
        dim = self.head_dim if by_dim else self.value_dim
        nbytes = self.format.record_nbytes(dim)
        start = page * self.page_nbytes(dim) + record * nbytes
        raw = pages.array[start : start + nbytes]
        shape = (dim, 16) if by_dim else (16, dim)
        if self.kv_type == "f16":
            x = raw.view(np.float16).astype(np.float32).reshape(shape)
            return x.T if by_dim else x
        codes = raw[: 16 * dim].view(np.int8).astype(np.float32).reshape(shape)
        scales = raw[16 * dim :].view(np.float16).astype(np.float32)
        if by_dim:
            return (codes * scales.reshape(dim // 32, 16).repeat(32, axis=0)).T
        return codes * scales.reshape(16, dim // 32).repeat(32, axis=1)


class _Rows:
    """The rows of a step: positions and page tables, by address."""

    def __init__(self, cache: Cache, positions: list[int], sequences: list[int] | None) -> None:
        self.positions = np.array(positions, np.int64)
        tables = [cache.tables[s] for s in sequences or [0] * len(positions)]
        self.tables = np.array([t.ctypes.data for t in tables], np.int64)
        self.count = np.array([len(positions)], np.int64)

    def point(self, a: np.ndarray) -> None:
        a["positions"], a["tables"] = self.positions.ctypes.data, self.tables.ctypes.data
        if "n_rows" in (a.dtype.names or ()):
            a["n_rows"] = self.count.ctypes.data


def attend(
    cache: Cache,
    q: F32,
    positions: list[int],
    sequences: list[int] | None = None,
    *,
    tiles: list[int] | None = None,
    scale: float = 0.125,
    window: int = 0,
    softcap: float = 0.0,
    sinks: F32 | None = None,
    is_shared: bool = False,
    executor: Executor | None = None,
) -> F32:
    """Run the attention kernel over rows of q: f32 (rows, n_heads, head_dim).

    tiles      rows of each tile, in order; by default each row is one
    is_shared  let threads share the chunks of a row
    """
    rows = _Rows(cache, positions, sequences)
    tiles = tiles or [1] * len(positions)
    assert sum(tiles) == len(positions)
    sizes = np.array(tiles, np.int64)
    starts = np.cumsum(sizes) - sizes
    n_chunks = max(positions) // attention.CHUNK_KEYS + 1 if is_shared else 1
    counts = np.array([len(tiles), n_chunks], np.int64)
    queries = guarded(np.ascontiguousarray(q, np.float32))
    out = Guarded((*q.shape[:2], cache.value_dim), np.float32)
    n_threads = executor.n_threads if executor else 1
    own = attention.scratch_nbytes(cache.head_dim)
    scratch = Guarded(n_threads * own, np.uint8)
    n_heads, group = q.shape[1], q.shape[1] // cache.n_kv_heads
    n_items = len(tiles) * cache.n_kv_heads if is_shared else 0
    partials = Guarded(
        attention.partials_nbytes(n_items, n_chunks, group, cache.head_dim), np.uint8
    )
    done = Guarded(max(n_items, 1), np.int64, byte=0)
    a = np.zeros(1, attention.ARGS)
    cache.point(a)
    rows.point(a)
    a["n_tiles"], a["max_chunks"] = counts.ctypes.data, counts[1:].ctypes.data
    a["tile_starts"], a["tile_rows"] = starts.ctypes.data, sizes.ctypes.data
    a["q"], a["q_stride"] = queries.address, queries.array.strides[0]
    a["out"], a["out_stride"] = out.address, out.array.strides[0]
    a["n_heads"], a["window"], a["scale"], a["softcap"] = n_heads, window, scale, softcap
    a["sinks"] = 0 if sinks is None else sinks.ctypes.data
    a["scratch"], a["scratch_stride"] = scratch.address, own
    a["partials"], a["done"] = partials.address, done.address
    a["split_items"] = n_items + 1 if is_shared else 0
    call(attention.ATTENTION[cache.kv_type], a, executor)
    for memory in (queries, out, scratch, partials, done):
        memory.check()
    assert not done.array.any(), "a later step would count wrongly"
    np.testing.assert_array_equal(queries.array, q)
    return out.array
