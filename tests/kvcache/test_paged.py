from __future__ import annotations

import pytest

from quantcli.errors import ResourceError
from quantcli.kvcache import create
from quantcli.kvcache.paged import PAGE_MULTIPLE, PAGE_SIZE, PagedKVCache


def cache_of(n_pages: int, page_size: int = 16, context: int = 1024) -> PagedKVCache:
    return PagedKVCache(page_size=page_size, n_pages=n_pages, context=context)


def test_page_size_is_a_multiple_of_what_attention_reads() -> None:
    assert PAGE_SIZE % PAGE_MULTIPLE == 0


@pytest.mark.parametrize(
    ("context", "page_size", "n_pages"),
    [(1, 16, 2), (16, 16, 2), (17, 32, 2), (63, 64, 2), (64, 64, 2), (65, 64, 4), (4096, 64, 128)],
)
def test_default_holds_whole_contexts(context: int, page_size: int, n_pages: int) -> None:
    cache = create("paged", context=context, n_sequences=2)
    assert (cache.page_size, cache.n_pages, cache.context) == (page_size, n_pages, context)
    cache.reserve(0, context)
    cache.reserve(1, context)


def test_n_slots_bounds_the_pages() -> None:
    assert create("paged", context=4096, n_sequences=8, n_slots=1000).n_pages == 15


def test_fewer_slots_than_a_page_are_refused() -> None:
    with pytest.raises(ResourceError, match="63 slots do not hold one page of 64"):
        create("paged", context=4096, n_sequences=1, n_slots=63)


def test_lowest_page_goes_first_after_any_order_of_freeing() -> None:
    cache = cache_of(6)
    for seq in range(6):
        cache.reserve(seq, 1)
    for seq in (4, 1, 3):
        cache.free(seq)
    cache.reserve(9, 33)
    assert list(cache.page_table(9)) == [1, 3, 4]


def test_a_page_is_taken_only_when_its_first_slot_is_needed() -> None:
    cache = cache_of(4)
    taken = []
    for n_tokens in (0, 1, 16, 17, 32, 33):
        cache.reserve(7, n_tokens)
        taken.append(len(cache.page_table(7)))
    assert taken == [0, 1, 1, 2, 2, 3]


def test_reserve_never_shrinks() -> None:
    cache = cache_of(4)
    cache.reserve(0, 40)
    cache.reserve(0, 1)
    assert len(cache.page_table(0)) == 3


def test_truncate_frees_only_whole_pages() -> None:
    cache = cache_of(4)
    cache.reserve(0, 64)
    kept = []
    for n_tokens in (64, 49, 48, 33, 17, 1, 0):
        cache.truncate(0, n_tokens)
        kept.append(len(cache.page_table(0)))
    assert kept == [4, 4, 3, 3, 2, 1, 0]
    assert cache.n_free_pages == 4


def test_truncate_never_grows() -> None:
    cache = cache_of(4)
    cache.reserve(0, 1)
    cache.truncate(0, 64)
    assert len(cache.page_table(0)) == 1


def test_a_full_cache_refuses_and_changes_nothing() -> None:
    cache = cache_of(3)
    cache.reserve(0, 32)
    with pytest.raises(ResourceError, match="need 2 more pages of 16, and 1 of 3 are free"):
        cache.reserve(1, 32)
    with pytest.raises(ResourceError, match="KV cache is full"):
        cache.reserve(0, 64)
    assert list(cache.page_table(0)) == [0, 1]
    assert cache.n_free_pages == 1
    cache.check()


def test_more_than_the_context_is_refused_though_pages_are_free() -> None:
    cache = cache_of(8, context=20)
    assert not cache.can_reserve(0, 21)
    with pytest.raises(ResourceError, match="21 tokens do not fit the context of 20"):
        cache.reserve(0, 21)


def test_freeing_an_unknown_sequence_is_ignored() -> None:
    cache = cache_of(2)
    cache.free(5)
    assert cache.n_free_pages == 2


def test_check_sees_a_page_held_twice() -> None:
    cache = cache_of(2)
    cache.reserve(0, 16)
    cache._tables[1] = [0]
    with pytest.raises(AssertionError):
        cache.check()


def test_check_sees_a_lost_page() -> None:
    cache = cache_of(2)
    cache._pages._blank.pop()
    with pytest.raises(AssertionError):
        cache.check()
