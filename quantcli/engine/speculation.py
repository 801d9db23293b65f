"""How many tokens to draft: what they are likely to win against what their rows cost.

A draft is right with the probability that is measured as the text goes by; a step of more rows
takes the time that was measured for steps of so many rows. Together they say how many rows of
drafts give the most tokens a second, which is none when many requests share a step or when guesses
are bad.
Source: Leviathan, Kalman and Matias, Fast inference from transformers via speculative decoding,
arXiv:2211.17192, section 3.4, with a cost curve in place of a constant.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

_MIN_GAIN = 1.04  # of tokens a second, below which drafting is not worth its trouble
_DECAY = 0.95  # of what was seen, with each thing seen
_PRIOR_WEIGHT = 3.0

# Length of a match: how likely its first token is right, before this text has shown its own rate.
_PRIORS = ((3, 0.25), (4, 0.35), (6, 0.55), (9, 0.75), (17, 0.9))


class Rate:
    """How often guesses of one kind are right, the last ones counting most."""

    def __init__(self, prior: float) -> None:
        """Start with a guess of the rate."""
        self._n_right = prior * _PRIOR_WEIGHT
        self._n = _PRIOR_WEIGHT

    @property
    def value(self) -> float:
        """Return the rate."""
        return self._n_right / self._n

    def note(self, is_right: bool) -> None:
        """Count a guess."""
        self._n_right = self._n_right * _DECAY + is_right
        self._n = self._n * _DECAY + 1


class MatchRates:
    """How often what follows a match is right, by the match's length."""

    def __init__(self) -> None:
        """Start with what is usual."""
        self._rates = [Rate(prior) for _, prior in _PRIORS]

    def of(self, length: int) -> Rate:
        """Return the rate of matches about as long."""
        n_shorter = sum(shortest <= length for shortest, _ in _PRIORS)
        return self._rates[max(0, n_shorter - 1)]


def chances(rate: float, n: int) -> list[float]:
    """Return the chance that each token of a draft is right, and all before it: f (n,)."""
    return [rate ** (i + 1) for i in range(n)]


def allot(
    drafts: Sequence[Sequence[float]],
    n_rows: int,
    max_rows: int,
    seconds: Callable[[int], float | None],
) -> list[int]:
    """Return how many tokens of each draft to compute, for the most tokens a second.

    drafts    for each draft the chances of its tokens, none larger than the one before
    n_rows    rows of the step without drafts, each of which gives one token
    max_rows  most rows of a step
    seconds   what a step of so many rows takes, None if nothing is known
    """
    best_first = sorted(
        ((chance, -i, j) for i, draft in enumerate(drafts) for j, chance in enumerate(draft)),
        key=lambda entry: (-entry[0], entry[2], entry[1]),
    )
    best_first = best_first[: max(0, max_rows - n_rows)]
    base = seconds(n_rows)
    n_best, best_speed = 0, 0.0
    if base is not None:
        best_speed = _MIN_GAIN * n_rows / base
        expected = float(n_rows)
        for n, (chance, _, _) in enumerate(best_first, 1):
            expected += chance
            took = seconds(n_rows + n)
            if took is not None and expected / took > best_speed:
                n_best, best_speed = n, expected / took
    counts = [0] * len(drafts)
    for _, negative, _ in best_first[:n_best]:
        counts[-negative] += 1
    return counts


def draft_length(
    rates: Sequence[float],
    n_most: int,
    n_rows: int,
    max_rows: int,
    seconds: Callable[[int], float | None],
    token_s: float,
) -> int:
    """Return how many tokens a model is to draft for each of some choices.

    rates     of each choice, how often a guess is right
    n_most    most tokens of a draft
    n_rows    rows of the step without these drafts
    max_rows  most rows of a step
    seconds   what a step of so many rows takes, None if nothing is known
    token_s   what one more token of all drafts takes the model that drafts
    """
    base = seconds(n_rows)
    if base is None or not rates:
        return 0
    n_best, best_speed = 0, _MIN_GAIN * n_rows / base
    for n in range(1, n_most + 1):
        n_all = n_rows + n * len(rates)
        took = seconds(n_all)
        if n_all > max_rows or took is None:
            break
        expected = n_rows + sum(sum(chances(rate, n)) for rate in rates)
        speed = expected / (took + n * token_s)
        if speed > best_speed:
            n_best, best_speed = n, speed
    return n_best
