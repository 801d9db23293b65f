"""Every kind of KV cache against a dict of sets, over random calls."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quantcli import catalog
from quantcli.errors import ResourceError, UnknownName
from quantcli.kvcache import KVCache, create

CONTEXT = 100
N_SEQUENCES = 4

CALLS = st.lists(
    st.tuples(
        st.sampled_from(["reserve", "truncate", "free"]),
        st.integers(0, 6),
        st.integers(0, CONTEXT + 20),
    ),
    max_size=60,
)


class Oracle:
    """How many pages each open sequence holds: a cache without page numbers."""

    def __init__(self, cache: KVCache) -> None:
        self.page_size, self.n_pages = cache.page_size, cache.n_pages
        self.held: dict[int, int] = {}

    def pages_for(self, n_tokens: int) -> int:
        return (n_tokens + self.page_size - 1) // self.page_size

    def allows(self, seq: int, n_tokens: int) -> bool:
        others = sum(n for s, n in self.held.items() if s != seq)
        wanted = max(self.held.get(seq, 0), self.pages_for(n_tokens))
        return n_tokens <= CONTEXT and others + wanted <= self.n_pages

    def reserve(self, seq: int, n_tokens: int) -> None:
        self.held[seq] = max(self.held.get(seq, 0), self.pages_for(n_tokens))

    def truncate(self, seq: int, n_tokens: int) -> None:
        self.held[seq] = min(self.held[seq], self.pages_for(n_tokens))


@pytest.mark.parametrize("kind", catalog.names("cache"))
@pytest.mark.parametrize("n_slots", [None, 150])
@given(calls=CALLS)
@settings(max_examples=60, deadline=None)
def test_accounting_equals_a_dict(
    kind: str, n_slots: int | None, calls: list[tuple[str, int, int]]
) -> None:
    cache = create(kind, context=CONTEXT, n_sequences=N_SEQUENCES, n_slots=n_slots)
    oracle = Oracle(cache)
    for name, seq, n_tokens in calls:
        before = {s: list(cache.page_table(s)) for s in oracle.held}
        apply(cache, oracle, name, seq, n_tokens)
        cache.check()
        assert cache.n_free_pages == cache.n_pages - sum(oracle.held.values())
        for open_seq, n_held in oracle.held.items():
            table = list(cache.page_table(open_seq))
            assert len(table) == n_held
            kept = min(n_held, len(before.get(open_seq, [])))
            assert table[:kept] == before.get(open_seq, [])[:kept], "pages in use never move"


def apply(cache: KVCache, oracle: Oracle, name: str, seq: int, n_tokens: int) -> None:
    if name == "reserve":
        allowed = oracle.allows(seq, n_tokens)
        assert cache.can_reserve(seq, n_tokens) == allowed
        if allowed:
            cache.reserve(seq, n_tokens)
            oracle.reserve(seq, n_tokens)
        else:
            with pytest.raises(ResourceError):
                cache.reserve(seq, n_tokens)
    elif name == "free":
        cache.free(seq)
        oracle.held.pop(seq, None)
    elif seq in oracle.held:
        cache.truncate(seq, n_tokens)
        oracle.truncate(seq, n_tokens)


@pytest.mark.parametrize("kind", catalog.names("cache"))
@given(calls=CALLS)
@settings(max_examples=20, deadline=None)
def test_the_same_calls_give_the_same_pages(kind: str, calls: list[tuple[str, int, int]]) -> None:
    tables = []
    for _ in range(2):
        cache = create(kind, context=CONTEXT, n_sequences=N_SEQUENCES)
        oracle = Oracle(cache)
        for name, seq, n_tokens in calls:
            apply(cache, oracle, name, seq, n_tokens)
        tables.append({seq: list(cache.page_table(seq)) for seq in oracle.held})
    assert tables[0] == tables[1]


@pytest.mark.parametrize("kind", catalog.names("cache"))
def test_by_default_every_sequence_may_fill_its_context(kind: str) -> None:
    cache = create(kind, context=CONTEXT, n_sequences=N_SEQUENCES)
    for seq in range(N_SEQUENCES):
        cache.reserve(seq, CONTEXT)
    assert cache.page_size % 16 == 0


def test_an_unknown_kind_is_refused_by_name() -> None:
    with pytest.raises(UnknownName, match="contiguous, paged"):
        create("pagde", context=16, n_sequences=1)
