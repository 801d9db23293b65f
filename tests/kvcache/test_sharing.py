"""Pages that sequences share: what is found is what was computed, over random histories."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quantcli import catalog
from quantcli.kvcache import Copy, KVCache, create
from quantcli.kvcache.paged import PagedKVCache
from quantcli.kvcache.pages import Content, Pages, common_prefix, next_key, root_key


def cache_of(n_pages: int, page_size: int = 16, context: int = 1024) -> PagedKVCache:
    return PagedKVCache(page_size=page_size, n_pages=n_pages, context=context)


def compute(cache: KVCache, seq: int, tokens: list[int], salt: str = "") -> tuple[int, Copy | None]:
    """Open a sequence with what is found of some tokens, and have the rest computed."""
    found = cache.find(tokens, salt)
    copy = cache.open(seq, found)
    cache.reserve(seq, len(tokens))
    cache.describe(seq, tokens, salt)
    cache.check()
    return found.n_tokens, copy


def test_whole_pages_are_shared_and_counted() -> None:
    cache = cache_of(6)
    tokens = list(range(48))
    assert compute(cache, 0, tokens) == (0, None)
    assert compute(cache, 1, [*tokens[:32], 9, 9]) == (32, None)
    assert list(cache.page_table(1)) == [0, 1, 3]
    assert cache.find([*tokens[:32], 9]).n_held == 2
    cache.free(0)
    assert (cache.n_free_pages, cache.n_cached_pages) == (3, 1)
    assert cache.find(tokens).n_held == 2
    cache.free(1)
    assert (cache.n_free_pages, cache.n_cached_pages) == (6, 4)


def test_of_a_page_in_part_the_common_slots_are_copied() -> None:
    cache = cache_of(4)
    compute(cache, 0, list(range(20)))
    n, copy = compute(cache, 1, [*range(18), 7, 7])
    assert (n, copy) == (18, Copy(1, 2, 2))


def test_a_full_page_that_ends_otherwise_is_copied_in_part() -> None:
    cache = cache_of(4)
    compute(cache, 0, list(range(32)))
    assert compute(cache, 1, [*range(20), 7]) == (20, Copy(1, 2, 4))


def test_a_free_page_that_only_grows_is_taken_over() -> None:
    cache = cache_of(4)
    compute(cache, 0, list(range(20)))
    cache.free(0)
    assert compute(cache, 5, [*range(20), 7]) == (20, None)
    assert list(cache.page_table(5)) == [0, 1]


def test_the_only_free_page_is_taken_over_though_it_loses_its_end() -> None:
    cache = create("contiguous", context=64, n_sequences=1)
    compute(cache, 0, list(range(20)))
    cache.free(0)
    assert compute(cache, 1, [*range(10), 7]) == (10, None)
    assert cache.find([*range(10), 7, 8]).n_tokens == 11
    assert cache.find(list(range(20))).n_tokens == 10


def test_salts_share_nothing() -> None:
    cache = cache_of(8)
    compute(cache, 0, list(range(40)), "a")
    for salt, n in (("a", 40), ("", 0), ("b", 0)):
        assert cache.find(list(range(40)), salt).n_tokens == n


def test_the_least_recently_used_goes_first_and_its_end_before_its_start() -> None:
    cache = cache_of(4)
    first, second = list(range(32)), list(range(100, 132))
    compute(cache, 0, first)
    compute(cache, 1, second)
    cache.free(0)
    cache.free(1)
    assert compute(cache, 2, first)[0] == 32  # used again
    cache.free(2)
    cache.reserve(3, 16)
    assert (cache.find(first).n_tokens, cache.find(second).n_tokens) == (32, 16)
    cache.reserve(3, 48)
    assert (cache.find(first).n_tokens, cache.find(second).n_tokens) == (16, 0)


def test_what_is_forgotten_or_cleared_is_not_found() -> None:
    cache = cache_of(8)
    compute(cache, 0, list(range(40)))
    compute(cache, 1, [*range(32), 9])
    cache.forget(0)  # but for what others hold, too
    assert cache.find(list(range(40))).n_tokens == 32
    cache.clear()
    assert cache.find([*range(32), 9]).n_tokens == 0
    cache.check()
    assert cache.n_cached_pages == 0


def test_truncating_forgets_what_may_be_written_again() -> None:
    cache = cache_of(8)
    compute(cache, 0, list(range(40)))
    cache.truncate(0, 20)
    assert cache.find(list(range(40))).n_tokens == 16
    cache.reserve(0, 30)
    cache.describe(0, [*range(20), *range(50, 60)])
    assert cache.find([*range(20), 50, 51]).n_tokens == 22
    cache.check()


def test_the_same_computed_twice_is_kept_once() -> None:
    cache = cache_of(6)
    for seq in (0, 1):
        cache.reserve(seq, 32)
        cache.describe(seq, list(range(32)))
        cache.check()
    cache.free(0)
    cache.free(1)
    assert cache.n_cached_pages == 2


def test_keys_depend_on_everything_before() -> None:
    keys = {root_key(salt) for salt in ("", "a", "b", "\ud800")}
    keys |= {next_key(root_key(""), tokens) for tokens in ([1], [1, 0], [0, 1], [2**40])}
    keys |= {next_key(next_key(root_key(salt), [1]), [1]) for salt in ("", "a")}
    assert len(keys) == 10


def test_two_prompts_of_one_key_are_told_apart_by_their_tokens() -> None:
    cache = cache_of(4)
    compute(cache, 0, list(range(16)))
    key = next_key(root_key(""), list(range(16)))
    cache._pages._contents[0] = Content(root_key(""), tuple(range(1, 17)), key)
    assert cache.find(list(range(16))).n_tokens == 0


def test_common_prefix() -> None:
    assert common_prefix([], [1]) == 0
    assert common_prefix([1, 2], (1, 2, 3)) == 2
    assert common_prefix([1, 2, 4], [1, 2, 3]) == 2


def test_a_page_is_never_taken_from_a_holder() -> None:
    pages = Pages(2)
    assert [pages.take(), pages.take()] == [0, 1]
    with pytest.raises(AssertionError, match="no page is free"):
        pages.take()


# Random histories --------------------------------------------------------------------------------

CALLS = st.lists(
    st.tuples(
        st.sampled_from(["open", "open", "free", "grow", "forget", "truncate"]),
        st.integers(0, 5),
        st.integers(1, 90),
        st.integers(0, 3),
    ),
    max_size=50,
)


class History:
    """A cache and a memory beside it, in which every slot remembers all tokens up to its own."""

    def __init__(self, cache: KVCache) -> None:
        self.cache = cache
        self.memory: dict[tuple[int, int], tuple[int, ...]] = {}
        self.tokens: dict[int, list[int]] = {}
        self.n_shared = 0

    def write(self, seq: int, start: int) -> None:
        table, size = self.cache.page_table(seq), self.cache.page_size
        tokens = self.tokens[seq]
        for position in range(start, len(tokens)):
            page, offset = divmod(position, size)
            self.memory[table[page], offset] = tuple(tokens[: position + 1])

    def check(self) -> None:
        self.cache.check()
        size = self.cache.page_size
        for seq, tokens in self.tokens.items():
            table = self.cache.page_table(seq)
            for position in range(len(tokens)):
                page, offset = divmod(position, size)
                assert self.memory[table[page], offset] == tuple(tokens[: position + 1])

    def act(self, name: str, seq: int, n_tokens: int, kind: int) -> None:
        if name == "open" and seq not in self.tokens:
            tokens = [(i // 20) % 2 if i < 50 else kind for i in range(n_tokens)]
            found = self.cache.find(tokens)
            n_pages = self.cache.n_pages_for(n_tokens)
            if n_pages - found.n_held > self.cache.n_free_pages:
                return
            copy = self.cache.open(seq, found)
            if copy is not None:
                for offset in range(copy.n_slots):
                    self.memory[copy.target, offset] = self.memory[copy.source, offset]
            self.cache.reserve(seq, n_tokens)
            self.tokens[seq] = tokens
            self.n_shared += found.n_tokens
            self.write(seq, found.n_tokens)
            self.cache.describe(seq, tokens[: n_tokens - kind] if n_tokens > kind else [])
        elif name == "grow" and seq in self.tokens:
            n = len(self.tokens[seq])
            if self.cache.can_reserve(seq, n + kind):
                self.cache.reserve(seq, n + kind)
                self.tokens[seq] += [kind] * kind
                self.write(seq, n)
        elif name == "free":
            self.cache.free(seq)
            self.tokens.pop(seq, None)
        elif name == "forget" and seq in self.tokens:
            self.cache.forget(seq)


@pytest.mark.parametrize("kind", catalog.names("cache"))
@given(calls=CALLS, n_slots=st.integers(112, 500))
@settings(max_examples=60, deadline=None)
def test_what_is_shared_is_what_would_be_computed(
    kind: str, calls: list[tuple[str, int, int, int]], n_slots: int
) -> None:
    history = History(create(kind, context=100, n_sequences=4, n_slots=n_slots))
    for call in calls:
        history.act(*call)
        history.check()
