"""Encoders: choose scales, minima and codes of every block format, by compiled search.

`encode` does it all. `fit` searches for the scales alone, so that a caller may choose codes itself
(GPTQ's error feedback), and `assemble` makes blocks of both. Nothing here holds the GIL for long:
callers run slabs of rows on threads of their own.

`BlockFormat.encode` is the NumPy twin of encoders that need no search. Those that do are held to
llama.cpp's bytes without statistics, to its loss with them, and to a search in f64.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from quantcli.formats import F32, U8, BlockFormat, Blocks
from quantcli.kernels.quantize import plain, search
from quantcli.kernels.quantize.layouts import LAYOUTS, Layout
from quantcli.kernels.quantize.nearest import find

_SLAB = 2**18  # weights at a time: bounds temporary arrays and keeps them in the cache


@dataclass(frozen=True, slots=True)
class Grid:
    """The values that a matrix's weights may take: scale * levels[code] - minimum.

    format   the format it belongs to
    group    weights of a row that share a scale
    levels   f32 (n_levels,)           ascending
    scales   f32 (n_rows, n_groups)    as stored: what decode multiplies with
    minima   f32 (n_rows, n_groups)    zeros for formats without
    blocks   Blocks (n_rows * n_in / weights_per_block,)   with every field but the codes
    """

    format: BlockFormat
    group: int
    levels: F32
    scales: F32
    minima: F32
    blocks: Blocks


def encode(weights: F32, fmt: BlockFormat, importance: F32 | None = None) -> U8:
    """Return weights as the bytes of blocks, u8 (nbytes,), row after row.

    weights     f32 (n_rows, n_in), finite
    importance  f32 (n_in,), at least 0: what the squared error of each input counts; None for the
                bytes that llama.cpp's encoders write without statistics

    Raises ShapeError if rows are not whole blocks, UsageError if the format can only be decoded.
    """
    n_rows, n_in = weights.shape
    nbytes = fmt.row_nbytes(n_in)
    encoded = np.empty((n_rows, nbytes), np.uint8)
    step = max(1, _SLAB // max(n_in, 1))
    for start in range(0, n_rows, step):
        part = np.ascontiguousarray(weights[start : start + step], np.float32)
        if fmt.name not in LAYOUTS or importance is None:
            data = plain.encode(part, fmt)
        else:
            grid = fit(part, fmt, importance)
            data = assemble(grid, nearest(grid, part))
        encoded[start : start + step] = data.reshape(-1, nbytes)
    return encoded.reshape(-1)


def fit(weights: F32, fmt: BlockFormat, importance: F32 | None = None) -> Grid:
    """Return the grid on which the weighted squared error of weights f32 (n_rows, n_in) is least.

    Without importance every input counts the same.
    """
    layout = LAYOUTS[fmt.name]
    n_rows, n_in = weights.shape
    fmt.row_nbytes(n_in)
    blocks = layout.header(*search.fit(np.ascontiguousarray(weights), layout, importance))
    return _grid(layout, blocks, n_rows)


def nearest(grid: Grid, weights: F32) -> U8:
    """Return the code u8 (n_rows, n_in) of the level nearest to each weight."""
    return find(weights, grid.scales, grid.minima, grid.levels)


def assemble(grid: Grid, codes: U8) -> U8:
    """Return the blocks, u8 (nbytes,), of a grid and codes u8 (n_rows, n_in)."""
    layout = LAYOUTS[grid.format.name]
    blocks = grid.blocks.copy()
    layout.put_codes(blocks, codes.reshape(len(blocks), -1))
    return blocks.view(np.uint8)


def _grid(layout: Layout, blocks: Blocks, n_rows: int) -> Grid:
    scales, minima = (a.reshape(n_rows, -1) for a in layout.scale(blocks))
    return Grid(layout.format, layout.group, layout.levels, scales, minima, blocks)
