"""Hessians made ready: what is factored is what was given, in an order that pays."""

from __future__ import annotations

import numpy as np
import pytest

from quantcli.formats import F32
from quantcli.quantize import factor as module
from quantcli.quantize.factor import Factor, default_shrink, factorize, upper_cholesky


def hessian_of(n: int, n_tokens: int, seed: int = 0) -> F32:
    """Return the second moments of tokens whose channels differ much and move together."""
    random = np.random.default_rng(seed)
    mixed = random.standard_normal((n_tokens, n // 4)) @ random.standard_normal((n // 4, n))
    x = mixed / np.sqrt(n / 4) + 0.5 * random.standard_normal((n_tokens, n))
    x *= np.exp(random.standard_normal(n))
    return (x.T @ x / n_tokens).astype(np.float32)


def unpacked(operand: F32) -> F32:
    """Return columns (n, n_columns) of what `gptq.operand` made."""
    groups, n, width = operand.shape
    return operand.transpose(1, 0, 2).reshape(n, groups * width)


def whole(factor: Factor) -> np.ndarray:
    """Return R in the order of work."""
    n, width = len(factor.order), factor.width
    r = np.zeros((n, n))
    for k, (carried, own) in enumerate(zip(factor.carried, factor.factors, strict=True)):
        mine = slice(k * width, (k + 1) * width)
        r[: k * width, mine] = unpacked(carried)
        r[mine, mine] = own.T
    return r


@pytest.mark.parametrize("wide", [4096, 64])  # above it, in f32
@pytest.mark.parametrize(("n", "width"), [(128, 32), (96, 96), (256, 64)])
def test_the_factor_is_of_the_regularized_hessian(
    n: int, width: int, wide: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_WIDE", wide)
    h = hessian_of(n, 3 * n)
    factor = factorize(h, width, shrink=0.1, damping=0.01)
    assert factor is not None
    want = 0.9 * np.float64(h)
    diagonal = np.diag(np.float64(h))
    want[np.diag_indices(n)] += 0.1 * diagonal + 0.01 * diagonal.mean()
    want = want[np.ix_(factor.order, factor.order)]
    r = whole(factor)
    assert not np.tril(r, -1).any()
    size = np.sqrt(np.outer(np.diag(want), np.diag(want)))
    # one rounding of R to f32, or a factorization in f32: n additions of rounded products
    tolerance = 2**-22 if n <= wide else n * 2**-23
    assert (np.abs(r @ r.T - want) <= tolerance * size).all()
    stacked = np.concatenate([unpacked(operand) for operand in factor.operands], axis=1)
    assert (np.abs(stacked - want) <= 2**-22 * size).all()
    for k, own in enumerate(factor.hessians):
        mine = slice(k * width, (k + 1) * width)
        np.testing.assert_array_equal(own, stacked[mine, mine])


def test_blocks_and_columns_stay_together() -> None:
    factor = factorize(hessian_of(128, 400), 32, shrink=0.05, damping=0.01)
    assert factor is not None
    assert sorted(factor.order.tolist()) == list(range(128))
    blocks = factor.order.reshape(4, 32)
    np.testing.assert_array_equal(blocks // 32, np.repeat(factor.blocks[:, None], 32, axis=1))
    np.testing.assert_array_equal(blocks % 32, factor.inner)
    r = np.diag(whole(factor))
    np.testing.assert_allclose(factor.importance[factor.order], r**2, rtol=1e-5)


def test_the_order_leaves_less_to_pay_than_the_natural_one() -> None:
    h = hessian_of(128, 500, seed=4)
    factor = factorize(h, 32, shrink=0.02, damping=0.01)
    assert factor is not None
    ordered = np.diag(whole(factor)) ** 2
    natural = np.float64(h) * 0.98
    diagonal = np.diag(np.float64(h))
    natural[np.diag_indices(128)] += 0.02 * diagonal + 0.01 * diagonal.mean()
    before = np.diag(upper_cholesky(natural)) ** 2
    assert ordered.sum() < 0.8 * before.sum()
    np.testing.assert_allclose(np.log(ordered).sum(), np.log(before).sum(), rtol=1e-4)


def test_damping_grows_until_a_hessian_is_definite() -> None:
    h = hessian_of(64, 200)
    h[3, 5] = h[5, 3] = 30 * h[3, 3]  # no matrix of second moments
    factor = factorize(h, 32, shrink=0.0, damping=0.01)
    assert factor is not None
    assert factor.damping > 0.01
    assert factor.damping / 0.01 == 2 ** round(np.log2(factor.damping / 0.01))
    h[3, 5] = h[5, 3] = 1e9
    assert factorize(h, 32, shrink=0.0, damping=0.01) is None


@pytest.mark.parametrize("value", [0.0, np.inf, np.nan])
def test_a_hessian_of_nothing_has_no_factor(value: float) -> None:
    assert factorize(np.full((64, 64), value, np.float32), 32, shrink=0.1, damping=0.01) is None


def test_dead_columns_and_few_tokens_are_no_trouble() -> None:
    h = hessian_of(64, 5)
    h[:, 7] = h[7, :] = 0
    factor = factorize(h, 32, shrink=0.5, damping=0.003)
    assert factor is not None
    assert factor.damping == 0.003
    assert np.isfinite(whole(factor)).all()
    assert factor.importance.min() > 0


def test_shrinking_goes_down_with_tokens() -> None:
    shrinks = [default_shrink(1024, n) for n in (0, 256, 1024, 8192, 65536, 10**9)]
    assert shrinks == sorted(shrinks, reverse=True)
    assert shrinks[0] == 0.5
    assert shrinks[-1] == 0.02
