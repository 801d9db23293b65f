"""RoPE angles: the cos and sin of every rotated pair at every position, for both executors.

Computed in f64 and rounded once, so that a position's row is the same bits in any batch.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from quantcli.errors import CheckpointError
from quantcli.formats import F32
from quantcli.plan import Heads, Rope

F64 = npt.NDArray[np.float64]


def factors_of(rope: Rope, context: int) -> str | None:
    """Return the tensor of frequency factors that a context calls for, or None.

    context  positions that a sequence can hold, not those it does: a position's angles must not
             change as a sequence grows
    """
    if rope.long_factors and context > rope.original_context:
        return rope.long_factors
    return rope.freq_factors


def rope_angles(
    rope: Rope, freq_factors: F32 | None, positions: Sequence[int] | npt.NDArray[np.integer]
) -> tuple[F32, F32]:
    """Return cos and sin for the pairs of a head, each times RoPE's magnitude.

    freq_factors  f32 (n_rot / 2,)      `rope.freq_factors` as an array, or None
    positions     int (n,)
    return        f32 (n, n_rot / 2)    cos, and sin
    """
    angles = np.outer(np.asarray(positions, np.float64), rope_frequencies(rope, freq_factors))
    scale = magnitude(rope)
    return (np.cos(angles) * scale).astype(np.float32), (np.sin(angles) * scale).astype(np.float32)


def rope_frequencies(rope: Rope, freq_factors: F32 | None = None) -> F64:
    """Return f64 (n_rot / 2,): the angle that a pair turns from one position to the next.

    Plain: f_i = freq_base ** (-2i / n_rot) / freq_factors_i. Linear scaling divides by `factor`.
    YaRN divides slow pairs by `factor`, leaves fast ones and blends between: with r_i = ext_factor
    * ramp(i), f_i = (1 - r_i) * f_i / factor + r_i * f_i.

    Raises CheckpointError for a frequency factor that is not above 0.
    Source: Peng et al., YaRN, arXiv:2309.00071, section 3.2.
    """
    pair = np.arange(rope.n_rot // 2, dtype=np.float64)
    plain = rope.freq_base ** (-2.0 * pair / rope.n_rot)
    if freq_factors is not None:
        if not (np.isfinite(freq_factors) & (freq_factors > 0)).all():
            raise CheckpointError(f"{rope.freq_factors} must hold finite numbers above 0 only.")
        plain = plain / freq_factors.astype(np.float64)
    if rope.scaling == "none":
        return plain
    scaled = plain / rope.factor
    if rope.scaling == "linear":
        return scaled
    first, last = (_pair_that_turns(rope, turns) for turns in (rope.beta_fast, rope.beta_slow))
    low, high = max(0.0, math.floor(first)), min(rope.n_rot - 1.0, math.ceil(last))
    ramp = 1.0 - np.clip((pair - low) / max(0.001, high - low), 0.0, 1.0)
    blend = rope.ext_factor * ramp
    blended: F64 = scaled * (1.0 - blend) + plain * blend
    return blended


def magnitude(rope: Rope) -> float:
    """Return the factor on cos and sin: `attn_factor`, and YaRN's 0.1 ln(factor) + 1.

    With a `log_mul` the latter is divided by the same with 0.1 log_mul.

    Source: Peng et al., YaRN, arXiv:2309.00071, section 3.4 (their sqrt(1/t)).
    """
    if rope.scaling == "yarn" and rope.ext_factor and rope.factor > 1.0:
        growth = 0.1 * math.log(rope.factor)
        return rope.attn_factor * (growth + 1.0) / (rope.log_mul * growth + 1.0)
    return rope.attn_factor


def temperatures(heads: Heads, positions: npt.NDArray[np.integer]) -> F32:
    """Return f32 (n,): the factor on q at each position, 1 + t ln(1 + floor(position / length)).

    Source: Llama 4's and Ministral 3's configurations, "attention temperature tuning".
    """
    steps = np.floor(np.asarray(positions, np.float64) / heads.temperature_length)
    return (1.0 + heads.temperature * np.log1p(steps)).astype(np.float32)


def _pair_that_turns(rope: Rope, turns: float) -> float:
    """Return the pair, as a real number, that turns so often within the original context."""
    wavelength = rope.original_context / (turns * 2.0 * math.pi)
    return rope.n_rot * math.log(wavelength) / (2.0 * math.log(rope.freq_base))
