"""A model's weights as the kernels want them: matrices in panels, vectors as padded f32.

Tensors are read slab by slab into one reused buffer and packed by the executor's threads, so that
memory stays at one copy of the weights, and a file cut short behind our back is an error and not
a crash. All panels lie in one arena, which asks for huge pages.
"""

from __future__ import annotations

import mmap
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from math import prod

import numpy as np

from quantcli.checkpoint import Checkpoint
from quantcli.errors import ResourceError, UnsupportedModel
from quantcli.formats import F32
from quantcli.kernels import matmul
from quantcli.kernels.matmul import PANEL_ROWS, PanelFormat
from quantcli.kernels.matmul.rows import PACK_ARGS
from quantcli.qtensor import U8
from quantcli.runtime.executor import OP, Executor, aligned
from quantcli.runtime.memory import size

Progress = Callable[[str, int, int], None]

ALIGNMENT = 128
_MORE_THAN_FILE = 1.1  # panels of most formats cost up to 8% more, for scales that they round up
_SLAB_NBYTES = 8 << 20  # read at a time; large enough for the disk, small beside any model


@dataclass(frozen=True, slots=True)
class Matrix:
    """A packed weight: where its panels lie. Experts' matrices lie one after the other.

    n_out, n_in   its true shape; the panels pad them to multiples of 16 and of n_inputs
    n_experts     1 for an ordinary matrix
    """

    name: str
    panel: PanelFormat
    address: int
    n_out: int
    n_in: int
    n_experts: int = 1

    @property
    def n_panels(self) -> int:
        """Panels of 16 rows, of one expert."""
        return -(-self.n_out // PANEL_ROWS)

    @property
    def n_blocks(self) -> int:
        """Panel blocks in a row."""
        return -(-self.n_in // self.panel.n_inputs)

    @property
    def panel_nbytes(self) -> int:
        """Bytes of one panel."""
        return self.n_blocks * self.panel.block_nbytes

    @property
    def expert_nbytes(self) -> int:
        """Bytes of one expert's panels."""
        return self.n_panels * self.panel_nbytes

    @property
    def nbytes(self) -> int:
        """Bytes of all panels."""
        return self.n_experts * self.expert_nbytes


def is_matrix(name: str, shape: tuple[int, ...]) -> bool:
    """Return whether a weight is packed: experts' biases are rows of vectors, and are not."""
    return len(shape) > 1 and not name.endswith(".bias")


def packed_nbytes(shape: tuple[int, ...], format_name: str) -> int:
    """Return the bytes a matrix takes once packed; UnsupportedModel without kernels for it.

    shape   (n_out, n_in), or (n_experts, n_out, n_in)
    """
    if format_name not in matmul.names():
        raise UnsupportedModel(
            f"weights in {format_name} can be read and quantized but not run yet; formats that "
            f"run are {', '.join(matmul.names())}."
        )
    panel: PanelFormat = matmul.module(format_name).PANEL
    return Matrix("", panel, 0, shape[-2], shape[-1], prod(shape[:-2])).nbytes


def repacking_notes(checkpoint: Checkpoint) -> tuple[str, ...]:
    """Return a sentence about weights that take more memory than file, if there are such."""
    names, packed, stored = set(), 0, 0
    for info in checkpoint.tensors.values():
        name, fmt = info.format.name, info.format
        is_packed = is_matrix(info.name, info.shape) and name in matmul.names()
        if is_packed and fmt.weights_per_block > 1:
            panel: PanelFormat = matmul.module(name).PANEL
            bits = 8 * panel.block_nbytes / (PANEL_ROWS * panel.n_inputs)
            if bits > _MORE_THAN_FILE * fmt.bits_per_weight:
                names.add(name)
                packed += packed_nbytes(info.shape, name)
                stored += info.nbytes
    if not names:
        return ()
    return (
        f"weights in {', '.join(sorted(names))} are unpacked in memory, without loss: they take "
        f"{size(packed)} there and {size(stored)} in the file.",
    )


class Weights:
    """Every weight of a plan, packed. Owns the arena that the addresses point into."""

    def __init__(self, nbytes: int) -> None:
        """Reserve the arena; nothing is committed until it is written."""
        self.matrices: dict[str, Matrix] = {}
        self.vectors: dict[str, F32] = {}
        self.nbytes = nbytes
        self._arena = _arena(nbytes)
        self._base: int = np.frombuffer(self._arena, np.uint8).ctypes.data
        self._used = 0

    def take(self, name: str, panel: PanelFormat, shape: tuple[int, ...]) -> Matrix:
        """Give a matrix, or those of experts, the next place in the arena."""
        address = self._base + self._used
        matrix = Matrix(name, panel, address, shape[-2], shape[-1], prod(shape[:-2]))
        self._used += -(-matrix.nbytes // ALIGNMENT) * ALIGNMENT
        assert self._used <= self.nbytes, (name, self._used, self.nbytes)
        self.matrices[name] = matrix
        return matrix

    @classmethod
    def load(
        cls,
        checkpoint: Checkpoint,
        shapes: dict[str, tuple[int, ...]],
        executor: Executor,
        progress: Progress | None = None,
    ) -> Weights:
        """Read and pack every weight of a plan.

        shapes   tensor name -> shape, as the plan declares and the checkpoint has been checked for

        Raises CheckpointError if the file was cut short, ResourceError if memory runs out.
        """
        matrices = [name for name, shape in shapes.items() if is_matrix(name, shape)]
        infos = {name: checkpoint.tensors[name] for name in matrices}
        sizes = [packed_nbytes(shapes[n], i.format.name) + ALIGNMENT for n, i in infos.items()]
        weights = cls(sum(sizes))
        for name, shape in shapes.items():
            if not is_matrix(name, shape):
                weights.vectors[name] = padded(checkpoint.tensor(name).dequantize().reshape(shape))
        total, done = sum(info.nbytes for info in infos.values()), 0
        slab = np.empty(max([_SLAB_NBYTES, *_smallest_slabs(checkpoint, matrices)]), np.uint8)
        for name, info in infos.items():
            panel = matmul.module(info.format.name).PANEL
            matrix = weights.take(name, panel, shapes[name])
            _pack(checkpoint, matrix, slab, executor)
            done += info.nbytes
            if progress:
                progress("loading", done, total)
        return weights


def _arena(nbytes: int) -> mmap.mmap:
    # Private, where there is a choice: systems give huge pages to shared memory only if told to.
    is_windows = sys.platform == "win32"
    private = {} if is_windows else {"flags": mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS}
    try:
        arena = mmap.mmap(-1, max(nbytes, 1), **private)
    except (OSError, ValueError) as error:
        raise ResourceError(
            f"the weights need {nbytes / 2**20:.0f} MiB of memory, which this machine refuses: "
            f"{error}. Close programs, or use a smaller model."
        ) from error
    if hasattr(mmap, "MADV_HUGEPAGE"):
        arena.madvise(mmap.MADV_HUGEPAGE)
    return arena


def padded(vector: F32) -> F32:
    """Return a vector, or rows of them, with zeros up to a multiple of 32 values."""
    width = vector.shape[-1]
    padded = np.zeros((*vector.shape[:-1], -(-width // 32) * 32), np.float32)
    padded[..., :width] = vector
    return padded


def _smallest_slabs(checkpoint: Checkpoint, names: Iterable[str]) -> Iterable[int]:
    """Yield the bytes of one panel's rows of each matrix: a slab holds at least that."""
    for name in names:
        info = checkpoint.tensors[name]
        yield PANEL_ROWS * info.format.row_nbytes(info.shape[-1])


def _pack(checkpoint: Checkpoint, matrix: Matrix, slab: U8, executor: Executor) -> None:
    """Read one matrix, or one expert's after the other, in slabs of whole panels and pack each."""
    info = checkpoint.tensors[matrix.name]
    row_nbytes = info.format.row_nbytes(matrix.n_in)
    slab_rows = slab.size // (PANEL_ROWS * row_nbytes) * PANEL_ROWS
    block_nbytes = info.format.block_nbytes * (
        matrix.panel.n_inputs // info.format.weights_per_block
    )
    for expert in range(matrix.n_experts):
        start = expert * matrix.n_out * row_nbytes
        for row in range(0, matrix.n_out, slab_rows):
            n_rows = min(slab_rows, matrix.n_out - row)
            rows = slab[: n_rows * row_nbytes]
            checkpoint.read_into(matrix.name, rows, start + row * row_nbytes)
            rows = _whole_blocks(rows, n_rows, matrix.n_blocks * block_nbytes)
            panel = matrix.address + expert * matrix.expert_nbytes
            panel += row // PANEL_ROWS * matrix.panel_nbytes
            pack(matrix, rows, n_rows, block_nbytes, panel, executor)


def pack(
    matrix: Matrix, rows: np.ndarray, n_rows: int, block_nbytes: int, panel: int, executor: Executor
) -> None:
    """Pack rows, of whole blocks of `block_nbytes`, into panels from the address `panel` on."""
    args = np.zeros(1, PACK_ARGS)
    ops = aligned(OP)
    args["counter"] = ops.ctypes.data
    args["src"] = rows.ctypes.data
    args["dst"] = panel
    args["n_rows"] = n_rows
    args["row_nbytes"] = matrix.n_blocks * block_nbytes
    args["block_nbytes"] = block_nbytes
    args["n_blocks"] = matrix.n_blocks
    args["panel_block_nbytes"] = matrix.panel.block_nbytes
    ops["kernel"] = matmul.module(matrix.panel.name).pack.address
    ops["args"], ops["barrier"] = args.ctypes.data, 1
    executor.run(ops)


def _whole_blocks(rows: U8, n_rows: int, padded_nbytes: int) -> U8:
    """Return rows padded with zeros to whole panel blocks: unquantized ones may end inside one."""
    row_nbytes = rows.size // n_rows
    if row_nbytes == padded_nbytes:
        return rows
    padded = np.zeros((n_rows, padded_nbytes), np.uint8)
    padded[:, :row_nbytes] = rows.reshape(n_rows, row_nbytes)
    return padded.reshape(-1)
