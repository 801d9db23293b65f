"""Choosing a token from a row of logits: one pass over the row, then only the few that matter.

Everything is exact, so that the compiled loops and their NumPy twins choose the same token on
every machine:

- Logits are compared as integers (`key`), which is also how a NaN is seen without a branch.
- A probability is a whole number (`quantcli.kernels.weights`), so that sums do not depend on
  their order.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from quantcli.kernels.jit import inline, njit
from quantcli.kernels.weights import LOWEST, MAX_TOKENS, weight

I64 = npt.NDArray[np.int64]
F32 = npt.NDArray[np.float32]
F64 = npt.NDArray[np.float64]

f32 = np.float32
f64 = np.float64

BLOCK = 256  # logits whose largest is remembered, so that whole blocks can be passed over

PLUS_INF = 0x7F800000  # keys
MINUS_INF = -0x7F800001
KEY_OFFSET = 1 << 31  # key + KEY_OFFSET is not negative

# What `choose` returns instead of a token.
NOT_FINITE = -1  # a logit is NaN or +inf
NOTHING = -2  # every logit is -inf

# `p` must be reached by a sum of f32 logits' probabilities, each a few 1e-8 off: textbook numbers
# such as 0.4 + 0.3 must count as 0.7.
SLACK = f64(1e-6)

SETTINGS = np.dtype(
    [
        ("top_k", "i8"),  # 0 or less: all
        ("typical_p", "f8"),
        ("top_p", "f8"),
        ("log_min_p", "f8"),  # ln(min_p), -inf for 0
        ("temperature", "f8"),  # 0 or less: the most likely token
    ],
    align=True,
)


class Scratch(NamedTuple):
    """Memory for one call at a time, for rows of n logits."""

    block_max: I64  # (ceil(n / BLOCK),) largest key of each block of the row
    ids: I64  # (n,) candidates, ascending
    keys: I64  # (n,) what they are ordered by, 0 <= key < 2**32
    weights: I64  # (n,)
    depths: F64  # (n,)
    bins: I64  # (2048,)

    @classmethod
    def of(cls, n: int) -> Scratch:
        """Return scratch for rows of n logits."""
        assert 0 < n <= MAX_TOKENS, n
        ids, keys, weights = (np.empty(n, np.int64) for _ in range(3))
        n_blocks = -(-n // BLOCK)
        block_max, bins = np.empty(n_blocks, np.int64), np.empty(2048, np.int64)
        return cls(block_max, ids, keys, weights, np.empty(n), bins)


def heaviest_reference(order: F64, weights: I64, target: int) -> npt.NDArray[np.intp]:
    """Return, ascending, the fewest indices whose weights reach `target`, largest `order` first.

    Of equal ones the lower index goes first. All indices, if the target is out of reach.
    """
    descending = np.argsort(-order, kind="stable")
    n_kept = int(np.searchsorted(np.cumsum(weights[descending]), target)) + 1
    return np.sort(descending[:n_kept])


@inline
def _key(logit):
    """Return i64: a whole number that orders as the f32 does, -0 = +0. NaNs lie beyond the infs."""
    bits = f32(logit + f32(0.0)).view(np.int32)  # adding 0 turns -0 into +0
    return np.int32(bits ^ np.int32(np.int32(bits >> 31) & np.int32(0x7FFFFFFF)))


@inline
def _logit(key):
    """Return the f32 with this key."""
    bits = np.int32(key)
    return np.int32(bits ^ np.int32(np.int32(bits >> 31) & np.int32(0x7FFFFFFF))).view(np.float32)


@inline
def _range(part):
    """Return the smallest and largest key of a slice; NaNs and infinities show at the ends."""
    low = np.int32(0x7FFFFFFF)
    high = np.int32(-0x80000000)
    for i in range(part.size):
        key = _key(part[i])
        low = min(low, key)
        high = max(high, key)
    return low, high


@inline
def _scan(row, block_max):
    """Store each block's largest key; return the smallest and largest key of the row."""
    low = np.int32(0x7FFFFFFF)
    high = np.int32(-0x80000000)
    for block in range(block_max.size):  # slices: indices from 0 are what lets LLVM vectorize
        block_low, block_high = _range(row[block * BLOCK : (block + 1) * BLOCK])
        block_max[block] = block_high
        low = min(low, block_low)
        high = max(high, block_high)
    return np.int64(low), np.int64(high)


@inline
def _first(row, block_max, key):
    """Return the lowest index with this key."""
    block = 0
    while block_max[block] != key:
        block += 1
    i = block * BLOCK
    while _key(row[i]) != key:
        i += 1
    return i


@inline
def _gather(row, top, depth, scratch):
    """Write, ascending, the candidates with logit - top >= depth; return how many."""
    n = 0
    for block in range(scratch.block_max.size):
        if f64(_logit(scratch.block_max[block])) - top >= depth:
            part = row[block * BLOCK : (block + 1) * BLOCK]
            for i in range(part.size):  # no branch: in a flat row it would be mispredicted
                scratch.ids[n] = block * BLOCK + i
                n += np.int64(f64(part[i]) - top >= depth)
    return n


@inline
def _total(row, top):
    """Return the weight of the whole row relative to `top`."""
    total = np.int64(0)
    for i in range(row.size):
        total += weight(f64(row[i]) - top)
    return total


@inline
def _weigh(row, top, temperature, n, scratch):
    """Write the weights of n candidates relative to `top` at a temperature; return their sum."""
    for j in range(n):
        scratch.depths[j] = (f64(row[scratch.ids[j]]) - top) / temperature
    total = np.int64(0)
    for j in range(n):  # its own loop, because reading through ids does not vectorize
        scratch.weights[j] = weight(scratch.depths[j])
        total += scratch.weights[j]
    return total


@inline
def _reach(total, p):
    """Return the weight that is a share p of the total, at least 1."""
    return max(np.int64(1), np.int64(np.ceil(f64(total) * (p - SLACK))))


@inline
def _order_by_logit(row, n, scratch):
    """Write the keys of n candidates' logits."""
    for j in range(n):
        scratch.keys[j] = _key(row[scratch.ids[j]]) + KEY_OFFSET


@inline
def _cut(n, target, scratch):
    """Find the key at which the weight, largest key first, reaches `target`; 11 bits at a time.

    Returns it, -1 if there is none, and the weight still wanted of candidates with this key.
    """
    keys, bins = scratch.keys, scratch.bins
    prefix = np.int64(0)
    wanted = np.int64(target)
    for level in range(3):
        shift = 22 - 11 * level
        bins[:] = 0
        for j in range(n):
            if keys[j] >> (shift + 11) == prefix:
                bins[(keys[j] >> shift) & 2047] += scratch.weights[j]
        digit = np.int64(2047)
        while digit >= 0 and bins[digit] < wanted:
            wanted -= bins[digit]
            digit -= 1
        if digit < 0:
            return np.int64(-1), wanted
        prefix = (prefix << 11) | digit
    return prefix, wanted


@inline
def _keep(n, target, scratch):
    """Keep the fewest candidates whose weights reach `target`, largest key first, then lowest id.

    The twin of `heaviest_reference`. Returns how many are kept; they stay in order of id.
    """
    cut, wanted = _cut(n, target, scratch)
    n_kept = 0
    for j in range(n):
        key = scratch.keys[j]
        if key > cut or (key == cut and wanted > 0):
            if key == cut:
                wanted -= scratch.weights[j]
            scratch.ids[n_kept] = scratch.ids[j]
            n_kept += 1
    return n_kept


@inline
def _top_k(row, top, k, scratch):
    """Write the k candidates with the largest logits; return how many there are."""
    n = scratch.block_max.size
    depth = f64(-np.inf)
    if k <= n:  # k logits are at least as large as the k-th largest of the blocks' largest
        for block in range(n):
            scratch.keys[block] = scratch.block_max[block] + KEY_OFFSET
            scratch.weights[block] = 1
        bound, _ = _cut(n, k, scratch)
        depth = f64(_logit(bound - KEY_OFFSET)) - top
    n = _gather(row, top, depth, scratch)
    _order_by_logit(row, n, scratch)
    scratch.weights[:n] = 1
    return _keep(n, k, scratch)


@inline
def _typical(row, top, p, n, scratch):
    """Keep the candidates whose information is nearest the entropy; return how many."""
    total = _weigh(row, top, f64(1.0), n, scratch)
    moment = f64(0.0)
    for j in range(n):
        moment += f64(scratch.weights[j]) * max(scratch.depths[j], LOWEST)
    mean = moment / f64(total)
    for j in range(n):
        distance = f32(abs(max(scratch.depths[j], LOWEST) - mean))
        scratch.keys[j] = 0x7FFFFFFF - distance.view(np.int32)  # the smallest first
    return _keep(n, _reach(total, p), scratch)


@inline
def _down_to(row, top, target, log_min_p, scratch):
    """Write the candidates that top_p and min_p can keep, looking no deeper than it takes."""
    depth = f64(-6.0)
    while True:
        depth = max(depth, log_min_p)
        n = _gather(row, top, depth, scratch)
        if depth == log_min_p or _weigh(row, top, f64(1.0), n, scratch) >= target:
            return n
        depth = depth + depth if depth > LOWEST else f64(-np.inf)


@inline
def _largest(row, n, scratch):
    """Return the candidate with the largest logit, the lowest of equal ones."""
    best = scratch.ids[0]
    for j in range(1, n):
        if row[scratch.ids[j]] > row[best]:
            best = scratch.ids[j]
    return best


@inline
def _candidates(row, top, s, scratch):
    """Write the candidates that top_k, typical_p, top_p and min_p leave.

    Returns how many, and the largest of their logits.
    """
    target = np.int64(0)  # of top_p; 0 while unknown
    if 0 < s.top_k < row.size:
        n = _top_k(row, top, s.top_k, scratch)
    elif s.typical_p < f64(1.0):
        n = _gather(row, top, f64(-np.inf), scratch)
    elif s.top_p < f64(1.0):
        target = _reach(_total(row, top), s.top_p)
        n = _down_to(row, top, target, s.log_min_p, scratch)
    else:  # what lies below LOWEST weighs nothing
        n = _gather(row, top, max(s.log_min_p, LOWEST * s.temperature), scratch)
    if s.typical_p < f64(1.0):
        n = _typical(row, top, s.typical_p, n, scratch)
        top = f64(row[_largest(row, n, scratch)])
    if s.top_p < f64(1.0):
        total = _weigh(row, top, f64(1.0), n, scratch)
        if target == 0:
            target = _reach(total, s.top_p)
        if total >= target:  # else min_p has already cut deeper
            _order_by_logit(row, n, scratch)
            n = _keep(n, target, scratch)
    n_kept = 0
    for j in range(n):  # min_p
        scratch.ids[n_kept] = scratch.ids[j]
        n_kept += np.int64(f64(row[scratch.ids[j]]) - top >= s.log_min_p)
    return n_kept, top


@inline
def _weighed(row, high, s, scratch):
    """Write the candidates that the chain leaves and their weights; return how many, and a sum."""
    n, top = _candidates(row, f64(_logit(high)), s, scratch)
    if s.temperature <= f64(0.0):
        scratch.ids[0] = _largest(row, n, scratch)
        scratch.weights[0] = 1
        return np.int64(1), np.int64(1)
    return np.int64(n), _weigh(row, top, s.temperature, n, scratch)


@inline
def _drawn(u, total, scratch):
    """Return the candidate at share u of the weights, in order of id."""
    mark = min(np.int64(u * f64(total)), total - 1)
    j = 0
    while mark >= scratch.weights[j]:
        mark -= scratch.weights[j]
        j += 1
    return scratch.ids[j]


@njit
def choose(row, settings, u, scratch):
    """Choose a token; the twin of the chain in `quantcli.engine.sampling`.

    row       f32 (n,)           logits
    settings  SETTINGS (1,)
    u         f64                uniform in [0, 1)
    scratch   Scratch            for rows of n
    return    a token, NOT_FINITE or NOTHING
    """
    s = settings[0]
    low, high = _scan(row, scratch.block_max)
    if high >= PLUS_INF or low < MINUS_INF:
        return np.int64(NOT_FINITE)
    if high == MINUS_INF:
        return np.int64(NOTHING)
    if s.temperature <= f64(0.0) and s.typical_p >= f64(1.0):
        return np.int64(_first(row, scratch.block_max, high))
    _, total = _weighed(row, high, s, scratch)
    return np.int64(_drawn(u, total, scratch))


@njit
def weigh(row, settings, scratch):
    """Leave what the chain keeps of a row in scratch: ids, ascending, and weights; return how many.

    For a row that `choose` accepts; `choose` draws from these weights.
    """
    _, high = _scan(row, scratch.block_max)
    n, _ = _weighed(row, high, settings[0], scratch)
    return n


@njit
def most_likely(row, k, scratch):
    """Leave the k largest logits' tokens, ascending, in scratch.ids; return the row's weight.

    The weight is relative to the largest logit. For a row that `choose` accepts.
    """
    _, high = _scan(row, scratch.block_max)
    top = f64(_logit(high))
    if k > 0:
        _top_k(row, top, k, scratch)
    return _total(row, top)
