"""How far logits may be from those of the NumPy executor, and how far they are.

Two executors that round the same values the same way still differ: their f32 sums add in another
order, and where that moves a value across the edge between two codes, the code flips. A flip is as
large as rounding itself. So two things are held instead of one tolerance:

- rows that no flip reached differ by the noise of f32 sums alone (`noise`). Many short sequences
  have many such rows, since a flip never leaves its sequence;
- over all rows, flips are a part of all roundings, so the distance to the executor that rounds is
  smaller than the distance of that one from the executor that does not (`relative_rms` of both).
"""

from __future__ import annotations

import math

import numpy as np

from quantcli.formats import F32

UNIT = 2.0**-24  # the largest relative error of one f32 rounding
OPS_OF_A_LAYER = 12  # that follow one another, each rounding its output


def noise(n_layers: int, longest_sum: int = 512) -> float:
    """Return the relative error that f32 sums leave in logits.

    A sum of n terms is off by about UNIT * sqrt(n) of its terms, and errors of k ops that follow
    one another add up as sqrt(k), there being no reason for them to agree in sign.
    """
    return UNIT * math.sqrt(longest_sum) * math.sqrt(OPS_OF_A_LAYER * n_layers + 3)


def relative_errors(found: F32, expected: F32) -> np.ndarray:
    """Return the RMS error of each row of logits, relative to how much its logits vary."""
    error = found.astype(np.float64) - expected
    return np.asarray(np.sqrt(np.mean(error**2, axis=-1)) / expected.std(axis=-1))


def relative_rms(found: F32, expected: F32) -> float:
    """Return the RMS error over all rows, relative to how much logits vary."""
    return float(np.sqrt(np.mean(relative_errors(found, expected) ** 2)))


def log_softmax(logits: F32) -> np.ndarray:
    """Return log-probabilities in f64."""
    x = logits.astype(np.float64)
    x -= x.max(axis=-1, keepdims=True)
    return np.asarray(x - np.log(np.exp(x).sum(axis=-1, keepdims=True)))


def divergence(expected: F32, found: F32) -> np.ndarray:
    """Return KL(expected || found) of each row."""
    p, q = log_softmax(expected), log_softmax(found)
    return np.asarray(np.sum(np.exp(p) * (p - q), axis=-1))
