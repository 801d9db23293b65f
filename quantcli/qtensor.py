"""QTensor: a named weight in a block format, shared by checkpoints, kernels and quantizers."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from quantcli.errors import ShapeError
from quantcli.formats import F32, BlockFormat

U8 = npt.NDArray[np.uint8]

# Weights decoded at once: bounds the temporary arrays and keeps them in the cache. Of 2**14, 2**16,
# 2**18, 2**20 and all of 2**24 weights, 2**18 was as fast as any for the quantized formats
# (best of 3 of each, 2-core AVX-512 x86, 2026-11).
_SLAB = 2**18


@dataclass(frozen=True, slots=True)
class QTensor:
    """A weight as it lies in a file.

    name    the canonical (GGUF) tensor name
    shape   (n_out, n_in) for a matrix, (n,) for a vector; the last axis is contiguous
    format  its block format
    data    u8 (nbytes,)   the blocks, row after row
    """

    name: str
    shape: tuple[int, ...]
    format: BlockFormat
    data: U8

    def __post_init__(self) -> None:
        """Refuse data whose size does not fit shape and format (ShapeError)."""
        assert self.shape, (self.name, "a tensor has at least one axis")
        assert self.data.dtype == np.uint8, (self.name, self.data.dtype)
        try:
            want = self.n_rows * self.format.row_nbytes(self.shape[-1])
        except ShapeError as error:
            raise ShapeError(f"{self.name}: {error}") from error
        if self.data.size != want:
            raise ShapeError(
                f"{self.name}: {self.data.size} bytes of data, but shape {self.shape} in "
                f"{self.format.name} takes {want}."
            )

    @property
    def n_rows(self) -> int:
        """Rows: the product of all axes but the last."""
        return int(np.prod(self.shape[:-1], dtype=np.int64)) if len(self.shape) > 1 else 1

    @property
    def nbytes(self) -> int:
        """Bytes of the blocks."""
        return int(self.data.size)

    def rows(self, row_start: int, row_stop: int) -> QTensor:
        """Return rows [row_start, row_stop) as a tensor that shares this one's bytes."""
        assert 0 <= row_start <= row_stop <= self.n_rows, (row_start, row_stop, self.n_rows)
        row = self.format.row_nbytes(self.shape[-1])
        part = self.data[row_start * row : row_stop * row]
        return QTensor(self.name, (row_stop - row_start, self.shape[-1]), self.format, part)

    def dequantize(self) -> F32:
        """Return the weights as f32 (shape), in a fresh array."""
        blocks = self.data.view(self.format.block)
        if self.format.weights_per_block == 1:  # decoding needs no temporary arrays
            return self.format.decode(blocks).reshape(self.shape)
        weights = np.empty((len(blocks), self.format.weights_per_block), np.float32)
        step = _SLAB // self.format.weights_per_block
        for start in range(0, len(blocks), step):
            stop = start + step
            weights[start:stop] = self.format.decode(blocks[start:stop])
        return weights.reshape(self.shape)
