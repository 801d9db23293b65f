"""Where keys and values of each layer lie, and page tables that kernels read by address."""

from __future__ import annotations

import ctypes
import itertools

import numpy as np
import pytest

from quantcli.errors import ResourceError, ShapeError
from quantcli.kernels.heads import ARGS
from quantcli.kvcache import Copy, create
from quantcli.plan import Heads
from quantcli.runtime.kv_storage import KvStorage, PageTables
from quantcli.runtime.memory import kv_nbytes_per_token

LAYERS = [Heads(4, 2, 64, 1.0), Heads(8, 1, 128, 1.0), Heads(3, 3, 32, 1.0)]


def test_pages_of_keys_and_values_do_not_overlap() -> None:
    for kind, kv_type in itertools.product(("contiguous", "paged"), ("f16", "q8_0")):
        cache = create(kind, context=200, n_sequences=3)
        storage = KvStorage(LAYERS, kv_type, cache)
        spans = []
        for layer, heads in enumerate(LAYERS):
            a = np.zeros(1, ARGS)
            storage.point(a[0], layer)
            assert a["page_size"] == cache.page_size
            assert a["n_kv_heads"] == heads.n_kv_heads
            records = int(a["page_nbytes"][0]) // int(a["record_nbytes"][0])
            assert records == heads.n_kv_heads * cache.page_size // 16
            nbytes = int(a["page_nbytes"][0]) * cache.n_pages
            spans += [
                (int(a[name][0]), int(a[name][0]) + nbytes) for name in ("k_pages", "v_pages")
            ]
        spans.sort()
        assert all(stop <= start for (_, stop), (start, _) in itertools.pairwise(spans))
        assert sum(stop - start for start, stop in spans) == storage.nbytes


@pytest.mark.parametrize("kv_type", ["f16", "q8_0"])
def test_the_memory_plan_foresees_its_size(kv_type: str) -> None:
    cache = create("paged", context=256, n_sequences=2)
    storage = KvStorage(LAYERS, kv_type, cache)
    a_token = sum(kv_nbytes_per_token(1, h.n_kv_heads, h.head_dim, kv_type) for h in LAYERS)
    assert storage.nbytes == a_token * 256 * 2


@pytest.mark.parametrize(("kv_type", "head_dim"), [("f16", 40), ("q8_0", 48), ("q8_0", 16)])
def test_heads_that_do_not_divide_are_refused(kv_type: str, head_dim: int) -> None:
    cache = create("paged", context=64, n_sequences=1)
    with pytest.raises(ShapeError, match=f"heads of {head_dim} values") as error:
        KvStorage([Heads(1, 1, head_dim, 1.0)], kv_type, cache)
    assert ("Use --kv-type f16" in str(error.value)) is (kv_type == "q8_0")


def test_memory_that_the_machine_refuses_is_an_error() -> None:
    for context in (1 << 45, 1 << 55):
        cache = create("contiguous", context=context, n_sequences=1)
        with pytest.raises(ResourceError, match=r"KV cache needs \d+ MiB.*smaller --ctx"):
            KvStorage(LAYERS, "f16", cache)


def test_chunks_of_a_context_are_counted() -> None:
    for context, n in ((1, 1), (256, 1), (257, 2), (1024, 4)):
        cache = create("paged", context=context, n_sequences=1)
        assert KvStorage(LAYERS[:1], "f16", cache).max_chunks == n


def pages_at(address: int, n: int) -> list[int]:
    return list((ctypes.c_int64 * n).from_address(address))


def test_page_tables_follow_the_cache_at_one_address() -> None:
    cache = create("paged", context=512, n_sequences=2)
    tables = PageTables(cache)
    cache.reserve(7, 100)
    address = tables.address(7)
    assert pages_at(address, 2) == list(cache.page_table(7)) == [0, 1]
    cache.reserve(3, 64)
    cache.reserve(7, 200)
    assert tables.address(7) == address
    assert pages_at(address, 4) == list(cache.page_table(7)) == [0, 1, 3, 4]
    assert pages_at(tables.address(3), 1) == [2]
    cache.truncate(7, 64)
    cache.reserve(3, 128)
    cache.reserve(7, 128)
    assert tables.address(7) == address
    assert pages_at(address, 2) == list(cache.page_table(7)) == [0, 3]
    assert pages_at(tables.address(3), 2) == [2, 1]


def test_a_sequence_number_used_again_gets_its_new_pages() -> None:
    cache = create("paged", context=256, n_sequences=2)
    tables = PageTables(cache)
    cache.reserve(0, 256)
    tables.address(0)
    cache.free(0)
    cache.reserve(1, 128)
    cache.reserve(0, 64)
    assert pages_at(tables.address(0), 1) == list(cache.page_table(0)) == [2]


@pytest.mark.parametrize("kv_type", ["f16", "q8_0"])
@pytest.mark.parametrize("n_slots", [1, 16, 17, 64])
def test_copied_slots_are_the_same_bytes_and_others_stay(kv_type: str, n_slots: int) -> None:
    cache = create("paged", context=256, n_sequences=1)
    storage = KvStorage(LAYERS, kv_type, cache)
    data = np.frombuffer(storage._memory, np.uint8)
    data[:] = np.random.default_rng(0).integers(0, 256, data.size, np.uint8)
    before = data.copy()
    storage.copy([Copy(0, 1, n_slots), Copy(1, 3, n_slots)])
    n_records = -(-n_slots // 16)
    start = 0
    for heads in LAYERS:
        nbytes = storage.format.record_nbytes(heads.head_dim) * heads.n_kv_heads * 4
        for _ in ("keys", "values"):
            old, new = (
                x[start : start + 4 * nbytes].reshape(4, -1, 4, nbytes // heads.n_kv_heads // 4)
                for x in (before, data)
            )
            for page in (0, 1, 3):
                assert (new[page, :, :n_records] == old[0, :, :n_records]).all()
                assert (new[page, :, n_records:] == old[page, :, n_records:]).all()
            assert (new[2] == old[2]).all()
            start += 4 * nbytes
    assert start == storage.nbytes
