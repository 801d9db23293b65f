"""Where weights may go: the grids that GPTQ rounds to, and what may be chosen of each.

A block of `width` columns has groups with a scale and a minimum each: value = scale * level -
minimum. Of a GGUF block, scales are f16 numbers or whole multiples of one; of plain integers with
groups, as Hugging Face checkpoints have them, a floating-point number and a whole zero.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from quantcli.formats import F32, U8, BlockFormat
from quantcli.kernels.quantize import Grid, descent, fit, nearest
from quantcli.kernels.quantize.layouts import LAYOUTS, Layout

Range = tuple[float, float]


@dataclass(frozen=True, slots=True)
class Scales:
    """What was chosen for some blocks of some rows, but the codes.

    scales, minima   f32 (n_rows, n_groups)
    units            f32 (n_rows, n_blocks, 2)   what they are multiples of; zeros where of nothing
    """

    scales: F32
    minima: F32
    units: F32


class Target(Protocol):
    """A kind of grid."""

    @property
    def width(self) -> int:
        """Columns of a block."""
        ...

    @property
    def group(self) -> int:
        """Columns that share a scale; divides `width`."""
        ...

    @property
    def levels(self) -> F32:
        """f32 (n_levels,), ascending."""
        ...

    @property
    def rounding(self) -> int:
        """What may become of a scale: FIXED, HALF or MULTIPLE of `kernels.quantize.descent`."""
        ...

    @property
    def has_minima(self) -> bool:
        """Whether minima are chosen apart from scales."""
        ...

    @property
    def s_range(self) -> Range:
        """Least and largest multiple of a scale."""
        ...

    @property
    def m_range(self) -> Range:
        """Least and largest multiple of a minimum."""
        ...

    def fit(self, weights: F32, importance: F32) -> Scales:
        """Return the scales on which f32 (n_rows, n), n whole blocks, loses least."""
        ...

    def nearest(self, weights: F32, scales: Scales) -> U8:
        """Return the code u8 (n_rows, n) of the level nearest to each weight."""
        ...


class BlockTarget:
    """The blocks of a GGUF format."""

    def __init__(self, fmt: BlockFormat) -> None:
        """Take a format that has a search."""
        layout: Layout = LAYOUTS[fmt.name]
        self.format = fmt
        self.width = fmt.weights_per_block
        self.group = layout.group
        self.levels = np.ascontiguousarray(layout.levels, np.float32)
        self.has_minima = layout.m_range is not None
        self.s_range: Range = layout.s_range or (1, 1)
        self.m_range: Range = layout.m_range or (0, 0)
        if layout.s_range is not None:
            self.rounding = descent.MULTIPLE
        else:
            self.rounding = descent.HALF if _has_half(fmt) else descent.FIXED
        self._layout = layout

    def fit(self, weights: F32, importance: F32) -> Scales:
        """Return the scales on which weights lose least."""
        grid = fit(weights, self.format, importance)
        n_rows, n_blocks = len(weights), weights.shape[1] // self.width
        units = np.zeros((n_rows, n_blocks, 2), np.float32)
        if self.rounding == descent.MULTIPLE:
            units[..., 0] = grid.blocks["d"].astype(np.float32).reshape(n_rows, n_blocks)
            if self.has_minima:
                units[..., 1] = grid.blocks["dmin"].astype(np.float32).reshape(n_rows, n_blocks)
        return Scales(grid.scales, grid.minima, units)

    def nearest(self, weights: F32, scales: Scales) -> U8:
        """Return the code of the level nearest to each weight."""
        none = np.empty(0, self.format.block)
        grid = Grid(self.format, self.group, self.levels, scales.scales, scales.minima, none)
        return nearest(grid, weights)

    def assemble(self, scales: Scales, codes: U8) -> U8:
        """Return the blocks, u8 (n_rows, row bytes), of all of some rows."""
        n_groups = self.width // self.group
        s, m = (a.reshape(-1, n_groups) for a in (scales.scales, scales.minima))
        units = scales.units.reshape(-1, 2)
        if self.rounding == descent.MULTIPLE:
            d, dmin = units[:, 0].copy(), units[:, 1].copy()
            s, m = _multiples(s, d), _multiples(m, dmin)
        else:
            d, dmin = s[:, 0].copy(), m[:, 0].copy()
            s, m = np.ones(s.shape, np.float32), np.ones(m.shape, np.float32)
        blocks = self._layout.header(d, dmin, s.astype(np.int32), m.astype(np.int32))
        self._layout.put_codes(blocks, codes.reshape(len(blocks), self.width))
        return blocks.view(np.uint8).reshape(len(codes), -1)


def _has_half(fmt: BlockFormat) -> bool:
    """Return whether a block's scale is an f16 of its own."""
    names = fmt.block.names or ()
    return "d" in names and fmt.block["d"] == np.dtype("<f2")


def _multiples(values: F32, units: F32) -> F32:
    """Return values f32 (n, n_groups) over units f32 (n,), whole; 0 where the unit is 0."""
    inverse = np.divide(1, units, out=np.zeros_like(units), where=units != 0)
    return np.rint(values * inverse[:, None])


@dataclass(frozen=True)
class IntegerTarget:
    """Whole numbers of some bits, a scale for a group of columns, and where asked for a zero.

    Signed levels, and value = scale * (level - zero), for which minimum = scale * zero. Symmetric
    groups have zero = 0 and reach from -2 ** (bits - 1) to 2 ** (bits - 1) - 1. Zero is always
    among the values. Scales are f16, as Hugging Face checkpoints store them.
    """

    bits: int
    group: int
    symmetric: bool = True
    levels: F32 = field(init=False)

    rounding = descent.HALF
    has_minima = False
    s_range: Range = (1, 1)
    m_range: Range = (0, 0)

    def __post_init__(self) -> None:
        """Check the numbers."""
        assert self.bits in range(2, 9), self.bits
        assert self.group % 32 == 0, self.group
        half = 1 << (self.bits - 1)
        object.__setattr__(self, "levels", np.arange(-half, half, dtype=np.float32))

    @property
    def width(self) -> int:
        """Columns of a block."""
        return self.group

    def fit(self, weights: F32, importance: F32) -> Scales:
        """Return the scales on which weights lose least: trial ranges, then least squares."""
        n_rows, n_in = weights.shape
        groups = weights.reshape(n_rows, n_in // self.group, self.group)
        counts = np.maximum(importance, np.finfo(np.float32).tiny).reshape(1, -1, self.group)
        sigma = np.mean(np.square(groups), axis=-1, keepdims=True)
        emphasis = counts * np.sqrt(sigma + np.square(groups))
        scale, zero = self._search(groups, emphasis)
        units = np.zeros((n_rows, n_in // self.group, 2), np.float32)
        return Scales(scale[..., 0], (scale * zero)[..., 0], units)

    def nearest(self, weights: F32, scales: Scales) -> U8:
        """Return the code of the level nearest to each weight."""
        scale = np.repeat(scales.scales, self.group, axis=1)
        minimum = np.repeat(scales.minima, self.group, axis=1)
        inverse = np.divide(1, scale, out=np.zeros_like(scale), where=scale != 0)
        level = (weights + minimum) * inverse
        codes: U8 = (_clip(np.rint(level), self.levels) - self.levels[0]).astype(np.uint8)
        return codes

    def _search(self, groups: F32, emphasis: F32) -> tuple[F32, F32]:
        """Return scales and zeros f32 (n_rows, n_groups, 1)."""
        low = np.minimum(groups.min(axis=-1, keepdims=True), 0)
        high = np.maximum(groups.max(axis=-1, keepdims=True), 0)
        best = np.full(low.shape, np.inf, np.float32)
        scale, zero = np.zeros_like(low), np.zeros_like(low)
        for shrink in _SHRINKS:
            for tried, its_zero in self._trials(low, high, shrink):
                fitted = self._fitted(groups, emphasis, tried, its_zero)
                loss = self._loss(groups, emphasis, fitted, its_zero)
                better = loss < best
                best = np.where(better, loss, best)
                scale = np.where(better, fitted, scale)
                zero = np.where(better, its_zero, zero)
        return scale, zero

    def _trials(self, low: F32, high: F32, shrink: float) -> list[tuple[F32, F32]]:
        """Return scales and zeros that let a range be covered, shrunk by a factor."""
        first, last = self.levels[0], self.levels[-1]
        if self.symmetric:
            signed = np.where(-low > high, low, high)
            ends = (np.abs(signed) / last, signed / first)
            return [(end * np.float32(shrink), np.zeros_like(low)) for end in ends]
        scale = (high - low) * np.float32(shrink) / (last - first)
        inverse = np.divide(1, scale, out=np.zeros_like(scale), where=scale != 0)
        return [(scale, _clip(np.rint(first - low * np.float32(shrink) * inverse), self.levels))]

    def _fitted(self, groups: F32, emphasis: F32, scale: F32, zero: F32) -> F32:
        """Return the least-squares scale of the codes that a scale gives, as it is stored."""
        level = self._levels(groups, scale, zero)
        above = (emphasis * level * groups).sum(axis=-1, keepdims=True)
        below = (emphasis * level * level).sum(axis=-1, keepdims=True)
        fitted = np.divide(above, below, out=np.zeros_like(above), where=below > 0)
        limit = np.float32(np.finfo(np.float16).max)
        stored: F32 = np.clip(fitted, -limit, limit).astype(np.float16).astype(np.float32)
        return stored

    def _loss(self, groups: F32, emphasis: F32, scale: F32, zero: F32) -> F32:
        error = groups - scale * self._levels(groups, scale, zero)
        loss: F32 = (emphasis * error * error).sum(axis=-1, keepdims=True)
        return loss

    def _levels(self, groups: F32, scale: F32, zero: F32) -> F32:
        inverse = np.divide(1, scale, out=np.zeros_like(scale), where=scale != 0)
        return _clip(np.rint(groups * inverse + zero), self.levels) - zero


_SHRINKS = (1.0, 0.96, 0.92, 0.88, 0.84, 0.8, 0.75, 0.7)


def _clip(values: F32, levels: F32) -> F32:
    clipped: F32 = np.clip(values, levels[0], levels[-1])
    return clipped
