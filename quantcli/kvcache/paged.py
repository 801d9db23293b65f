"""A KV cache of fixed pages, handed out lowest number first as sequences grow."""

from __future__ import annotations

import heapq
from collections.abc import Sequence

from quantcli.errors import ResourceError

PAGE_MULTIPLE = 16  # attention reads 16 keys at a time and never looks across a page's end

# Half a page is wasted per sequence on average, and attention pays for each page it opens. 64 keys
# of 64 halves are 8 KB: long enough to stream, and the waste is 32 tokens a sequence.
PAGE_SIZE = 64


class PagedKVCache:
    """Who holds which page; see the contract in `quantcli.kvcache`.

    The lowest free page goes first, so that the same calls give the same pages every time.
    """

    def __init__(self, *, page_size: int, n_pages: int, context: int) -> None:
        """Start with all pages free."""
        assert page_size > 0, page_size
        assert page_size % PAGE_MULTIPLE == 0, page_size
        assert n_pages > 0, n_pages
        assert context > 0, context
        self.page_size = page_size
        self.n_pages = n_pages
        self.context = context
        self._free = list(range(n_pages))  # a heap; a sorted list is one
        self._tables: dict[int, list[int]] = {}  # sequence: its pages, in order of position

    @property
    def n_free_pages(self) -> int:
        """Pages that no sequence holds."""
        return len(self._free)

    def can_reserve(self, seq: int, n_tokens: int) -> bool:
        """Return whether `reserve` would succeed."""
        return n_tokens <= self.context and self._n_missing(seq, n_tokens) <= len(self._free)

    def reserve(self, seq: int, n_tokens: int) -> None:
        """Make slots for positions [0, n_tokens) of a sequence, opening it if it is new.

        Never shrinks. Raises ResourceError, changing nothing, if the context or the pages run out.
        """
        assert n_tokens >= 0, n_tokens
        if n_tokens > self.context:
            raise ResourceError(
                f"{n_tokens} tokens do not fit the context of {self.context}. Use a larger --ctx."
            )
        n_missing = self._n_missing(seq, n_tokens)
        if n_missing > len(self._free):
            raise ResourceError(
                f"the KV cache is full: {n_tokens} tokens need {n_missing} more pages of "
                f"{self.page_size}, and {len(self._free)} of {self.n_pages} are free. "
                "Wait for another request to end, or use a larger cache."
            )
        table = self._tables.setdefault(seq, [])
        table.extend(heapq.heappop(self._free) for _ in range(n_missing))

    def page_table(self, seq: int) -> Sequence[int]:
        """Return the pages of an open sequence, in order of position.

        The list is live: it grows with `reserve` and is cut by `truncate`.
        """
        return self._tables[seq]

    def truncate(self, seq: int, n_tokens: int) -> None:
        """Keep the slots of the first n_tokens; give whole pages behind them back."""
        assert n_tokens >= 0, n_tokens
        table = self._tables[seq]
        n_kept = self._n_pages(n_tokens)
        for page in table[n_kept:]:
            heapq.heappush(self._free, page)
        del table[n_kept:]

    def free(self, seq: int) -> None:
        """Give all of a sequence's pages back; unknown sequences are ignored."""
        for page in self._tables.pop(seq, ()):
            heapq.heappush(self._free, page)

    def check(self) -> None:
        """Assert that every page is free or held by exactly one sequence."""
        held = [page for table in self._tables.values() for page in table]
        assert sorted(held + self._free) == list(range(self.n_pages)), (self._tables, self._free)
        too_long = {s: t for s, t in self._tables.items() if len(t) > self._n_pages(self.context)}
        assert not too_long, (too_long, self.context)

    def _n_pages(self, n_tokens: int) -> int:
        return -(-n_tokens // self.page_size)

    def _n_missing(self, seq: int, n_tokens: int) -> int:
        return max(0, self._n_pages(n_tokens) - len(self._tables.get(seq, ())))


def rounded(n_tokens: int) -> int:
    """Return a number of tokens rounded up to what a page may be long."""
    return -(-n_tokens // PAGE_MULTIPLE) * PAGE_MULTIPLE


def create(*, context: int, n_sequences: int, n_slots: int | None = None) -> PagedKVCache:
    """Return an empty cache with pages of PAGE_SIZE slots, or of the context if that is shorter."""
    page_size = min(PAGE_SIZE, rounded(context))
    n_pages = n_sequences * -(-context // page_size) if n_slots is None else n_slots // page_size
    if n_pages < 1:
        raise ResourceError(
            f"{n_slots} slots do not hold one page of {page_size}. Use a larger cache."
        )
    return PagedKVCache(page_size=page_size, n_pages=n_pages, context=context)
