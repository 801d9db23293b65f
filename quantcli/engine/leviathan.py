"""Drafts that are drawn at random, accepted so that the answer is drawn from the model's own odds.

A guess x, drawn from the draft's odds q, is accepted with probability min(1, p(x) / q(x)), where p
are the model's odds; else the token is drawn from what of p exceeds q. The answer is then
distributed as without drafts, though its tokens are others than without.
Source: Leviathan, Kalman and Matias, arXiv:2211.17192, section 2.3 and appendix A.1.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

I64 = npt.NDArray[np.int64]
F64 = npt.NDArray[np.float64]

# Streams of a request's random numbers; 0 is what tokens are drawn with without drafts.
DRAFT_STREAM, ACCEPT_STREAM, REST_STREAM = 1, 2, 3


class Guess(NamedTuple):
    """A token that was guessed.

    ids, weights   i64 (n,), i64 (n,)   what it was drawn from; None if it was not drawn
    """

    token: int
    ids: I64 | None = None
    weights: I64 | None = None


def draw(ids: I64, weights: npt.NDArray[np.int64] | F64, u: float) -> int:
    """Return the id at share u of the weights, 0 <= u < 1."""
    sums = np.cumsum(weights)
    index = int(np.searchsorted(sums, u * float(sums[-1]), side="right"))
    return int(ids[min(index, len(ids) - 1)])


def settle(guess: Guess, ids: I64, weights: I64, u_accept: float, u_rest: float) -> int:
    """Return the guess, or a token in its place.

    ids, weights      i64 (n,), i64 (n,)   what the model itself would draw from, ids ascending
    u_accept, u_rest  independent of each other and of what the guess was drawn with
    """
    assert guess.ids is not None, guess
    assert guess.weights is not None, guess
    p = weights / float(weights.sum())
    q = np.zeros_like(p)
    q_drawn = guess.weights / float(guess.weights.sum())
    places = np.searchsorted(ids, guess.ids)
    places[places == len(ids)] = 0
    is_shared = ids[places] == guess.ids
    q[places[is_shared]] = q_drawn[is_shared]
    (found,) = np.nonzero(ids == guess.token)
    if found.size and u_accept * q[found[0]] < p[found[0]]:
        return guess.token
    rest = np.maximum(p - q, 0.0)
    if not rest.any():  # p equals q but for rounding
        rest = p
    return draw(ids, rest, u_rest)
