"""Where a GGUF tensor's rows come from in a folder: read, permuted, shifted, stacked.

Each class is one change and holds the source that it changes. All are safe for many threads.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Protocol

import numpy as np

from quantcli import formats
from quantcli.checkpoint.gguf_layout import quoted
from quantcli.checkpoint.safetensors import SafetensorsFiles, StoredTensor
from quantcli.errors import UnsupportedModel
from quantcli.formats import F32, BlockFormat
from quantcli.qtensor import U8

FLOATS = {"BF16": "bf16", "F16": "f16", "F32": "f32", "F64": "f32"}


class RowSource(Protocol):
    """Rows of a tensor; of a vector, in a format of one weight a block, each weight is a row."""

    @property
    def shape(self) -> tuple[int, ...]:
        """The tensor's shape."""
        ...

    @property
    def format(self) -> BlockFormat:
        """The format of its rows."""
        ...

    @property
    def unit(self) -> int:
        """How many rows are read at once, or a multiple of it."""
        ...

    def read(self, row_start: int, row_stop: int) -> U8:
        """Return rows [row_start, row_stop) as u8 (rows * row bytes,)."""
        ...


def n_rows(shape: tuple[int, ...]) -> int:
    """Return the rows of a shape; each weight of a vector is one."""
    return prod(shape[:-1]) if len(shape) > 1 else shape[0]


def row_nbytes(source: RowSource) -> int:
    """Return the bytes of one row of a source."""
    shape, fmt = source.shape, source.format
    return fmt.row_nbytes(shape[-1]) if len(shape) > 1 else fmt.block_nbytes


@dataclass(frozen=True, slots=True)
class Stored:
    """A tensor of floats as it lies in a file."""

    files: SafetensorsFiles
    tensor: StoredTensor
    unit: int = 1

    @property
    def shape(self) -> tuple[int, ...]:
        """As in the file."""
        return self.tensor.shape

    @property
    def format(self) -> BlockFormat:
        """As in the file; f64 is read as f32. Raises UnsupportedModel if it is no float."""
        name = FLOATS.get(self.tensor.dtype)
        if name is None:
            raise UnsupportedModel(
                f"tensor {quoted(self.tensor.name)} is of dtype {self.tensor.dtype}; supported "
                f"are {', '.join(FLOATS)}, and the packed layouts of GPTQ, AWQ and "
                "compressed-tensors."
            )
        return formats.get(name)

    def read(self, row_start: int, row_stop: int) -> U8:
        """Return rows as they are."""
        row = self.tensor.nbytes // n_rows(self.shape)
        data = np.empty((row_stop - row_start) * row, np.uint8)
        self.files.read_into(self.tensor, data.data, row_start * row)
        if self.tensor.dtype != "F64":
            return data
        with np.errstate(over="ignore"):
            return data.view("<f8").astype("<f4").view(np.uint8)


@dataclass(frozen=True, slots=True)
class InMemory:
    """A small tensor that the folder does not hold: f32."""

    values: F32
    unit: int = 1

    @property
    def shape(self) -> tuple[int, ...]:
        """The array's."""
        return self.values.shape

    @property
    def format(self) -> BlockFormat:
        """Always f32."""
        return formats.get("f32")

    def read(self, row_start: int, row_stop: int) -> U8:
        """Return rows of the array."""
        return np.ascontiguousarray(self.values[row_start:row_stop], "<f4").view(np.uint8).ravel()


@dataclass(frozen=True, slots=True)
class AsF32:
    """A source's weights as f32, with a number added."""

    source: RowSource
    shift: float = 0.0

    @property
    def shape(self) -> tuple[int, ...]:
        """The source's."""
        return self.source.shape

    @property
    def unit(self) -> int:
        """The source's."""
        return self.source.unit

    @property
    def format(self) -> BlockFormat:
        """Always f32."""
        return formats.get("f32")

    def read(self, row_start: int, row_stop: int) -> U8:
        """Return rows, decoded."""
        weights = decoded(self.source, row_start, row_stop)
        if self.shift:
            weights = weights + np.float32(self.shift)
        return weights.astype("<f4", copy=False).view(np.uint8).ravel()


@dataclass(frozen=True, slots=True)
class Permuted:
    """Rows of q or k as "norm" RoPE wants them: pairs side by side, where NEOX has halves.

    Row 2 i + j of a head is row j d / 2 + i of the source's, for heads of d rows.
    """

    source: RowSource
    n_heads: int

    @property
    def shape(self) -> tuple[int, ...]:
        """The source's."""
        return self.source.shape

    @property
    def format(self) -> BlockFormat:
        """The source's."""
        return self.source.format

    @property
    def unit(self) -> int:
        """Rows of a head."""
        return n_rows(self.shape) // self.n_heads

    def read(self, row_start: int, row_stop: int) -> U8:
        """Return whole heads."""
        data = self.source.read(row_start, row_stop)
        return permuted(data.reshape(row_stop - row_start, -1), self.unit).ravel()


def permuted(rows: np.ndarray, head: int) -> np.ndarray:
    """Return rows of whole heads, from halves to pairs: (n, ...) -> (n, ...)."""
    return rows.reshape(-1, 2, head // 2, *rows.shape[1:]).swapaxes(1, 2).reshape(rows.shape)


def unpermuted(rows: np.ndarray, head: int) -> np.ndarray:
    """Return rows of whole heads, from pairs to halves: the inverse of `permuted`."""
    return rows.reshape(-1, head // 2, 2, *rows.shape[1:]).swapaxes(1, 2).reshape(rows.shape)


@dataclass(frozen=True, slots=True)
class Cut:
    """The first rows of a source."""

    source: RowSource
    n_kept: int

    @property
    def shape(self) -> tuple[int, ...]:
        """The source's, shorter."""
        return (self.n_kept, *self.source.shape[1:])

    @property
    def format(self) -> BlockFormat:
        """The source's."""
        return self.source.format

    @property
    def unit(self) -> int:
        """The source's."""
        return self.source.unit

    def read(self, row_start: int, row_stop: int) -> U8:
        """Return rows of the source."""
        return self.source.read(row_start, row_stop)


@dataclass(frozen=True, slots=True)
class Stacked:
    """Matrices of one shape one after another: the experts of a layer."""

    parts: tuple[RowSource, ...]

    @property
    def shape(self) -> tuple[int, ...]:
        """The parts' with their number before it."""
        return (len(self.parts), *self.parts[0].shape)

    @property
    def format(self) -> BlockFormat:
        """The parts'."""
        return self.parts[0].format

    @property
    def unit(self) -> int:
        """Rows of a part, so that no read goes over its end."""
        return n_rows(self.parts[0].shape)

    def read(self, row_start: int, row_stop: int) -> U8:
        """Return whole parts."""
        first, last = row_start // self.unit, row_stop // self.unit
        return np.concatenate([part.read(0, self.unit) for part in self.parts[first:last]])


def decoded(source: RowSource, row_start: int, row_stop: int) -> F32:
    """Return rows as f32 (rows, row length)."""
    fmt = source.format
    data = source.read(row_start, row_stop)
    return fmt.decode(data.view(fmt.block)).reshape(row_stop - row_start, -1)
