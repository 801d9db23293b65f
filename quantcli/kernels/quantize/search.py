"""Runs the compiled searches: their trials, scratch memory, and lanes back to blocks."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import numpy as np

from quantcli.formats import F32, U8
from quantcli.kernels.quantize.fit_minimum import fit_minimum, fit_minimum_shared
from quantcli.kernels.quantize.fit_scale import (
    fit_e2m1,
    fit_iq4,
    fit_iq4_shared,
    fit_whole,
    fit_whole_shared,
)
from quantcli.kernels.quantize.lanes import ARGS, LANES, LINE, SCRATCH_LINES
from quantcli.kernels.quantize.layouts import I32, LAYOUTS, Layout
from quantcli.kernels.quantize.plain_iq4 import plain_iq4
from quantcli.kernels.quantize.plain_k import plain_range, plain_scale

Header = tuple[F32, F32, I32, I32]  # d, dmin (n_blocks,), s, m (n_blocks, n_groups)

# Of each k-quant without statistics: the first trial, their distance and their number, and whether
# errors count by magnitude (q2_k) or codes are chosen one at a time (q3_k).
_PLAIN = {
    "q2_k": (-0.5, 0.1, 15, 1),
    "q3_k": (1e-45, -32.0, 0, 1),
    "q4_k": (-1.0, 0.1, 20, 0),
    "q5_k": (-0.5, 0.1, 15, 0),
    "q6_k": (1e-15, 0.0, 0, 0),
    "iq4_nl": (0.0, 0.0, 0, 0),
    "iq4_xs": (0.0, 0.0, 0, 0),
}
_FITS = {"iq4_nl": fit_iq4, "iq4_xs": fit_iq4_shared, "mxfp4": fit_e2m1}
PLAIN = frozenset(_PLAIN)


class _Run:
    """Arrays of one call of a compiled search, and the argument record that points to them."""

    def __init__(self, weights: F32, layout: Layout) -> None:
        self.width = layout.format.weights_per_block
        self.n_blocks, self.n_groups = weights.size // self.width, self.width // layout.group
        n_tiles = -(-self.n_blocks // LANES)
        self._d, self._dmin = np.zeros((2, n_tiles * LANES), np.float32)
        self._s, self._m = np.ones((2, n_tiles, self.n_groups, LANES), np.float32)
        self._memory = np.empty((2 * self.width + SCRATCH_LINES + 1) * LINE, np.uint8)
        a = self.args = np.zeros(1, ARGS)
        a["src"], a["n_blocks"], a["period"] = weights.ctypes.data, self.n_blocks, self.n_blocks
        a["width"], a["group"] = self.width, layout.group
        a["low"], a["high"] = layout.levels[0], layout.levels[-1]
        a["s_low"], a["s_high"] = layout.s_range or (1, 1)
        a["m_low"], a["m_high"] = layout.m_range or (0, 0)
        start = self._memory.ctypes.data + -self._memory.ctypes.data % LINE
        a["x"], a["v"] = start, start + LINE * self.width
        a["scratch"] = start + 2 * LINE * self.width
        for name in ("d", "dmin", "s", "m"):
            a[name] = getattr(self, f"_{name}").ctypes.data

    def header(self) -> Header:
        """Return what the search chose, block by block."""
        subs = [x.transpose(0, 2, 1).reshape(-1, self.n_groups) for x in (self._s, self._m)]
        s, m = (x[: self.n_blocks].astype(np.int32) for x in subs)
        return self._d[: self.n_blocks], self._dmin[: self.n_blocks], s, m


def fit(weights: F32, layout: Layout, importance: F32 | None) -> Header:
    """Return the scales and minima on which the weighted squared error is least."""
    run = _Run(weights, layout)
    a, counts = run.args, _counts(importance, weights.shape[1])
    trials, fine, ends = _trials(layout.name)
    a["importance"], a["period"] = counts.ctypes.data, weights.shape[1] // run.width
    a["emphasis"] = 1
    a["trials"], a["n_trials"] = trials.ctypes.data, len(trials)
    a["fine"], a["n_fine"] = fine.ctypes.data, len(fine)
    a["d_trials"], a["n_d_trials"] = ends.ctypes.data, len(ends)
    _kernel(layout)(a.ctypes.data)
    return run.header()


def _kernel(layout: Layout) -> Callable[[int], None]:
    """Return the compiled search of a format."""
    if layout.name in _FITS:
        return _FITS[layout.name]  # type: ignore[no-any-return]
    if layout.m_range is None:
        return fit_whole if layout.s_range is None else fit_whole_shared  # type: ignore[no-any-return]
    return fit_minimum if layout.s_range is None else fit_minimum_shared  # type: ignore[no-any-return]


def plain(weights: F32, layout: Layout) -> tuple[Header, U8]:
    """Return what llama.cpp's encoder chooses without statistics, and its codes, block by block."""
    run = _Run(weights, layout)
    a, codes = run.args, np.empty((run.n_blocks, run.width), np.uint8)
    tile = np.empty(run.width * LANES, np.uint8)
    a["codes"], a["code_tile"] = codes.ctypes.data, tile.ctypes.data
    a["start"], a["step"], a["n_trials"], a["is_mad"] = _PLAIN[layout.name]
    kernel = plain_scale if layout.m_range is None else plain_range
    if layout.name.startswith("iq4"):
        kernel = plain_iq4
    kernel(a.ctypes.data)
    return run.header(), codes


def _counts(importance: F32 | None, n_in: int) -> F32:
    """Return what each input's squared error counts: 1 on average, never quite 0."""
    if importance is None:
        return np.ones(n_in, np.float32)
    mean = float(np.mean(importance, dtype=np.float64))
    if not 0 < mean < np.inf:
        return np.ones(n_in, np.float32)
    return np.maximum(importance.astype(np.float64) / mean, 2.0**-20).astype(np.float32)


# Where a trial puts a group's largest magnitude, in code steps beyond the last code. Outliers whose
# error counts little are clipped for the sake of the others.
_BEYOND = np.array([-0.8, -0.4, 0.0, 0.5, 1.1, 1.8, 2.5, 3.3, 4.3, 6.0])
# How much of a range is cut at an end, in code steps of at most 1/8 of the range.
_CUT = np.array([-0.4, 0.0, 0.7, 1.5, 2.4])
# Trials around the best so far, in units of one step at the last code; the first two fit again.
_AROUND = np.array([0, 0, -1.2, -0.9, -0.7, -0.5, -0.3, -0.15, 0.15, 0.3, 0.5, 0.7, 0.9, 1.2])


@cache
def _trials(name: str) -> tuple[F32, F32, F32]:
    """Return the trials of a format's groups, those around the best, and those of its d.

    The sets were chosen by what they lose against ones five times as large: under 1%
    (heavy-tailed weights, log-normal importance, all formats).
    """
    layout = LAYOUTS[name]
    low, high = float(layout.levels[0]), float(layout.levels[-1])
    s_low, s_high = layout.s_range or (1, 1)
    step = 16.0 if name.startswith("iq4") else 1.0  # levels between neighbours, about
    around = 1 + _AROUND * step / high
    beyond = np.arange(-10, 11) / 20
    ends = np.concatenate([s_low - beyond, s_high + beyond])
    if layout.m_range is not None:
        cut = _CUT if high > 3 else _CUT / 2
        trials = np.stack(np.meshgrid(cut, cut), -1).reshape(-1, 2)
        ends = s_high - np.arange(-10, 41) / 20
    elif name == "mxfp4":
        trials = 0.5 ** np.arange(1, 6)
    elif layout.group == 256:
        trials = np.geomspace(0.8, 10, 30)
    else:
        trials = np.concatenate([low - _BEYOND * step, high + _BEYOND * step])
    return trials.astype(np.float32), around.astype(np.float32), ends.astype(np.float32)
