"""Probabilities as whole numbers: 2**42 for the most likely token, exp(depth) of that for others.

Sums of whole numbers do not depend on their order, so that compiled loops and their NumPy twins
choose the same token on every machine. exp is our own, in f64 without fused operations. A token 29
nats below the most likely one has weight 0.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from quantcli.kernels.jit import inline

I64 = npt.NDArray[np.int64]
F64 = npt.NDArray[np.float64]

f64 = np.float64

WEIGHT_BITS = 42  # the most likely token weighs 2**42; a row may hold 2**21 tokens before sums wrap
MAX_TOKENS = 1 << (63 - WEIGHT_BITS)
LOWEST = f64(-64.0)  # exp(-64) weighs nothing: smaller arguments are taken as this one

# exp(x) = 2**n exp(r), n = round(x / ln 2), |r| <= ln 2 / 2. Adding MAGIC rounds to a whole number
# and leaves it in the low bits. ln 2 in two parts, so that n * LN2_HIGH is exact.
LOG2E = f64(1.4426950408889634)
LN2_HIGH = f64(float.fromhex("0x1.62e42fee00000p-1"))
LN2_LOW = f64(float.fromhex("0x1.a39ef35793c76p-33"))
MAGIC = f64(6755399441055744.0)  # 1.5 * 2**52
MAGIC_BITS = 0x4338000000000000


def weights_reference(x: F64) -> I64:
    """Return exp(x) * 2**42 for x <= 0 as whole numbers within 2 of it, i64 (n,)."""
    x = np.maximum(x, LOWEST)
    n = np.rint(x * LOG2E)
    r = (x - n * LN2_HIGH) - n * LN2_LOW
    y = np.full_like(r, 1 / 3628800)
    for factorial in (362880, 40320, 5040, 720, 120, 24, 6, 2, 1, 1):
        y = y * r + 1 / factorial
    scaled: F64 = np.ldexp(y, n.astype(np.int32) + WEIGHT_BITS)
    return np.rint(scaled).astype(np.int64)


@inline
def weight(x):
    """Return exp(x) * 2**42 for an f64 x <= 0 as an i64; the twin of `weights_reference`."""
    x = max(x, LOWEST)
    shifted = x * LOG2E + MAGIC
    n = shifted - MAGIC
    r = (x - n * LN2_HIGH) - n * LN2_LOW
    y = f64(1 / 3628800)
    y = y * r + f64(1 / 362880)
    y = y * r + f64(1 / 40320)
    y = y * r + f64(1 / 5040)
    y = y * r + f64(1 / 720)
    y = y * r + f64(1 / 120)
    y = y * r + f64(1 / 24)
    y = y * r + f64(1 / 6)
    y = y * r + f64(1 / 2)
    y = y * r + f64(1.0)
    y = y * r + f64(1.0)
    exponent = f64(shifted).view(np.int64) - MAGIC_BITS + (1023 + WEIGHT_BITS)
    power = np.int64(exponent << 52).view(np.float64)
    return f64(y * power + MAGIC).view(np.int64) - MAGIC_BITS  # rounds half to even, as rint does
