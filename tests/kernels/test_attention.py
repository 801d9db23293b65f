"""Attention over real pages against softmax by its definition, and the same bits in any order."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
from kernel_caches import Cache, attend
from kernel_calls import Threads

from quantcli.formats import F32
from quantcli.kernels import attention

pytestmark = pytest.mark.jit

UNIT = 2.0**-24
KV_TYPES = ("f16", "q8_0")
SHAPES = [  # n_heads, n_kv_heads, head_dim: groups of 1, 2, 3, 4, 8, 9
    (2, 2, 16),
    (2, 1, 32),
    (6, 2, 48),
    (8, 2, 64),
    (8, 1, 80),
    (3, 3, 96),
    (9, 1, 128),
    (4, 1, 256),
]
RULES = [
    {},
    {"window": 1},
    {"window": 37},
    {"window": 256},
    {"window": 300},
    {"softcap": 2.0},
    {"sinks": True},
    {"window": 40, "softcap": 5.0, "sinks": True},
]
IDS = ["plain", "window1", "window37", "window256", "window300", "softcap", "sinks", "all"]


def kv_types(head_dim: int) -> list[str]:
    """Return the types that can hold heads of a width."""
    return [name for name in KV_TYPES if name == "f16" or head_dim % 32 == 0]


CASES = [(kv, *shape) for shape in SHAPES for kv in kv_types(shape[2])]


@cache
def values(seed: int, *shape: int) -> F32:
    """Return random values, the same each time."""
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


@cache
def filled(kv: str, n_kv_heads: int, head_dim: int, length: int, page_size: int = 0) -> Cache:
    """Return a cache that holds `length` random keys and values, and nothing else but NaN."""
    made = Cache(kv, n_kv_heads, head_dim, context=length + 40, page_size=page_size)
    made.fill(values(1, length, n_kv_heads, head_dim), values(2, length, n_kv_heads, head_dim))
    return made


def rule(options: dict, n_heads: int) -> dict:
    """Return a rule with sinks as an array, and a scale that makes scores of a few units."""
    sinks = values(9, n_heads) * 2 if options.get("sinks") else None
    return {**options, "sinks": sinks}


def error_bound(
    q: F32, k: F32, v: F32, n_keys: int, scale: float, softcap: float = 0.0
) -> np.ndarray:
    """Return how far a result may be from the exact one: f64 (rows, n_heads, 1).

    A score is a sum of head_dim products, rounded at each step, and its exponential is as wrong as
    the score: relative error e = UNIT * (head_dim + 8) * max sum |q k| * scale, plus a few units
    for exp and tanh. Weights and values are summed over n_keys. A result, an average of values, is
    off by at most 2 e + UNIT * (n_keys + 16) times the largest value.
    """
    group = q.shape[1] // k.shape[1]
    magnitude = np.einsum("rhd,khd->rhk", np.abs(np.float64(q)), np.abs(k).repeat(group, axis=1))
    e = UNIT * (q.shape[2] + 8) * magnitude.max(axis=-1) * scale + UNIT * (8 + 8 * softcap)
    return ((2 * e + UNIT * (n_keys + 16)) * np.abs(v).max())[..., None]


@pytest.mark.parametrize("options", RULES, ids=IDS)
@pytest.mark.parametrize(("kv", "n_heads", "n_kv_heads", "head_dim"), CASES)
def test_attention_is_the_softmax_of_scores(
    kv: str, n_heads: int, n_kv_heads: int, head_dim: int, options: dict
) -> None:
    length = 600
    store = filled(kv, n_kv_heads, head_dim, length)
    k, v = store.read(length)
    positions = [0, 1, 15, 16, 17, 36, 37, 255, 256, 257, 511, 512, 599]
    q = values(3, len(positions), n_heads, head_dim)
    chosen, scale = rule(options, n_heads), 1.5 / np.sqrt(head_dim)
    found = attend(store, q, positions, scale=scale, **chosen)
    want = attention.reference(q, k, v, positions, np.float32(scale), **chosen)
    bound = error_bound(q, k, v, length, scale, options.get("softcap", 0.0))
    assert (np.abs(found - want) <= bound).all(), np.abs(found - want).max() / bound.min()


@pytest.mark.parametrize("options", RULES, ids=IDS)
@pytest.mark.parametrize(("kv", "n_heads", "n_kv_heads", "head_dim"), CASES)
def test_a_row_has_the_same_bits_in_any_tile(
    kv: str, n_heads: int, n_kv_heads: int, head_dim: int, options: dict
) -> None:
    store = filled(kv, n_kv_heads, head_dim, 600)
    chosen = rule(options, n_heads)
    for first in (0, 9, 250, 505):
        positions = list(range(first, first + 20))
        q = values(4, 20, n_heads, head_dim)
        want = attend(store, q, positions, **chosen).tobytes()
        for tiles in ([8, 8, 4], [1, 7, 8, 4], [3, 5, 2, 8, 1, 1], [2] * 10):
            assert attend(store, q, positions, tiles=tiles, **chosen).tobytes() == want, tiles


@pytest.mark.parametrize("n_threads", [1, 2, 3, 4])
@pytest.mark.parametrize("options", RULES, ids=IDS)
def test_a_row_has_the_same_bits_when_threads_share_its_chunks(
    options: dict, n_threads: int, threads: Threads
) -> None:
    for kv, n_heads, n_kv_heads, head_dim in (("f16", 9, 1, 48), ("q8_0", 4, 2, 64)):
        store = filled(kv, n_kv_heads, head_dim, 1100, 16)
        positions = [1099, 3, 300, 511, 512, 767]
        q, chosen = values(5, 6, n_heads, head_dim), rule(options, n_heads)
        want = attend(store, q, positions, **chosen)
        for n in (1, 2, 6):
            found = attend(
                store,
                q[:n],
                positions[:n],
                is_shared=True,
                executor=threads[n_threads],
                **chosen,
            )
            assert found.tobytes() == want[:n].tobytes()
        tiled = attend(store, q, positions, executor=threads[n_threads], **chosen)
        assert tiled.tobytes() == want.tobytes()


@pytest.mark.parametrize("page_size", [16, 64, 256])
@pytest.mark.parametrize("kv", KV_TYPES)
def test_pages_of_any_size_give_the_same_bits(kv: str, page_size: int) -> None:
    whole, paged = filled(kv, 2, 64, 600), filled(kv, 2, 64, 600, page_size)
    positions = [0, 63, 64, 300, 599]
    q = values(6, 5, 4, 64)
    assert attend(whole, q, positions).tobytes() == attend(paged, q, positions).tobytes()


@pytest.mark.parametrize("kv", KV_TYPES)
def test_sequences_in_one_step_do_not_see_each_other(kv: str) -> None:
    store = Cache(kv, 2, 32, context=300, page_size=16, n_sequences=3)
    lengths = (300, 20, 47)
    for s, length in enumerate(lengths):
        store.fill(values(10 + s, length, 2, 32), values(20 + s, length, 2, 32), s)
    positions, sequences = [299, 18, 19, 46, 297, 298], [0, 1, 1, 2, 0, 0]
    q = values(7, 6, 4, 32)
    found = attend(store, q, positions, sequences, tiles=[1, 2, 1, 2])
    for row in range(6):
        alone = attend(store, q[row : row + 1], positions[row : row + 1], [sequences[row]])
        assert alone.tobytes() == found[row : row + 1].tobytes()
        k, v = store.read(lengths[sequences[row]], sequences[row])
        want = attention.reference(q[row : row + 1], k, v, positions[row : row + 1], 0.125)
        assert np.abs(found[row] - want[0]).max() < 1e-4


@pytest.mark.parametrize("byte", [0x00, 0x7F, 0xFF])
@pytest.mark.parametrize("kv", KV_TYPES)
def test_slots_that_were_never_written_do_not_matter(kv: str, byte: int) -> None:
    results = []
    for garbage in (0x3C, byte):
        store = Cache(kv, 1, 32, context=300, page_size=64, byte=garbage)
        store.fill(values(1, 270, 1, 32), values(2, 270, 1, 32))
        positions = [0, 5, 15, 16, 255, 256, 269]
        results.append(attend(store, values(3, 7, 2, 32), positions).tobytes())
    assert results[0] == results[1]


@pytest.mark.parametrize("is_shared", [False, True])
@pytest.mark.parametrize("kv", KV_TYPES)
def test_rejected_tokens_left_behind_do_not_matter(kv: str, is_shared: bool) -> None:
    k, v = values(1, 300, 1, 32), values(2, 300, 1, 32)
    clean, used = (Cache(kv, 1, 32, context=320) for _ in range(2))
    clean.fill(k, v)
    used.fill(np.full((320, 1, 32), np.nan, np.float32), np.full((320, 1, 32), np.nan, np.float32))
    used.fill(k, v)
    q, positions = values(3, 2, 2, 32), [298, 299]
    found = [attend(c, q, positions, is_shared=is_shared) for c in (clean, used)]
    assert found[0].tobytes() == found[1].tobytes()
    assert np.isfinite(found[0]).all()


@pytest.mark.parametrize("is_shared", [False, True])
@pytest.mark.parametrize("sinks", [False, True])
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("kv", KV_TYPES)
@pytest.mark.parametrize("spoilt", [0, 7, 200, 256, 299])
def test_a_bad_key_or_value_reaches_every_later_row(
    kv: str, bad: float, sinks: bool, spoilt: int, is_shared: bool
) -> None:
    extra = values(9, 2) if sinks else None
    for which in ("k", "v", "q"):
        k, v, q = values(1, 300, 1, 32).copy(), values(2, 300, 1, 32).copy(), values(3, 3, 2, 32)
        if which == "k":
            k[spoilt, 0, 3] = bad
        elif which == "v":
            v[spoilt, 0, 3] = bad
        store = Cache(kv, 1, 32, context=320)
        store.fill(k, v)
        positions = [spoilt, min(spoilt + 1, 299), 299]
        if which == "q":
            q = q.copy()
            q[:, :, 3] = bad
        found = attend(store, q, positions, is_shared=is_shared, sinks=extra)
        assert np.isnan(found).any(axis=2).all(), which


@pytest.mark.parametrize("kv", KV_TYPES)
def test_a_bad_key_outside_the_window_does_not_matter(kv: str) -> None:
    k, v = values(1, 400, 1, 32).copy(), values(2, 400, 1, 32).copy()
    want = []
    for value in (1.0, np.nan):
        k[:200], v[:192] = value, value
        store = Cache(kv, 1, 32, context=400)
        store.fill(k, v)
        want.append(attend(store, values(3, 2, 2, 32), [300, 399], window=101).tobytes())
    assert want[0] == want[1]


def test_keys_that_overflow_a_half_saturate() -> None:
    k, v = values(1, 20, 1, 32) * np.float32(1e6), values(2, 20, 1, 32) * np.float32(1e6)
    store = Cache("f16", 1, 32, context=32)
    store.fill(k, v)
    found = attend(store, values(3, 1, 2, 32) * np.float32(1e-6), [19])
    assert np.isfinite(found).all()
    assert np.abs(found).max() <= 65504


@pytest.mark.parametrize("kv", KV_TYPES)
def test_huge_scores_choose_one_key(kv: str) -> None:
    k, v = np.zeros((300, 1, 32), np.float32), values(2, 300, 1, 32)
    k[123] = 1.0
    store = Cache(kv, 1, 32, context=300)
    store.fill(k, v)
    q = np.full((1, 1, 32), 1e4, np.float32)
    for sign in (1, -1):
        found = attend(store, sign * q, [299], scale=1.0)
        kept = store.read(300)[1][:, 0]
        want = kept[123] if sign > 0 else np.delete(kept, 123, axis=0).astype(float).mean(axis=0)
        assert np.abs(found[0, 0] - want).max() < 1e-6


def test_a_lone_key_has_all_the_weight() -> None:
    store = filled("f16", 2, 64, 600)
    found = attend(store, values(3, 1, 4, 64), [0])
    assert found[0].tobytes() == store.read(1)[1][0].repeat(2, axis=0).tobytes()


@pytest.mark.parametrize("kv", KV_TYPES)
@pytest.mark.parametrize(("n_heads", "n_kv_heads"), [(6, 1), (2, 2)])
def test_values_may_be_narrower_than_keys(kv: str, n_heads: int, n_kv_heads: int) -> None:
    """In latent attention a key has a part that rotates, and the value has not."""
    length = 300
    made = Cache(kv, n_kv_heads, 96, context=length, page_size=64, value_dim=64)
    made.fill(values(1, length, n_kv_heads, 96), values(2, length, n_kv_heads, 64))
    k, v = made.read(length)
    q, positions = values(3, 40, n_heads, 96), list(range(260, 300))
    found = attend(made, q, positions, tiles=[8] * 5)
    want = attention.reference(q, k, v, positions, 0.125)
    assert found.shape == want.shape == (40, n_heads, 64)
    assert (np.abs(found - want) <= error_bound(q, k, v, length, 0.125)).all()
    alone = attend(made, q[7:8], positions[7:8], is_shared=True)
    assert alone.tobytes() == found[7:8].tobytes()
