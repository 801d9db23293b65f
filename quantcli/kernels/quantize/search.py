"""Runs the compiled searches: trial tables, scratch memory, lanes back to blocks."""

from __future__ import annotations

from functools import cache

import numpy as np

from quantcli.formats import F32
from quantcli.kernels.quantize.fit_minimum import fit_minimum
from quantcli.kernels.quantize.fit_scale import fit_whole
from quantcli.kernels.quantize.lanes import FIT_ARGS, LANES, LINE, SCRATCH_LINES
from quantcli.kernels.quantize.layouts import I32, Layout


def run(weights: F32, layout: Layout, importance: F32 | None) -> tuple[F32, F32, I32, I32]:
    """Return d, dmin f32 (n_blocks,) and s, m i32 (n_blocks, n_groups)."""
    width = layout.format.weights_per_block
    n_blocks, n_groups = weights.size // width, width // layout.group
    n_tiles = -(-n_blocks // LANES)
    trials, d_trials = _trials(layout.name)
    memory = np.empty((2 * width + SCRATCH_LINES + 1, LINE // 4), np.float32)
    counts = _counts(importance, weights.shape[1])
    d, dmin = np.zeros((2, n_tiles * LANES), np.float32)
    s, m = np.ones((2, n_tiles, n_groups, LANES), np.float32)
    a = np.zeros(1, FIT_ARGS)
    a["src"], a["importance"] = weights.ctypes.data, counts.ctypes.data
    a["n_blocks"], a["period"] = n_blocks, weights.shape[1] // width
    a["width"], a["group"], a["emphasis"] = width, layout.group, 1
    a["trials"], a["n_trials"] = trials.ctypes.data, len(trials)
    a["d_trials"], a["n_d_trials"] = d_trials.ctypes.data, len(d_trials)
    a["low"], a["high"] = layout.levels[0], layout.levels[-1]
    a["s_low"], a["s_high"] = layout.s_range or (1, 1)
    a["m_low"], a["m_high"] = layout.m_range or (0, 0)
    start = memory.ctypes.data
    start += -start % LINE
    a["x"], a["v"], a["scratch"] = start, start + LINE * width, start + 2 * LINE * width
    a["d"], a["dmin"], a["s"], a["m"] = (x.ctypes.data for x in (d, dmin, s, m))
    (fit_whole if layout.m_range is None else fit_minimum)(a.ctypes.data)
    subs = [x.transpose(0, 2, 1).reshape(-1, n_groups)[:n_blocks].astype(np.int32) for x in (s, m)]
    return d[:n_blocks], dmin[:n_blocks], subs[0], subs[1]


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
    from quantcli.kernels.quantize.layouts import LAYOUTS

    layout = LAYOUTS[name]
    low, high = layout.levels[0], layout.levels[-1]
    if layout.m_range is None:
        steps = np.arange(-9, 13) / 10
        trials = np.concatenate([low - steps, high + steps])
        s_low, s_high = layout.s_range or (1, 1)
        steps = np.arange(-10, 11) / 20
        d_trials = np.concatenate([s_low - steps, s_high + steps])
    else:
        steps = np.arange(-18, 19) / 20
        trials = np.stack([high + steps, np.ones(len(steps))], axis=-1)
        s_low, s_high = layout.s_range or (1, 1)
        d_trials = s_high - np.arange(-10, 41) / 20
    return trials.astype(np.float32), d_trials.astype(np.float32)
