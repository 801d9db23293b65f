"""Keys and values as records: where each lies, and how it is rounded."""

from __future__ import annotations

import numpy as np
import pytest
from kernel_caches import Cache

from quantcli import catalog
from quantcli.formats import F32
from quantcli.kernels import attention, heads, kv_cache
from quantcli.kernels.kv_cache import HALF_MAX, KV_FORMATS

pytestmark = pytest.mark.jit

KV_TYPES = ("f16", "q8_0")
CASES = [
    ("f16", 16),
    ("f16", 48),
    ("f16", 80),
    *[(kv, d) for kv in KV_TYPES for d in (32, 64, 96, 128)],
]


def values(seed: int, *shape: int) -> F32:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def test_every_type_of_the_catalog_has_its_kernels() -> None:
    names = set(catalog.names("KV cache type"))
    assert names == set(KV_FORMATS) == set(heads.PREPARE) == set(attention.ATTENTION)
    assert all(KV_FORMATS[name].name == name for name in names)


@pytest.mark.parametrize(("kv", "bits"), [("f16", 16), ("q8_0", 8.5)])
def test_a_record_has_no_waste(kv: str, bits: float) -> None:
    for head_dim in (32, 64, 128, 256):
        assert KV_FORMATS[kv].record_nbytes(head_dim) == 16 * head_dim * bits / 8


@pytest.mark.parametrize("page_size", [0, 16, 64])
@pytest.mark.parametrize(("kv", "head_dim"), CASES)
def test_what_is_stored_is_read_back_rounded(kv: str, head_dim: int, page_size: int) -> None:
    cache = Cache(kv, 3, head_dim, context=100, page_size=page_size)
    k, v = values(1, 100, 3, head_dim) * 10, values(2, 100, 3, head_dim)
    cache.fill(k, v)
    found = cache.read(100)
    np.testing.assert_array_equal(found[0], kv_cache.reference(k, kv))
    np.testing.assert_array_equal(found[1], kv_cache.reference(v, kv))
    largest = np.abs(k).reshape(100, 3, -1, min(head_dim, 16)).max(axis=-1).max()
    step = 2.0**-11 if kv == "f16" else 1 / 254 + 2.0**-11
    assert np.abs(found[0] - k).max() <= step * largest


@pytest.mark.parametrize("kv", KV_TYPES)
def test_storing_a_row_touches_no_other_slot(kv: str) -> None:
    cache = Cache(kv, 2, 32, context=64, page_size=16, byte=0x00)
    k, v = values(1, 1, 2, 32), values(2, 1, 2, 32)
    cache.store(np.zeros_like(k), k, v, [37])
    for found, x in zip(cache.read(64), (k, v), strict=True):
        np.testing.assert_array_equal(found[37], kv_cache.reference(x[0], kv))
        found[37] = 0
        assert not found.any()


@pytest.mark.parametrize("kv", KV_TYPES)
def test_storing_again_leaves_nothing_of_what_was_there(kv: str) -> None:
    k, v = values(1, 20, 1, 32), values(2, 20, 1, 32)
    once, twice = Cache(kv, 1, 32, context=32), Cache(kv, 1, 32, context=32)
    once.fill(k, v)
    twice.fill(k[::-1] * 3, np.full_like(v, np.inf))
    twice.fill(k, v)
    for found, want in zip(twice.read(20), once.read(20), strict=True):
        np.testing.assert_array_equal(found, want)


@pytest.mark.parametrize("kv", KV_TYPES)
def test_zeros_stay_zero(kv: str) -> None:
    cache = Cache(kv, 1, 64, context=16)
    cache.fill(np.zeros((16, 1, 64), np.float32), np.full((16, 1, 64), -0.0, np.float32))
    assert not cache.read(16)[0].any()
    assert not cache.read(16)[1].any()


@pytest.mark.parametrize("x", [65504.0, 65520.0, 1e5, 8.3e6, 1e30, 3e38])
@pytest.mark.parametrize("kv", KV_TYPES)
def test_numbers_too_large_for_a_half_saturate(kv: str, x: float) -> None:
    cache = Cache(kv, 1, 32, context=16)
    k = np.zeros((2, 1, 32), np.float32)
    k[0, 0, :2], k[1, 0, :2] = [x, -x], [x / 2, 1]
    cache.fill(k, -k)
    largest = float(HALF_MAX) * (1 if kv == "f16" else 127)
    for found, sign in zip(cache.read(2), (1, -1), strict=True):
        want = min(x, largest)
        assert found[0, 0, :2] == pytest.approx([sign * want, -sign * want], rel=1e-3)
        assert np.isfinite(found).all()


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("kv", KV_TYPES)
def test_what_is_no_number_stays_none(kv: str, bad: float) -> None:
    cache = Cache(kv, 1, 64, context=16)
    k = values(1, 3, 1, 64)
    k[1, 0, 40] = bad
    cache.fill(k, k)
    for found in cache.read(3):
        assert np.isnan(found[1, 0, 40])
        assert np.isfinite(found[[0, 2]]).all()
        assert np.isfinite(found[1, 0, :32]).all()
