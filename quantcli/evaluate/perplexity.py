"""Perplexity: how well a model predicts a text, token by token."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from quantcli.evaluate.estimates import Estimate, mean
from quantcli.evaluate.protocol import Chunk
from quantcli.evaluate.rows import Runnable, check_finite, predictions, sums, target_logits

F64 = npt.NDArray[np.float64]
Progress = Callable[[str, int, int], None]


@dataclass(frozen=True, slots=True)
class Perplexity:
    """How well a text was predicted.

    nll            mean negative log-likelihood of a token, in nats
    value          exp of it: the perplexity
    bits_per_byte  bits it takes to code a byte of the scored tokens, which can be compared between
                   models of different vocabularies; None if the bytes are not known
    """

    n_tokens: int
    nll: Estimate
    value: Estimate
    bits_per_byte: float | None


def score(
    model: Runnable, chunks: Sequence[Chunk], *, name: str, progress: Progress | None = None
) -> Iterator[F64]:
    """Yield the negative log-likelihoods of each chunk's targets, f64 (n_targets,), in nats.

    name  what the model is called in errors

    Raises ModelError if logits are not finite.
    """
    counted = Counter(f"perplexity of {name}", chunks, progress)
    for chunk in chunks:
        nlls = np.empty(len(chunk.targets))
        rows = predictions(model, chunk.tokens[:-1], first=chunk.first_row, step=counted.step)
        for row, logits in rows:
            found = sums(model, logits)
            check_finite(found.log_total, name, place(chunk, row))
            part = slice(row - chunk.first_row, row - chunk.first_row + len(logits))
            nlls[part] = found.log_total - target_logits(logits, chunk.targets[part])
        yield nlls


def summarize(parts: Sequence[F64], n_bytes: int | None = None) -> Perplexity:
    """Return the perplexity of tokens from their negative log-likelihoods, f64 (n,) a chunk.

    n_bytes  bytes that the tokens stand for
    """
    nlls = np.concatenate(parts)
    nll = mean(nlls)
    bits = float(nlls.sum()) / math.log(2)
    return Perplexity(nlls.size, nll, nll.exp(), bits / n_bytes if n_bytes else None)


class Counter:
    """Counts the tokens of chunks as they are computed, and reports them."""

    def __init__(self, stage: str, chunks: Sequence[Chunk], progress: Progress | None) -> None:
        """Start at none of the chunks' tokens."""
        self._stage = stage
        self._progress = progress
        self._done = 0
        self._total = sum(len(chunk.tokens) - 1 for chunk in chunks)
        self.step(0)

    def step(self, n_tokens: int) -> None:
        """Report that some more tokens are done."""
        self._done += n_tokens
        if self._progress is not None:
            self._progress(self._stage, self._done, self._total)


def place(chunk: Chunk, row: int) -> Callable[[int], str]:
    """Return what says where the i-th of some rows of a chunk is."""
    return lambda i: f"after token {row + i + 1} of chunk {chunk.number}"
