"""Slabs of rows: read, decoded, checked and encoded by several threads, handed on in order."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from math import prod
from typing import TypeVar

import numpy as np

from quantcli.checkpoint import Checkpoint
from quantcli.formats import F32
from quantcli.qtensor import U8, QTensor
from quantcli.quantize import MatrixJob, Quantizer, Statistics
from quantcli.quantize.loss import check_finite, energy
from quantcli.quantize.recipe import Choice

T = TypeVar("T")

# Weights of a slab. Large enough that threads seldom wait for the one that writes, small enough
# that two of them a thread, in f32, are nothing next to a layer.
SLAB_WEIGHTS = 1 << 20


@dataclass(frozen=True, slots=True)
class Slab:
    """Rows [row_start, row_stop) of a tensor, all of one expert where there are experts."""

    choice: Choice
    row_start: int
    row_stop: int
    expert: int = 0

    @property
    def n_weights(self) -> int:
        """Weights in it."""
        return (self.row_stop - self.row_start) * self.choice.shape[-1]


@dataclass(frozen=True, slots=True)
class Encoded:
    """A slab as it will be written, and what it lost.

    error   relative output error, None for what was copied
    energy  what it is relative to
    """

    slab: Slab
    data: U8
    error: float | None = None
    baseline: float | None = None
    energy: float = 0.0
    notes: tuple[str, ...] = ()
    seconds: float = 0.0


def slabs(choice: Choice, n_weights: int = SLAB_WEIGHTS) -> Iterator[Slab]:
    """Yield a tensor's slabs in order, of at most about `n_weights` weights."""
    shape = choice.shape
    n_experts = prod(shape[:-2]) if len(shape) > 2 else 1
    n_rows = shape[-2] if len(shape) > 1 else 1
    step = max(1, n_weights // shape[-1])
    for expert in range(n_experts):
        first = expert * n_rows
        for start in range(0, n_rows, step):
            yield Slab(choice, first + start, first + min(n_rows, start + step), expert)


def read_rows(checkpoint: Checkpoint, slab: Slab) -> QTensor:
    """Return a slab's rows as they lie in the source."""
    choice = slab.choice
    row_nbytes = choice.source.row_nbytes(choice.shape[-1])
    data = np.empty((slab.row_stop - slab.row_start) * row_nbytes, np.uint8)
    checkpoint.read_into(choice.name, data, slab.row_start * row_nbytes)
    shape = (slab.row_stop - slab.row_start, choice.shape[-1])
    return QTensor(choice.name, shape, choice.source, data)


def read_weights(checkpoint: Checkpoint, slab: Slab) -> F32:
    """Return a slab's rows as f32 (n_rows, n_in). Raises ModelError if one is not finite."""
    weights = read_rows(checkpoint, slab).dequantize()
    check_finite(weights, slab.choice.name, slab.row_start)
    return weights


def encode(
    checkpoint: Checkpoint,
    quantizer: Quantizer,
    statistics: Mapping[str, Statistics],
    slab: Slab,
) -> Encoded:
    """Read a slab and return it in its new format, or as it is where that does not change.

    Raises ModelError for a weight that is not finite, CheckpointError if the file cannot be read.
    """
    choice = slab.choice
    if not choice.changes:
        rows = read_rows(checkpoint, slab)
        check_finite(rows.dequantize(), choice.name, slab.row_start)
        return Encoded(slab, rows.data)
    weights = read_rows(checkpoint, slab).dequantize()
    return encode_weights(quantizer, statistics.get(choice.name), slab, weights)


def encode_weights(
    quantizer: Quantizer, statistics: Statistics | None, slab: Slab, weights: F32
) -> Encoded:
    """Return weights of a slab in its new format. Raises ModelError if one is not finite."""
    choice = slab.choice
    known = _of_expert(statistics, slab.expert)
    if known is not None:
        check_finite(weights, choice.name, slab.row_start)
    whole = energy(weights, known.importance if known else None)
    if not np.isfinite(whole):  # squares of finite numbers may overflow
        check_finite(weights, choice.name, slab.row_start)
    job = MatrixJob(choice.name, weights, choice.format, choice.source, known)
    result = quantizer.quantize(job)
    return Encoded(
        slab, result.data, result.error, result.baseline, whole, result.notes, result.seconds
    )


def in_order(
    work: Callable[[Slab], Encoded], todo: Iterable[Slab], n_threads: int
) -> Iterator[Encoded]:
    """Yield `work` of every slab, in order, computed by threads that run ahead a little."""
    waiting: deque[Future[Encoded]] = deque()
    pool = ThreadPoolExecutor(n_threads, thread_name_prefix="quantize")
    try:
        for slab in todo:
            waiting.append(pool.submit(work, slab))
            if len(waiting) > 2 * n_threads:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def _of_expert(statistics: Statistics | None, expert: int) -> Statistics | None:
    """Return one expert's part of statistics whose importance is f32 (n_experts, n_in)."""
    if statistics is None or statistics.importance.ndim == 1:
        return statistics
    return Statistics(statistics.importance[expert], statistics.n_tokens)
