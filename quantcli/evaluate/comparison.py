"""Two models on the same tokens: where their answers part, and by how much they differ before that.

Both models are fed one answer token by token, whatever they would have said themselves, so that
every position compares predictions from the same context.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from statistics import fmean

import numpy as np

from quantcli.errors import UsageError
from quantcli.evaluate.rows import Runnable, check_finite, compare, predictions
from quantcli.formats import F32

Step = Callable[[int], None]  # called with the positions done so far

_ROWS = 16  # positions at a time: few enough that rows of a large vocabulary take little memory


@dataclass(frozen=True, slots=True)
class Position:
    """What two models say about one token of an answer.

    index       of the token in the answer, from 0
    token       the token that the answer has there
    p           its probability, by each model
    top         each model's likeliest token
    p_top_a     the probability of the first model's likeliest token, by each model
    p_top_b     the same of the second model's
    kl          KL divergence of the second model's probabilities from the first's, in nats
    """

    index: int
    token: int
    p: tuple[float, float]
    top: tuple[int, int]
    p_top_a: tuple[float, float]
    p_top_b: tuple[float, float]
    kl: float

    @property
    def is_same(self) -> bool:
        """Whether both find the same token the likeliest."""
        return self.top[0] == self.top[1]


@dataclass(frozen=True, slots=True)
class Summary:
    """All positions of an answer together."""

    n_tokens: int
    n_same: int
    kl_mean: float
    kl_max: float
    kl_max_index: int

    @classmethod
    def of(cls, positions: Sequence[Position]) -> Summary:
        """Return the summary of one position or more."""
        worst = max(positions, key=lambda position: position.kl)
        return cls(
            n_tokens=len(positions),
            n_same=sum(position.is_same for position in positions),
            kl_mean=fmean(position.kl for position in positions),
            kl_max=worst.kl,
            kl_max_index=worst.index,
        )


def n_common(a: Sequence[int], b: Sequence[int]) -> int:
    """Return how many tokens two answers share before they part."""
    for index, (token, other) in enumerate(zip(a, b, strict=False)):
        if token != other:
            return index
    return min(len(a), len(b))


def check_vocabularies(names: tuple[str, str], a: Sequence[str], b: Sequence[str]) -> None:
    """Raise UsageError unless two vocabularies are the same, token by token.

    a, b   the tokens' spellings, by id
    """
    if len(a) != len(b):
        raise UsageError(
            f"{names[0]} has a vocabulary of {len(a)} tokens and {names[1]} one of {len(b)}, so "
            "their answers cannot be aligned. Compare models of one family."
        )
    different = [i for i, (token, other) in enumerate(zip(a, b, strict=True)) if token != other]
    if different:
        first = different[0]
        raise UsageError(
            f"the vocabularies of {names[0]} and {names[1]} differ in {len(different)} of {len(a)} "
            f"tokens, first in {first}: {a[first]!r} and {b[first]!r}. Compare models of one "
            "family."
        )


def follow(
    a: Runnable,
    b: Runnable,
    prompt: Sequence[int],
    answer: Sequence[int],
    *,
    n_vocab: int,
    names: tuple[str, str] = ("A", "B"),
    first: int = 0,
    step: Step | None = None,
) -> Iterator[Position]:
    """Feed both models a prompt and an answer, and yield what they say about each of its tokens.

    prompt   at least one token
    n_vocab  tokens of the vocabulary; logits beyond are padding of the output matrix
    first    the first token of the answer that is compared

    Uses the models' first sequence. Raises ModelError for logits that are not finite.
    """
    assert prompt
    tokens = [*prompt, *answer]
    width = min(n_vocab, a.n_vocab, b.n_vocab)
    start = len(prompt) - 1 + first  # this row predicts the first token that is compared
    for model in (a, b):
        for _ in predictions(model, tokens[:start], first=start):
            raise AssertionError("no row of the context wants logits")
    for begin in range(start, len(tokens) - 1, _ROWS):
        stop = min(begin + _ROWS, len(tokens) - 1)
        part = tokens[begin:stop]
        rows_a, rows_b = (_rows(model, part, begin, width) for model in (a, b))
        index = begin - len(prompt) + 1
        yield from _positions(b, rows_a, rows_b, index, tokens[begin + 1 : stop + 1], names)
        if step is not None:
            step(index + len(part))


def _rows(model: Runnable, tokens: Sequence[int], start: int, width: int) -> F32:
    """Return f32 (len(tokens), width), the logits after each of some tokens."""
    slices = [logits[:, :width].copy() for _, logits in predictions(model, tokens, start=start)]
    return slices[0] if len(slices) == 1 else np.concatenate(slices)


def _positions(
    model: Runnable,
    rows_a: F32,
    rows_b: F32,
    index: int,
    targets: Sequence[int],
    names: tuple[str, str],
) -> Iterable[Position]:
    """Yield what two models' logits say about the tokens that follow."""
    pair = compare(model, rows_a, rows_b)
    for name, sums in zip(names, (pair.base, pair.row), strict=True):
        check_finite(sums.log_total, name, lambda i: f"for token {index + i + 1} of the answer")
    log_totals = (pair.base.log_total, pair.row.log_total)
    for i, target in enumerate(targets):
        top = (int(pair.base.likeliest[i]), int(pair.row.likeliest[i]))

        def p(token: int, i: int = i) -> tuple[float, float]:
            logits = (float(rows_a[i, token]), float(rows_b[i, token]))
            a, b = (np.exp(x - z[i]) for x, z in zip(logits, log_totals, strict=True))
            return float(a), float(b)

        yield Position(index + i, target, p(target), top, p(top[0]), p(top[1]), float(pair.kl[i]))
