"""Runs the compiled searches: their trials, scratch memory, and lanes back to blocks."""

from __future__ import annotations

from functools import cache

import numpy as np

from quantcli.formats import F32, U8
from quantcli.kernels.quantize.fit_minimum import fit_minimum
from quantcli.kernels.quantize.fit_scale import fit_e2m1, fit_iq4, fit_whole
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
_FITS = {"iq4_nl": fit_iq4, "iq4_xs": fit_iq4, "mxfp4": fit_e2m1}
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
    trials, d_trials = _trials(layout.name)
    a["importance"], a["period"] = counts.ctypes.data, weights.shape[1] // run.width
    a["emphasis"] = 1
    a["trials"], a["n_trials"] = trials.ctypes.data, len(trials)
    a["d_trials"], a["n_d_trials"] = d_trials.ctypes.data, len(d_trials)
    kernel = _FITS.get(layout.name, fit_whole if layout.m_range is None else fit_minimum)
    kernel(a.ctypes.data)
    return run.header()


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
    return (importance.astype(np.float64) / mean + 1e-6).astype(np.float32)


@cache
def _trials(name: str) -> tuple[F32, F32]:
    """Return the trial ranges of a format's groups, and those of its d."""
    layout = LAYOUTS[name]
    low, high = layout.levels[0], layout.levels[-1]
    s_low, s_high = layout.s_range or (1, 1)
    if layout.name == "mxfp4":
        trials, d_trials = np.array([0.5, 0.25, 0.125, 0.0625, 0.03125]), np.zeros(0)
    elif layout.group == 256:
        trials, d_trials = np.geomspace(0.8, 10, 30), np.zeros(0)
    elif layout.name.startswith("iq4"):
        steps = np.arange(-14, 30, 2)
        trials = np.concatenate([low - steps, high + steps])
        steps = np.arange(-10, 11) / 20
        d_trials = np.concatenate([s_low - steps, s_high + steps])
    elif layout.m_range is None:
        steps = np.arange(-9, 13) / 10
        trials = np.concatenate([low - steps, high + steps])
        steps = np.arange(-10, 11) / 20
        d_trials = np.concatenate([s_low - steps, s_high + steps])
    else:
        steps = np.arange(-18, 19) / 20
        trials = np.stack([high + steps, np.ones(len(steps))], axis=-1)
        d_trials = s_high - np.arange(-10, 41) / 20
    return trials.astype(np.float32), d_trials.astype(np.float32)
