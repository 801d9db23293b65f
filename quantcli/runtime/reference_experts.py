"""Experts in NumPy: which ones each row goes to, and the products with their matrices.

Entries are in the order of rows, each row's best expert first.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from quantcli.formats import F32
from quantcli.plan import Routing
from quantcli.runtime.decoded import I64


def choose(logits: F32, routing: Routing, bias: F32 | None) -> F32:
    """Return f32 (rows, 2 * n_used): ids of experts as numbers, best first, then their weights.

    logits  f32 (rows, n_experts)
    bias    f32 (n_experts,)   added to scores for choosing only, or None
    """
    scores = logits
    if routing.score == "softmax":
        scores = _softmax(logits)
    elif routing.score == "sigmoid":
        scores = (1.0 / (1.0 + np.exp(-logits))).astype(np.float32)
    merit = scores if bias is None else scores + bias
    # A NaN is no better than the worst; the sort is stable, so that ties go to the lower id.
    merit = np.where(np.isnan(merit), -np.inf, merit)
    ids = np.argsort(-merit, axis=-1, kind="stable")[:, : routing.n_used]
    weights = np.take_along_axis(scores, ids, axis=-1)
    if routing.score == "softmax_of_chosen":
        weights = _softmax(weights)
    if routing.normalize:
        # The bound is llama.cpp's: scores may all vanish.
        weights = weights / np.maximum(weights.sum(axis=-1, keepdims=True), np.float32(2.0**-14))
    weights = weights * np.float32(routing.scale)
    return np.concatenate([ids.astype(np.float32), weights], axis=-1)


def experts_of(routes: F32, routing: Routing) -> I64:
    """Return i64 (rows * n_used,): the expert of each entry."""
    ids: I64 = routes[:, : routing.n_used].astype(np.int64).reshape(-1)
    return ids


def multiply(x: F32, experts: I64, n_out: int, matrix: Callable[[int], F32]) -> F32:
    """Return f32 (entries, n_out): each entry times its expert's matrix.

    x        f32 (entries, n_in)
    experts  i64 (entries,)
    matrix   returns an expert's f32 (n_out, n_in)
    """
    y = np.empty((len(x), n_out), np.float32)
    for expert in np.unique(experts).tolist():
        mine = experts == expert
        y[mine] = x[mine] @ matrix(expert).T
    return y


def mix(x: F32, routes: F32, routing: Routing) -> F32:
    """Return f32 (rows, width): the sum of each row's entries by their weights, best first."""
    entries = x.reshape(len(routes), routing.n_used, x.shape[1])
    weights = routes[:, routing.n_used :]
    y: F32 = entries[:, 0] * weights[:, :1]
    for rank in range(1, routing.n_used):
        y = y + entries[:, rank] * weights[:, rank : rank + 1]
    return y


def _softmax(x: F32) -> F32:
    e = np.exp(x - x.max(axis=-1, keepdims=True))
    share: F32 = e / e.sum(axis=-1, keepdims=True)
    return share
