"""Means with their standard errors.

The errors are those of llama.cpp: they take the values for independent, which tokens of one text
are only nearly; and the variance is divided by n - 1, with the mean square of n values in it.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

F64 = npt.NDArray[np.float64]


class Estimate(NamedTuple):
    """A value and its standard error, 0 where one value gives no idea of it."""

    value: float
    error: float

    def exp(self) -> Estimate:
        """Return e to the estimate: exp(m) +- exp(m) * error."""
        value = math.exp(self.value) if self.value < 709 else math.inf
        return Estimate(value, value * self.error)


def mean(values: F64) -> Estimate:
    """Return the mean of values f64 (n,), with the error sqrt(mean((x - mean)**2) / (n - 1))."""
    n = values.size
    if n < 2:
        return Estimate(float(values.mean()), 0.0)
    centre = values.mean()
    return Estimate(float(centre), math.sqrt(float(((values - centre) ** 2).mean()) / (n - 1)))


def root_mean_square(values: F64) -> Estimate:
    """Return sqrt(mean(x**2)); its error is that of the mean square over twice the root."""
    square = mean(values * values)
    root = math.sqrt(square.value)
    return Estimate(root, square.error / (2 * root) if root else 0.0)


def share(claims: npt.NDArray[np.bool_]) -> Estimate:
    """Return how often a claim holds, p, with the error sqrt(p (1 - p) / (n - 1))."""
    return mean(claims.astype(np.float64))
