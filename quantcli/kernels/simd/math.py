"""Our own exp and what follows from it, on f32x16: no libm, so bits do not depend on the system."""

from __future__ import annotations

from numpy import float32 as f32

from quantcli.kernels.jit import inline
from quantcli.kernels.simd import (
    fma,
    i32_to_f32,
    ldexp,
    maximum,
    minimum,
    round_to_i32,
    select_less,
    splat,
    vdiv,
    vmul,
    vsub,
)

LOG2_E = f32(1.4426950408889634)
# ln 2 in two parts: n * LN2_HIGH is exact for |n| < 2**9, since its last 9 bits are zero.
LN2_HIGH = f32(0.693359375)
LN2_LOW = f32(-2.12194440e-4)
EXP_MIN = f32(-87.0)  # below this exp is taken as 0: nothing subnormal comes out
EXP_MAX = f32(88.0)
# exp(r) on |r| <= ln(2) / 2 as 1 + r + r**2 * p(r), a minimax fit (Cephes expf).
P0, P1, P2 = f32(1.9875691500e-4), f32(1.3981999507e-3), f32(8.3334519073e-3)
P3, P4, P5 = f32(4.1665795894e-2), f32(1.6666665459e-1), f32(5.0000001201e-1)
ZERO, ONE, TWO, HALF = f32(0.0), f32(1.0), f32(2.0), f32(0.5)
OAI_CLAMP, OAI_SLOPE = f32(7.0), f32(1.702)  # of gpt-oss's gate
GELU_CUBE = f32(0.044715)
GELU_SCALE = f32(0.7978845608028654)  # sqrt(2 / pi)


@inline
def exp(x):
    """Return e**x to about 1 ulp; exactly 1 at 0 and exactly 0 below -87, -inf included."""
    # In this order a NaN stays one: both return their second argument where they cannot compare.
    bounded = minimum(splat(EXP_MAX), maximum(splat(EXP_MIN), x))
    n = round_to_i32(vmul(bounded, splat(LOG2_E)))
    turns = i32_to_f32(n)
    r = vsub(bounded, vmul(turns, splat(LN2_HIGH)))
    r = vsub(r, vmul(turns, splat(LN2_LOW)))
    p = splat(P0)
    p = fma(p, r, splat(P1))
    p = fma(p, r, splat(P2))
    p = fma(p, r, splat(P3))
    p = fma(p, r, splat(P4))
    p = fma(p, r, splat(P5))
    value = fma(p, vmul(r, r), r) + splat(ONE)
    return select_less(x, splat(EXP_MIN), splat(ZERO), ldexp(value, n))


@inline
def tanh(x):
    """Return the hyperbolic tangent as 1 - 2 / (1 + e**2x)."""
    return vsub(splat(ONE), vdiv(splat(TWO), splat(ONE) + exp(vmul(splat(TWO), x))))


@inline
def sigmoid(x):
    """Return 1 / (1 + e**-x)."""
    return vdiv(splat(ONE), splat(ONE) + exp(vsub(splat(ZERO), x)))


@inline
def silu(x):
    """Return x / (1 + e**-x)."""
    return vdiv(x, splat(ONE) + exp(vsub(splat(ZERO), x)))


@inline
def gelu_tanh(x):
    """Return x / 2 * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 x**3)))."""
    inner = vmul(splat(GELU_SCALE), fma(vmul(splat(GELU_CUBE), x), vmul(x, x), x))
    return vmul(vmul(splat(HALF), x), splat(ONE) + tanh(inner))


@inline
def relu_squared(x):
    """Return x**2 above 0, else 0."""
    positive = maximum(splat(ZERO), x)
    return vmul(positive, positive)


@inline
def swiglu_oai(gate, up):
    """Return gate / (1 + e**(-1.702 gate)) * (up + 1), both clamped to 7, up to -7 as well."""
    # In this order a NaN stays one, as in exp.
    x = minimum(splat(OAI_CLAMP), gate)
    y = minimum(splat(OAI_CLAMP), maximum(splat(-OAI_CLAMP), up))
    share = splat(ONE) + exp(vmul(splat(-OAI_SLOPE), x))
    return vmul(vdiv(x, share), y + splat(ONE))
