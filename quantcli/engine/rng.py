"""Random numbers by counter: the n-th number of a seed, whatever came before it."""

from __future__ import annotations

_MASK = (1 << 64) - 1
_GOLDEN = 0x9E3779B97F4A7C15  # 2**64 divided by the golden ratio


def _mix(z: int) -> int:
    """Return a 64-bit number in which every bit depends on every bit of z."""
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & _MASK
    return z ^ (z >> 31)


def bits(seed: int, index: int, stream: int = 0) -> int:
    """Return 64 random bits: element `index` of SplitMix64's stream for a scrambled seed.

    stream   one of many streams of the same seed that have nothing to do with each other

    Scrambling keeps the streams of neighbouring seeds apart: unscrambled, the stream of
    seed + golden is the stream of seed one step later.
    Source: Steele, Lea and Flood, Fast splittable pseudorandom number generators, OOPSLA 2014.
    """
    start = _mix(seed & _MASK)
    if stream:
        start = _mix(start ^ _mix(stream))
    return _mix((start + (index + 1) * _GOLDEN) & _MASK)


def uniform(seed: int, index: int, stream: int = 0) -> float:
    """Return a number in [0, 1), a multiple of 2**-53."""
    return (bits(seed, index, stream) >> 11) * 2.0**-53
