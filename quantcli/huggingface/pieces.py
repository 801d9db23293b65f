"""Tensors of a folder that GGUF divides, turns or counts otherwise, as sources of rows.

Picked       some rows of each so many
Joined       one source's rows after another's
Shaped       the same weights, in rows of another length
Transposed   matrices with rows and columns exchanged, read whole
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

import numpy as np

from quantcli.arch.hf_config import HFConfig
from quantcli.arch.hugging_face import Piece, Take
from quantcli.errors import CheckpointError
from quantcli.formats import BlockFormat
from quantcli.huggingface.rows import RowSource, n_rows, row_nbytes
from quantcli.qtensor import U8


def piece_of(source: RowSource, piece: Piece, config: HFConfig) -> RowSource:
    """Return the source of a GGUF tensor that is a piece of another.

    Raises CheckpointError for a shape that has no such piece.
    """
    shape = source.shape
    if piece.of_columns:
        n, flat = shape[-1], Shaped(source, (prod(shape),))
        parts = _taken(flat, piece.takes(config, n), n)
        width = sum(take.count for _, take in parts)
        found: RowSource = Shaped(_joined(parts), (*shape[:-1], width))
    else:
        n = shape[-2] if len(shape) > 1 else shape[0]
        parts = _taken(source, piece.takes(config, n), n)
        rows = sum(take.count for _, take in parts) * (n // parts[0][1].period)
        outer = (n // parts[0][1].period, parts[0][1].count) if piece.apart else (rows,)
        tail = shape[-1:] if len(shape) > 1 else ()
        found = Shaped(_joined(parts), (*shape[:-2], *outer, *tail))
    return Transposed(found) if piece.transposed else found


def _taken(source: RowSource, takes: tuple[Take, ...], n: int) -> list[tuple[Picked, Take]]:
    for take in takes:
        last = take.start + (take.count - 1) * take.step
        if take.period < 1 or n % take.period or not 0 <= take.start <= last < take.period:
            raise CheckpointError(
                f"has shape {list(source.shape)}; config.json calls for a multiple of "
                f"{take.period} rows."
            )
    return [(Picked(source, take), take) for take in takes]


def _joined(parts: list[tuple[Picked, Take]]) -> RowSource:
    return Joined(tuple(part for part, _ in parts)) if len(parts) > 1 else parts[0][0]


def read_rows(source: RowSource, row_start: int, row_stop: int) -> U8:
    """Return rows of a source, whatever it reads at once."""
    unit = source.unit
    first, last = row_start // unit * unit, -(-row_stop // unit) * unit
    data = source.read(first, min(last, n_rows(source.shape)))
    row = row_nbytes(source)
    return data[(row_start - first) * row : (row_stop - first) * row]


@dataclass(frozen=True, slots=True)
class Picked:
    """Some rows of each `take.period` of a source, one after another."""

    source: RowSource
    take: Take
    unit: int = 1

    @property
    def shape(self) -> tuple[int, ...]:
        """All rows, in one matrix or vector."""
        rows = n_rows(self.source.shape) // self.take.period * self.take.count
        return (rows, *self.source.shape[-1:]) if len(self.source.shape) > 1 else (rows,)

    @property
    def format(self) -> BlockFormat:
        """The source's."""
        return self.source.format

    def read(self, row_start: int, row_stop: int) -> U8:
        """Return rows of the source."""
        take, row = self.take, row_nbytes(self.source)
        found = []
        for period in range(row_start // take.count, -(-row_stop // take.count)):
            base = period * take.count
            first, last = max(row_start - base, 0), min(row_stop - base, take.count)
            start = period * take.period + take.start + first * take.step
            stop = start + (last - first - 1) * take.step + 1
            rows = read_rows(self.source, start, stop).reshape(-1, row)
            found.append(rows[:: take.step].ravel())
        return np.concatenate(found)


@dataclass(frozen=True, slots=True)
class Joined:
    """The rows of several sources with rows of one length, one after another."""

    parts: tuple[RowSource, ...]
    unit: int = 1

    @property
    def shape(self) -> tuple[int, ...]:
        """All rows, in one matrix or vector."""
        return (sum(n_rows(part.shape) for part in self.parts), *self.parts[0].shape[1:])

    @property
    def format(self) -> BlockFormat:
        """The parts'."""
        return self.parts[0].format

    def read(self, row_start: int, row_stop: int) -> U8:
        """Return rows of the parts."""
        found, base = [], 0
        for part in self.parts:
            rows = n_rows(part.shape)
            first, last = max(row_start - base, 0), min(row_stop - base, rows)
            if first < last:
                found.append(read_rows(part, first, last))
            base += rows
        return np.concatenate(found)


@dataclass(frozen=True, slots=True)
class Shaped:
    """The weights of a source in another shape."""

    source: RowSource
    shape: tuple[int, ...]
    unit: int = 1

    @property
    def format(self) -> BlockFormat:
        """The source's."""
        return self.source.format

    def read(self, row_start: int, row_stop: int) -> U8:
        """Return rows of the new shape."""
        ours, theirs = row_nbytes(self), row_nbytes(self.source)
        start, stop = row_start * ours, row_stop * ours
        first, last = start // theirs, -(-stop // theirs)
        data = read_rows(self.source, first, last)
        return data[start - first * theirs : stop - first * theirs]


@dataclass(frozen=True, slots=True)
class Transposed:
    """Matrices with rows and columns exchanged; one is read at a time."""

    source: RowSource

    @property
    def shape(self) -> tuple[int, ...]:
        """The source's with its last two axes exchanged."""
        *outer, rows, columns = self.source.shape
        return (*outer, columns, rows)

    @property
    def format(self) -> BlockFormat:
        """The source's."""
        return self.source.format

    @property
    def unit(self) -> int:
        """Rows of a matrix."""
        return self.shape[-2]

    def read(self, row_start: int, row_stop: int) -> U8:
        """Return whole matrices."""
        rows, columns = self.source.shape[-2:]
        first, last = row_start // self.unit, row_stop // self.unit
        data = read_rows(self.source, first * rows, last * rows)
        matrices = data.view(self.format.block).reshape(-1, rows, columns)
        return np.ascontiguousarray(matrices.swapaxes(1, 2)).view(np.uint8).ravel()
