"""Calling compiled kernels from tests: guarded memory, staged activations, packed weights.

Kernels check nothing, so every array that one may write lies between bytes that must stay as they
are, and starts out as NaN.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
from codebook_pictures import set_iq1_m_scales

from quantcli import formats
from quantcli.formats import F32, U8, BlockFormat
from quantcli.kernels import activations, embed, matmul
from quantcli.kernels.jit import OP_SIGNATURE, OpKernel
from quantcli.kernels.matmul import PANEL_ROWS, PanelFormat, Word, rows
from quantcli.runtime.executor import OP, Executor, aligned

_GUARD = 256
_GUARD_BYTE = 0xA5
_ENTRY = ctypes.CFUNCTYPE(None, *[ctypes.c_int64] * len(OP_SIGNATURE.args))


class Guarded:
    """An array that starts on a 64-byte boundary, between bytes that nobody may write."""

    def __init__(self, shape: int | Sequence[int], dtype: npt.DTypeLike, byte: int = 0xFF) -> None:
        """Fill the array with one byte; 0xFF makes floats NaN."""
        kind = np.dtype(dtype)
        nbytes = int(np.prod(shape)) * kind.itemsize
        self._raw = np.full(nbytes + 2 * _GUARD + 64, _GUARD_BYTE, np.uint8)
        self._start = _GUARD + -(self._raw.ctypes.data + _GUARD) % 64
        self._stop = self._start + nbytes
        self._raw[self._start : self._stop] = byte
        self.array = self._raw[self._start : self._stop].view(kind).reshape(shape)

    @property
    def address(self) -> int:
        """Address of the array."""
        return int(self.array.ctypes.data)

    def check(self) -> None:
        """Fail if something was written beside the array."""
        assert (self._raw[: self._start] == _GUARD_BYTE).all(), "written before the array"
        assert (self._raw[self._stop :] == _GUARD_BYTE).all(), "written behind the array"


def guarded(values: np.ndarray) -> Guarded:
    """Return a guarded copy of an array."""
    copy = Guarded(values.shape, values.dtype)
    copy.array[...] = values
    return copy


class Threads:
    """Executors by number of threads, started when first asked for."""

    def __init__(self, stack: ExitStack) -> None:
        self._stack = stack
        self._executors: dict[int, Executor] = {}

    def __getitem__(self, n_threads: int) -> Executor:
        if n_threads not in self._executors:
            executor = Executor(n_threads)
            self._stack.callback(executor.close)
            self._executors[n_threads] = executor
        return self._executors[n_threads]


@contextmanager
def threads() -> Iterator[Threads]:
    """Open executors and close them at the end."""
    with ExitStack() as stack:
        yield Threads(stack)


def call(kernel: OpKernel, args: np.ndarray, executor: Executor | None = None) -> None:
    """Run a kernel once, by its address as the executor does, or on an executor's threads."""
    ops = aligned(OP)
    args["counter"] = ops.ctypes.data
    if executor is None:
        _ENTRY(kernel.address)(args.ctypes.data, 0, 1)
        return
    ops["kernel"], ops["args"], ops["barrier"] = kernel.address, args.ctypes.data, 1
    assert executor.run(ops)


def groups(n_rows: int) -> Iterator[tuple[int, int]]:
    """Yield (first row, rows) of the groups that a step's rows come in."""
    start = 0
    while start < n_rows:
        size = rows.group_size.py_func(n_rows - start)
        yield start, size
        start += size


@dataclass
class Staged:
    """Activations as a matmul reads them."""

    memory: Guarded
    n_rows: int
    width: int
    words: tuple[Word, ...]
    is_float: bool
    own_nbytes: int = 0  # bytes between threads' copies, while they are private

    @property
    def block_nbytes(self) -> int:
        """Bytes of 32 inputs of a token."""
        return 128 if self.is_float else 36 + 4 * len(self.words)

    @property
    def row_nbytes(self) -> int:
        """Bytes of a token."""
        return 4 * self.width if self.is_float else self.width // 32 * self.block_nbytes

    def values(self, copy: int = 0) -> F32:
        """Return f32 (rows, width): what the matmul multiplies with."""
        if self.is_float:
            return self._gather_floats(copy)
        codes = self._gather(np.int8, 0, 32, copy=copy).astype(np.float32)
        return (codes.reshape(self.n_rows, -1, 32) * self.scales(copy)[..., None]).reshape(
            self.n_rows, -1
        )

    def codes(self, copy: int = 0) -> np.ndarray:
        """Return i8 (rows, width)."""
        return self._gather(np.int8, 0, 32, copy=copy)

    def scales(self, copy: int = 0) -> F32:
        """Return f32 (rows, width / 32)."""
        return self._gather(np.float32, 32, 1, copy=copy)

    def word(self, index: int) -> np.ndarray:
        """Return word `index` of each block, f32 or i32 (rows, width / 32)."""
        dtype = np.float32 if self.words[index][0] else np.int32
        return self._gather(dtype, 36 + 4 * index, 1)

    def _gather_floats(self, copy: int) -> F32:
        raw = self.memory.array[copy * self.own_nbytes :]
        parts = []
        for start, size in groups(self.n_rows):
            group = raw[start * self.row_nbytes : (start + size) * self.row_nbytes]
            parts.append(group.view(np.float32).reshape(self.width, size).T)
        return np.ascontiguousarray(np.concatenate(parts))

    def _gather(self, dtype: type, offset: int, n: int, copy: int = 0) -> np.ndarray:
        """Collect n values a block and token, which lie `offset` bytes a token into the block."""
        raw = self.memory.array[copy * self.own_nbytes :]
        parts = []
        for start, size in groups(self.n_rows):
            group = raw[start * self.row_nbytes : (start + size) * self.row_nbytes]
            blocks = group.reshape(-1, size * self.block_nbytes)
            nbytes = n * np.dtype(dtype).itemsize
            part = blocks[:, offset * size : (offset + nbytes) * size].copy().view(dtype)
            part = part.reshape(-1, size, n).transpose(1, 0, 2)
            parts.append(part.reshape(size, -1))
        return np.concatenate(parts)


def stage(
    x: F32,
    words: tuple[Word, ...] = (),
    *,
    is_float: bool = False,
    width: int = 0,
    transform: int = activations.PLAIN,
    up: F32 | None = None,
    norm: F32 | None = None,
    bias: F32 | None = None,
    eps: float = 0.0,
    factor: float = 1.0,
    executor: Executor | None = None,
    private: int = 0,
) -> Staged:
    """Run the stage kernel over rows, padded with zeros to `width`.

    private   number of threads that each stage for themselves; 0: they share
    """
    n_rows, n_true = x.shape
    width = width or -(-n_true // 32) * 32
    x, up, norm, bias = (None if v is None else _padded(v, width) for v in (x, up, norm, bias))
    staged = Staged(Guarded(0, np.uint8), n_rows, width, words, is_float)
    staged.own_nbytes = n_rows * staged.row_nbytes
    staged.memory = Guarded(max(private, 1) * staged.own_nbytes, np.uint8)
    n_threads = executor.n_threads if executor else 1
    scratch = Guarded((n_threads, width), np.float32)
    counts = np.array([n_rows, private > 0], np.int64)
    a = np.zeros(1, activations.ARGS)
    a["n_rows"], a["private"] = counts.ctypes.data, counts[1:].ctypes.data
    a["x"], a["x_stride"] = x.ctypes.data, 4 * width
    a["up"], a["up_stride"] = (x if up is None else up).ctypes.data, 4 * width
    a["bias"] = 0 if bias is None else bias.ctypes.data
    a["norm"] = 0 if norm is None else norm.ctypes.data
    a["width"], a["n_true"], a["eps"], a["factor"] = width, n_true, eps, factor
    a["transform"], a["is_float"] = transform, is_float
    a["out"], a["out_thread_stride"] = staged.memory.address, staged.own_nbytes
    a["row_nbytes"] = staged.row_nbytes
    a["scratch"], a["scratch_stride"] = scratch.address, 4 * width
    a["n_words"] = len(words)
    for i, word in enumerate(words):
        a["word_is_float"][0, i], a["word_part"][0, i], a["word_factor"][0, i] = word
    call(activations.stage, a, executor)
    scratch.check()
    staged.memory.check()
    return staged


def _padded(values: F32, width: int) -> F32:
    padded = np.zeros((*values.shape[:-1], width), np.float32)
    padded[..., : values.shape[-1]] = values
    return padded


@dataclass
class Packed:
    """A weight in panels."""

    panel: PanelFormat
    n_out: int
    n_blocks: int
    memory: Guarded
    kernels: object = field(repr=False, default=None)

    @property
    def n_panels(self) -> int:
        """Panels of 16 rows."""
        return -(-self.n_out // PANEL_ROWS)

    @property
    def panel_nbytes(self) -> int:
        """Bytes of a panel."""
        return self.n_blocks * self.panel.block_nbytes

    @property
    def n_in(self) -> int:
        """Inputs, padded to whole panel blocks."""
        return self.n_blocks * self.panel.n_inputs


def pack(name: str, data: U8, executor: Executor | None = None) -> Packed:
    """Pack rows of a format, u8 (n_out, bytes), as the loader does."""
    fmt, module = formats.get(name), matmul.module(name)
    panel = module.PANEL
    block_nbytes = fmt.block_nbytes * (panel.n_inputs // fmt.weights_per_block)
    n_blocks = -(-data.shape[1] // block_nbytes)
    padded = np.zeros((len(data), n_blocks * block_nbytes), np.uint8)
    padded[:, : data.shape[1]] = data
    packed = Packed(panel, len(data), n_blocks, Guarded(0, np.uint8), module)
    packed.memory = Guarded(packed.n_panels * packed.panel_nbytes, np.uint8, byte=0)
    a = np.zeros(1, rows.PACK_ARGS)
    a["src"], a["dst"], a["n_rows"] = padded.ctypes.data, packed.memory.address, len(data)
    a["row_nbytes"], a["block_nbytes"], a["n_blocks"] = padded.shape[1], block_nbytes, n_blocks
    a["panel_block_nbytes"] = panel.block_nbytes
    call(module.pack, a, executor)
    packed.memory.check()
    return packed


def look_up(
    packed: Packed, tokens: Sequence[int], scale: float = 1.0, executor: Executor | None = None
) -> F32:
    """Run the embed kernel: rows of a packed weight as f32, padding included."""
    ids = np.array(tokens, np.int64)
    out = Guarded((len(ids), packed.n_in), np.float32)
    count = np.array([len(ids)], np.int64)
    a = np.zeros(1, embed.ARGS)
    a["n_rows"], a["tokens"] = count.ctypes.data, ids.ctypes.data
    a["weights"], a["panel_nbytes"] = packed.memory.address, packed.panel_nbytes
    a["block_nbytes"], a["n_blocks"] = packed.panel.block_nbytes, packed.n_blocks
    a["block_inputs"], a["scale"] = packed.panel.n_inputs, scale
    a["out"], a["out_stride"] = out.address, 4 * packed.n_in
    call(packed.kernels.embed, a, executor)  # type: ignore[attr-defined]
    out.check()
    return out.array


def multiply(
    packed: Packed,
    staged: Staged,
    *,
    bias: F32 | None = None,
    before: F32 | None = None,
    executor: Executor | None = None,
    n_shares: int = 1,
    chunk: int = 1,
    private: bool = False,
) -> F32:
    """Run the matmul kernel: f32 (rows, n_panels * 16)."""
    width = packed.n_panels * PANEL_ROWS
    out = Guarded((staged.n_rows, width), np.float32)
    if before is not None:
        out.array[...] = _padded(before, width)
    padded_bias = None if bias is None else _padded(bias, width)
    words = packed.panel.words
    found = [i for i in range(len(staged.words) + 1) if staged.words[i : i + len(words)] == words]
    counts = np.array([staged.n_rows, private], np.int64)
    a = np.zeros(1, rows.ARGS)
    a["n_rows"], a["private"] = counts.ctypes.data, counts[1:].ctypes.data
    a["weights"], a["panel_nbytes"] = packed.memory.address, packed.panel_nbytes
    a["n_panels"], a["n_blocks"] = packed.n_panels, packed.n_blocks
    a["acts"], a["acts_thread_stride"] = staged.memory.address, staged.own_nbytes
    a["acts_row_nbytes"], a["acts_block_nbytes"] = staged.row_nbytes, staged.block_nbytes
    a["words"] = 36 + 4 * found[0]
    a["out"], a["out_stride"], a["is_add"] = out.address, 4 * width, before is not None
    a["bias"] = 0 if padded_bias is None else padded_bias.ctypes.data
    a["n_shares"], a["chunk"] = n_shares, chunk
    call(packed.kernels.matmul, a, executor)  # type: ignore[attr-defined]
    out.check()
    return out.array


def random_rows(fmt: BlockFormat, n_out: int, n_in: int, seed: int = 0) -> U8:
    """Return u8 (n_out, bytes): random codes and sub-scales, with main scales near 1."""
    random = np.random.default_rng(seed)
    if fmt.name in ("f32", "f16", "bf16"):
        weights = random.standard_normal((n_out, n_in), np.float32)
        assert fmt.encode is not None
        return fmt.encode(weights.reshape(-1, 1)).view(np.uint8).reshape(n_out, -1)
    n_blocks = n_out * (n_in // fmt.weights_per_block)
    data = random.integers(0, 256, n_blocks * fmt.block_nbytes, np.uint8)
    blocks = data.view(fmt.block)
    for name in {"d", "m", "dmin"} & set(fmt.block.names or ()):
        scale = random.uniform(0.5, 2.0, n_blocks) * random.choice([-1, 1], n_blocks)
        blocks[name] = scale.astype(np.float16)
    if "e" in (fmt.block.names or ()):  # of powers of two, doubled
        blocks["e"] = random.integers(127, 130, n_blocks)
    if fmt.name == "iq1_m":
        set_iq1_m_scales(blocks, random.uniform(0.5, 2.0, n_blocks).astype(np.float16))
    return data.reshape(n_out, -1)


def decoded(fmt: BlockFormat, data: U8) -> F32:
    """Return f32 (n_out, n_in): what rows of a format mean."""
    return fmt.decode(data.reshape(-1).view(fmt.block)).reshape(len(data), -1)
