"""RoPE angles against formulas written a second way."""

from __future__ import annotations

import math

import numpy as np
import pytest

from quantcli.errors import CheckpointError
from quantcli.plan import Rope
from quantcli.runtime.rope_tables import magnitude, rope_angles, rope_frequencies

PLAIN = Rope("neox", n_rot=64, freq_base=10000.0)
LINEAR = Rope("neox", n_rot=64, freq_base=10000.0, scaling="linear", factor=4.0)
YARN = Rope(
    "neox",
    n_rot=64,
    freq_base=10000.0,
    scaling="yarn",
    factor=4.0,
    original_context=4096,
    ext_factor=1.0,
)


def test_plain_angles() -> None:
    cos, sin = rope_angles(PLAIN, None, [0, 1, 1000])
    assert cos.shape == sin.shape == (3, 32)
    assert cos.dtype == sin.dtype == np.float32
    for row, position in enumerate((0, 1, 1000)):
        for pair in (0, 1, 31):
            angle = position / 10000.0 ** (2 * pair / 64)
            assert cos[row, pair] == np.float32(math.cos(angle))
            assert sin[row, pair] == np.float32(math.sin(angle))


def test_a_position_has_the_same_bits_in_any_batch() -> None:
    cos, sin = rope_angles(YARN, None, range(700))
    for position in (0, 1, 63, 699):
        alone = rope_angles(YARN, None, [position])
        assert np.array_equal(cos[position], alone[0][0])
        assert np.array_equal(sin[position], alone[1][0])


def test_linear_scaling_divides_positions() -> None:
    near = rope_angles(PLAIN, None, [250])
    far = rope_angles(LINEAR, None, [1000])
    assert np.array_equal(near, far)


def test_frequency_factors_divide() -> None:
    factors = np.linspace(1, 8, 32, dtype=np.float32)
    expected = rope_frequencies(PLAIN) / factors
    assert rope_frequencies(PLAIN, factors) == pytest.approx(expected)


@pytest.mark.parametrize("bad", [0.0, -1.0, float("nan"), float("inf")])
def test_frequency_factors_that_are_no_divisors_are_refused(bad: float) -> None:
    rope = Rope("norm", n_rot=4, freq_base=1e4, freq_factors="rope_freqs.weight")
    with pytest.raises(CheckpointError, match=r"rope_freqs.weight must hold finite numbers"):
        rope_frequencies(rope, np.array([1.0, bad], np.float32))


def yarn_blend(pair: int, rope: Rope) -> float:
    """Return how much of a pair's frequency is left unscaled: YaRN's gamma, by definition.

    A pair that turns r times within the original context is left alone for r above beta_fast and
    scaled for r below beta_slow, with the borders rounded outwards to whole pairs.
    """

    def border(turns: float) -> float:
        return (
            rope.n_rot / 2 * math.log(rope.original_context / (2 * math.pi * turns), rope.freq_base)
        )

    low = max(math.floor(border(rope.beta_fast)), 0)
    high = min(math.ceil(border(rope.beta_slow)), rope.n_rot - 1)
    if pair <= low:
        return 1.0
    return 0.0 if pair >= high else (high - pair) / (high - low)


def test_yarn_blends_scaled_and_plain_frequencies() -> None:
    plain, yarn = rope_frequencies(PLAIN), rope_frequencies(YARN)
    blends = [yarn_blend(pair, YARN) for pair in range(32)]
    expected = [f * (b + (1 - b) / 4) for f, b in zip(plain, blends, strict=True)]
    assert yarn == pytest.approx(np.array(expected), rel=1e-12)
    assert yarn[0] == plain[0]
    assert yarn[-1] == pytest.approx(plain[-1] / 4)
    assert 0 < sum(0 < b < 1 for b in blends) < 32


def test_yarn_stretches_cos_and_sin() -> None:
    expected = 0.1 * math.log(4.0) + 1.0
    assert magnitude(YARN) == expected
    cos, sin = rope_angles(YARN, None, [5, 4000])
    assert np.sqrt(cos**2 + sin**2) == pytest.approx(expected, rel=1e-6)
    assert magnitude(LINEAR) == magnitude(PLAIN) == 1.0


def test_an_attention_factor_multiplies() -> None:
    rope = Rope("neox", n_rot=2, freq_base=1e4, attn_factor=0.5)
    assert rope_angles(rope, None, [0])[0] == pytest.approx(0.5)


def test_yarn_without_extrapolation_is_linear() -> None:
    rope = Rope(
        "neox", n_rot=64, freq_base=10000.0, scaling="yarn", factor=4.0, original_context=4096
    )
    assert np.array_equal(rope_frequencies(rope), rope_frequencies(LINEAR))
    assert magnitude(rope) == 1.0


@pytest.mark.parametrize("original_context", [1, 2, 10**9])
@pytest.mark.parametrize("freq_base", [1.001, 1e15])
def test_extreme_parameters_stay_finite(original_context: int, freq_base: float) -> None:
    rope = Rope(
        "norm",
        n_rot=8,
        freq_base=freq_base,
        scaling="yarn",
        factor=1e6,
        original_context=original_context,
        ext_factor=1.0,
    )
    cos, sin = rope_angles(rope, None, [0, 2**31 - 1])
    assert np.isfinite(cos).all()
    assert np.isfinite(sin).all()
