"""Writing a base's predictions to a file, and comparing models with it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from quantcli.evaluate.divergence import Positions, check_vocabularies
from quantcli.evaluate.logits_file import LogitsFile, Predictions, Writer, check_tokens
from quantcli.evaluate.perplexity import Counter, Progress, place
from quantcli.evaluate.protocol import Chunk
from quantcli.evaluate.rows import (
    Runnable,
    check_finite,
    predictions,
    sums,
    target_logits,
)
from quantcli.formats import F32

F64 = npt.NDArray[np.float64]
I64 = npt.NDArray[np.int64]
U32 = npt.NDArray[np.uint32]
MostLikely = Callable[[F32, int], npt.NDArray[np.intp]]


class Known(NamedTuple):
    """Rows of logits as seen from a list of k tokens each: all (n, ...).

    logits     f32 (n, k) of those tokens
    rest       f64 (n,)   log-sum-exp of all other logits
    log_total  f64 (n,)   log-sum-exp of all
    likeliest  i64 (n,)   the likeliest token of all
    """

    logits: F32
    rest: F64
    log_total: F64
    likeliest: I64


def record(
    model: Runnable,
    chunks: Sequence[Chunk],
    writer: Writer,
    k: int,
    *,
    name: str,
    most_likely: MostLikely,
    progress: Progress | None = None,
) -> Iterator[F64]:
    """Write a base's predictions; yield the negative log-likelihoods of each chunk's targets.

    most_likely  returns the k likeliest tokens of a row, the likeliest first

    Raises ModelError if logits are not finite.
    """
    counted = Counter(f"logits of {name}", chunks, progress)
    for chunk in chunks:
        parts = []
        nlls = []
        rows = predictions(model, chunk.tokens[:-1], first=chunk.first_row, step=counted.step)
        for row, logits in rows:
            check_finite(sums(model, logits).log_total, name, place(chunk, row))
            ids = np.array([most_likely(one, k) for one in logits], np.uint32)
            first = row - chunk.first_row
            target = target_logits(logits, chunk.targets[first : first + len(logits)])
            known = look_up(model, logits, ids)
            parts.append(Predictions(ids, known.logits, known.rest, target))
            nlls.append(known.log_total - target)
        writer.append(chunk, Predictions.join(parts))
        yield np.concatenate(nlls)


def measure(
    file: LogitsFile,
    model: Runnable,
    chunks: Sequence[Chunk],
    *,
    name: str,
    progress: Progress | None = None,
) -> Iterator[Positions]:
    """Yield what each chunk's positions show of a model next to the base in a file.

    Raises UsageError if the model has another vocabulary, ModelError if logits are not finite.
    """
    check_vocabularies(file.origin.n_vocab, model.n_vocab, (file.origin.model, name))
    counted = Counter(f"comparing {name} with {file.origin.model}", chunks, progress)
    for chunk in chunks:
        tokens, base = file.chunk(chunk.number)
        check_tokens(file, tokens, chunk, name)
        found = []
        rows = predictions(model, chunk.tokens[:-1], first=chunk.first_row, step=counted.step)
        for row, logits in rows:
            part = slice(row - chunk.first_row, row - chunk.first_row + len(logits))
            known = look_up(model, logits, base.ids[part])
            check_finite(known.log_total, name, place(chunk, row))
            target = target_logits(logits, chunk.targets[part])
            found.append(_positions(base.part(part), known, known.log_total - target))
        yield Positions.join(found)


def look_up(model: Runnable, logits: F32, ids: U32) -> Known:
    """Return what is known of rows of logits, f32 (n, n_vocab), given k tokens of each.

    ids  u32 (n, k)

    The rows are written to, and restored.
    """
    each = np.arange(len(logits))
    kept = np.take_along_axis(logits, ids.astype(np.int64), axis=1)
    logits[each[:, None], ids] = -np.inf
    others = sums(model, logits)
    others_top = logits[each, others.likeliest]
    logits[each[:, None], ids] = kept
    top = kept.max(axis=1)
    listed = np.where(kept == top[:, None], ids, np.iinfo(np.int64).max).min(axis=1)
    likeliest = np.where(others_top > top, others.likeliest, listed)
    is_tie = others_top == top
    likeliest[is_tie] = np.minimum(listed, others.likeliest)[is_tie]
    return Known(kept, others.log_total, log_total(kept, others.log_total), likeliest)


def log_total(kept: F32, rest: F64) -> F64:
    """Return the log-sum-exp of k logits a row, f32 (n, k), and of a rest that is one already."""
    top = np.maximum(kept.max(axis=1).astype(np.float64), rest)
    total = np.exp(kept - top[:, None]).sum(axis=1) + np.exp(rest - top)
    result: F64 = top + np.log(total)
    return result


def _positions(base: Predictions, known: Known, nll: F64) -> Positions:
    """Compare rows of a model with the base's; the tokens that are not listed count as one."""
    base_total = log_total(base.logits, base.rest)
    log_p, log_q = base.logits - base_total[:, None], known.logits - known.log_total[:, None]
    log_rest, log_rest_q = base.rest - base_total, known.rest - known.log_total
    p, rest = np.exp(log_p), np.exp(log_rest)
    with np.errstate(invalid="ignore"):  # 0 * inf, for tokens that cannot come
        terms = np.where(p > 0, p * (log_p - log_q), 0)
        last = np.where(rest > 0, rest * (log_rest - log_rest_q), 0)
    return Positions(
        kl=np.maximum(terms.sum(axis=1) + last, 0.0),
        base_nll=base_total - base.target,
        nll=nll,
        is_same=known.likeliest == base.ids[:, 0],
        rest=rest,
    )
