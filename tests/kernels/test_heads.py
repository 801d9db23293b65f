"""Norm and rotation of single heads before attention."""

from __future__ import annotations

import numpy as np
import pytest
from kernel_caches import Cache
from kernel_calls import Threads

from quantcli.formats import F32
from quantcli.kernels import heads, kv_cache
from quantcli.plan import Rope
from quantcli.runtime.rope_tables import rope_angles

pytestmark = pytest.mark.jit

UNIT = 2.0**-24
STYLES = {"none": heads.NONE, "norm": heads.NORM, "neox": heads.NEOX}
POSITIONS = [0, 1, 17, 63, 64, 299]


def values(seed: int, *shape: int) -> F32:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def angles(style: str, n_rot: int, n: int = 300) -> F32 | None:
    if style == "none":
        return None
    rope = Rope(style, n_rot, 10000.0)
    return np.concatenate(rope_angles(rope, None, range(n)), axis=1)


@pytest.mark.parametrize("has_norm", [False, True])
@pytest.mark.parametrize(
    ("style", "head_dim", "n_rot"),
    [
        ("none", 64, 0),
        *[
            (style, d, r)
            for style in ("norm", "neox")
            for d, r in (
                (16, 16),
                (48, 48),
                (64, 64),
                (64, 32),
                (80, 20),
                (96, 2),
                (128, 66),
                (256, 256),
            )
        ],
    ],
)
def test_heads_are_normed_and_rotated(
    style: str, head_dim: int, n_rot: int, has_norm: bool
) -> None:
    cache = Cache("f16", 2, head_dim, context=300, page_size=64)
    q, k, v = (values(i, 6, n, head_dim) for i, n in enumerate((6, 2, 2)))
    table = angles(style, n_rot)
    q_norm, k_norm = (values(5, head_dim), values(6, head_dim)) if has_norm else (None, None)
    got_q, got_k = cache.store(
        q, k, v, POSITIONS, angles=table, style=STYLES[style], q_norm=q_norm, k_norm=k_norm
    )
    rows = np.zeros((6, 0), np.float32) if table is None else table[POSITIONS]
    for got, x, norm in ((got_q, q, q_norm), (got_k, k, k_norm)):
        want = heads.reference(x, rows, max(STYLES[style], 1), norm=norm, eps=1e-6)
        # A rotation rounds three times; the norm's sum has head_dim terms, at most, in its tree.
        roundings = 4 + (8 + head_dim / 16 if has_norm else 0)
        bound = UNIT * roundings * np.sqrt(2) * np.abs(want).max()
        assert np.abs(got - want).max() <= bound
        if table is None and not has_norm:
            np.testing.assert_array_equal(got, x)
        np.testing.assert_array_equal(
            got[:, :, n_rot:] if not has_norm else 0, x[:, :, n_rot:] if not has_norm else 0
        )
    for position, row in zip(POSITIONS, got_k, strict=True):
        stored = cache.read(position + 1)[0][position]
        np.testing.assert_array_equal(stored, kv_cache.reference(row, "f16"))


@pytest.mark.parametrize("n_threads", [1, 2, 3])
@pytest.mark.parametrize("kv", ["f16", "q8_0"])
def test_threads_and_chunks_give_the_same_bits(kv: str, n_threads: int, threads: Threads) -> None:
    q, k, v = (values(i, 6, n, 64) for i, n in enumerate((6, 2, 2)))
    results = set()
    for chunk in (1, 4, 7, 1000):
        cache = Cache(kv, 2, 64, context=300, page_size=16)
        found = cache.store(
            q,
            k,
            v,
            POSITIONS,
            angles=angles("neox", 64),
            style=heads.NEOX,
            q_norm=values(5, 64),
            k_norm=values(6, 64),
            chunk=chunk,
            executor=threads[n_threads],
        )
        arrays = (*found, cache.keys.array, cache.values.array)
        results.add(b"".join(array.tobytes() for array in arrays))
    assert len(results) == 1


@pytest.mark.parametrize("style", ["norm", "neox"])
def test_a_row_has_the_same_bits_alone(style: str) -> None:
    q, k, v = (values(i, 6, n, 80) for i, n in enumerate((4, 1, 1)))
    options = {"angles": angles(style, 36), "style": STYLES[style], "q_norm": values(5, 80)}
    together = Cache("f16", 1, 80, context=300).store(q, k, v, POSITIONS, **options)
    for row, position in enumerate(POSITIONS):
        part = np.s_[row : row + 1]
        alone = Cache("f16", 1, 80, context=300).store(
            q[part], k[part], v[part], [position], **options
        )
        assert alone[0].tobytes() == together[0][part].tobytes()
        assert alone[1].tobytes() == together[1][part].tobytes()


def test_position_zero_turns_nothing() -> None:
    q, k, v = (values(i, 1, 1, 64) for i in range(3))
    found = Cache("f16", 1, 64, context=16).store(
        q, k, v, [0], angles=angles("neox", 64), style=heads.NEOX
    )
    np.testing.assert_array_equal(found[0], q)
    np.testing.assert_array_equal(found[1], k)


def test_a_zero_head_stays_zero_and_a_nan_stays_in_its_head() -> None:
    q, k, v = (values(i, 2, 2, 64) for i in range(3))
    q[0, 0], q[1, 1, 5] = 0, np.nan
    found = Cache("f16", 2, 64, context=16).store(q, k, v, [3, 4], q_norm=np.ones(64, np.float32))
    assert not found[0][0, 0].any()
    assert np.isnan(found[0][1, 1]).all()
    assert np.isfinite(found[0][1, 0]).all()


@pytest.mark.parametrize("style", ["norm", "neox"])
@pytest.mark.parametrize(("norm_last", "start"), [(True, 0), (False, 64), (True, 48)])
def test_heads_may_be_normed_last_and_rotated_from_some_dimension_on(
    style: str, norm_last: bool, start: int
) -> None:
    q, k, v = (values(i, 6, n, 112) for i, n in enumerate((4, 1, 1)))
    table, norm = angles(style, 48), values(5, 112)
    assert table is not None
    options = {"norm_last": norm_last, "start": start}
    found = Cache("f16", 1, 112, context=300).store(
        q, k, v, POSITIONS, angles=table, style=STYLES[style], q_norm=norm, k_norm=norm, **options
    )
    for got, x in zip(found, (q, k), strict=True):
        want = heads.reference(x, table[POSITIONS], STYLES[style], norm=norm, eps=1e-6, **options)
        assert np.abs(got - want).max() <= 24 * UNIT * np.abs(want).max()


def test_queries_but_not_keys_grow_with_their_position() -> None:
    q, k, v = (values(i, 6, n, 64) for i, n in enumerate((4, 1, 1)))
    factors = np.linspace(1, 3, 300, dtype=np.float32)
    found = Cache("f16", 1, 64, context=300).store(q, k, v, POSITIONS, temperatures=factors)
    np.testing.assert_array_equal(found[0], q * factors[POSITIONS][:, None, None])
    np.testing.assert_array_equal(found[1], k)
