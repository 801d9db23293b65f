"""Standard errors, against their definitions and against what llama.cpp computes from sums."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from quantcli.evaluate.estimates import Estimate, mean, root_mean_square, share

VALUES = np.random.default_rng(0).gamma(2.0, size=1000)


def test_the_error_of_a_mean_is_its_standard_error() -> None:
    found = mean(VALUES)
    n = VALUES.size
    assert found.value == pytest.approx(VALUES.mean(), rel=1e-15)
    # scipy divides by n - 1 under one root and by n under the other; the product is the same
    assert found.error == pytest.approx(stats.sem(VALUES), rel=1e-12)
    by_sums = math.sqrt(((VALUES**2).sum() / n - (VALUES.sum() / n) ** 2) / (n - 1))
    assert found.error == pytest.approx(by_sums, rel=1e-10)


def test_one_value_has_no_error() -> None:
    assert mean(np.array([3.0])) == Estimate(3.0, 0.0)


def test_equal_values_have_no_error_at_all() -> None:
    assert mean(np.full(7, 0.125)).error == 0


def test_exp_carries_the_error_over() -> None:
    assert Estimate(2.0, 0.01).exp() == Estimate(math.exp(2), math.exp(2) * 0.01)
    assert Estimate(800.0, 0.5).exp().value == math.inf


def test_a_paired_difference_is_what_covariance_gives() -> None:
    other = VALUES + np.random.default_rng(1).standard_normal(1000) * 0.1
    covariance = np.cov(VALUES, other, bias=True)[0, 1] / 999
    variance = mean(VALUES).error ** 2 + mean(other).error ** 2 - 2 * covariance
    assert mean(other - VALUES).error == pytest.approx(math.sqrt(variance), rel=1e-9)


def test_root_mean_square_and_share() -> None:
    found = root_mean_square(np.array([3.0, -4.0, 0.0]))
    squares = mean(np.array([9.0, 16.0, 0.0]))
    assert found.value == pytest.approx(math.sqrt(25 / 3))
    assert found.error == pytest.approx(0.5 / found.value * squares.error)
    assert root_mean_square(np.zeros(3)) == Estimate(0.0, 0.0)
    p = 3 / 4
    found = share(np.array([True, True, False, True]))
    assert found.value == p
    assert found.error == pytest.approx(math.sqrt(p * (1 - p) / 3))
