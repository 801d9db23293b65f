"""The values that codes stand for, as compile-time values of the searches."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise

from numba.extending import overload

from quantcli.kernels.jit import inline
from quantcli.kernels.quantize.lanes import clamp, round_even
from quantcli.kernels.simd import define, emit
from quantcli.kernels.simd.vectors import F32X16, f32x16
from quantcli.kernels.static import register_static

# Four-bit levels that lie closer where weights are denser.
IQ4 = (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)
# Four-bit floats with two bits of exponent and one of fraction (OCP Microscaling 1.0), doubled.
E2M1 = (-12, -8, -6, -4, -3, -2, -1, 0, 1, 2, 3, 4, 6, 8, 12)


@register_static
@dataclass(frozen=True, slots=True, eq=False)
class Levels:
    """How to find the level nearest to y: compiled (y, low, high) -> f32x16."""

    name: str
    nearest: Callable[..., object]


def nearest_level(levels, y, low, high):
    """Return the level nearest to y, in each lane."""


@overload(nearest_level)
def _nearest_level(levels, y, low, high):
    function = levels.value.nearest
    return lambda levels, y, low, high: function(y, low, high)


@inline
def whole_level(y, low, high):
    """Return the level nearest to y where levels are all whole numbers in [low, high]."""
    return clamp(round_even(y), low, high)


def _table(values):
    """Return the compiled choice among values: the upper one where y is halfway."""

    def emitter(b, y):
        level = emit.constant(F32X16, float(values[0]))
        for below, above in pairwise(values):
            middle = emit.constant(F32X16, (below + above) / 2)
            above_it = b.fcmp_ordered(">=", y, middle)
            level = b.select(above_it, emit.constant(F32X16, float(above)), level)
        return level

    return define(f32x16, (f32x16,), emitter)


def _code_iq4(b, y):
    code = emit.constant(F32X16, 0.0)
    for k, (below, above) in enumerate(pairwise(IQ4)):
        above_it = b.fcmp_ordered(">=", y, emit.constant(F32X16, (below + above) / 2))
        code = b.select(above_it, emit.constant(F32X16, float(k + 1)), code)
    return code


# The code, a whole number, of the level nearest to y.
iq4_code = define(f32x16, (f32x16,), _code_iq4)
_nearest_iq4 = _table(IQ4)
_nearest_e2m1 = _table(E2M1)


@inline
def _iq4_level(y, low, high):
    return _nearest_iq4(y)


@inline
def _e2m1_level(y, low, high):
    return _nearest_e2m1(y)


WHOLE_LEVELS = Levels("whole", whole_level)
IQ4_LEVELS = Levels("iq4", _iq4_level)
E2M1_LEVELS = Levels("e2m1", _e2m1_level)
