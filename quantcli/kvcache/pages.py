"""Pages as numbers: who holds them, what is in them, which one goes next.

A page is held by so many sequences, or free. What a free page holds may still be of use to a prompt
that begins the same, so blank pages are handed out first, and then the least recently used.

What a page holds is known by its tokens and by the key of all that lies before them. The key of a
whole page covers that too, so equal keys mean equal keys and values: a chain as in vLLM's
automatic prefix caching (docs/design/prefix_caching.md).
"""

from __future__ import annotations

import heapq
from array import array
from collections.abc import Sequence
from hashlib import blake2b
from typing import NamedTuple

_KEY_NBYTES = 16


class Content(NamedTuple):
    """What a page holds.

    before   key of all that lies before the page
    tokens   its tokens, from its first slot on
    key      of all up to its end if it is full, else None
    """

    before: bytes
    tokens: tuple[int, ...]
    key: bytes | None


def root_key(salt: str) -> bytes:
    """Return the key of an empty prompt. Different salts share nothing."""
    return blake2b(salt.encode("utf-8", "surrogatepass"), digest_size=_KEY_NBYTES).digest()


def next_key(before: bytes, tokens: Sequence[int]) -> bytes:
    """Return the key of a prompt that goes on with a page of tokens."""
    return blake2b(before + array("q", tokens).tobytes(), digest_size=_KEY_NBYTES).digest()


def common_prefix(a: Sequence[int], b: Sequence[int]) -> int:
    """Return how many tokens two sequences have in common at the start."""
    n = min(len(a), len(b))
    return next((i for i in range(n) if a[i] != b[i]), n)


class Pages:
    """A fixed number of pages. The same calls give the same pages every time."""

    def __init__(self, n_pages: int) -> None:
        """Start with all of them free and blank."""
        self.n_holders = [0] * n_pages  # of each page
        self._blank = list(range(n_pages))  # a heap; a sorted list is one
        self._known: dict[int, None] = {}  # free pages with content, least recently used first
        self._contents: dict[int, Content] = {}
        self._by_key: dict[bytes, int] = {}  # full pages
        self._after: dict[bytes, dict[int, None]] = {}  # key: pages whose content comes next

    @property
    def n_free(self) -> int:
        """Pages that nobody holds."""
        return len(self._blank) + len(self._known)

    @property
    def n_known(self) -> int:
        """Of these, the ones with content."""
        return len(self._known)

    def is_free(self, page: int) -> bool:
        """Return whether nobody holds a page."""
        return not self.n_holders[page]

    def take(self, but: int | None = None) -> int:
        """Hold a free page and return it: the lowest blank one, or the least recently used.

        but   a page to spare; if it is the only one that is free, it is taken all the same
        """
        if self._blank:
            page = heapq.heappop(self._blank)
        else:
            page = next((p for p in self._known if p != but), but if but is not None else -1)
            assert page >= 0, "no page is free"
            del self._known[page]
            if page != but:
                self.forget(page)
        self.n_holders[page] = 1
        return page

    def hold(self, page: int) -> None:
        """Hold a page with content, free or not."""
        assert page in self._contents, page
        if not self.n_holders[page]:
            del self._known[page]
        self.n_holders[page] += 1

    def drop(self, page: int) -> None:
        """Give a page back; it is free when all have."""
        assert self.n_holders[page] > 0, page
        self.n_holders[page] -= 1
        if self.n_holders[page]:
            return
        if page in self._contents:
            self._known[page] = None  # the most recently used is last
        else:
            heapq.heappush(self._blank, page)

    def describe(self, page: int, content: Content) -> None:
        """Note what a page that is held holds. Only what has been computed may be described."""
        assert self.n_holders[page], page
        self.forget(page)
        if content.key is not None:
            if content.key in self._by_key:
                return  # the same was computed twice; one of them is enough
            self._by_key[content.key] = page
        self._contents[page] = content
        self._after.setdefault(content.before, {})[page] = None

    def forget(self, page: int) -> None:
        """Note that what a page holds is of no use."""
        content = self._contents.pop(page, None)
        if content is None:
            return
        if content.key is not None:
            del self._by_key[content.key]
        siblings = self._after[content.before]
        del siblings[page]
        if not siblings:
            del self._after[content.before]
        if page in self._known:
            del self._known[page]
            heapq.heappush(self._blank, page)

    def content(self, page: int) -> Content | None:
        """Return what a page holds, if it is known."""
        return self._contents.get(page)

    def with_key(self, key: bytes) -> int | None:
        """Return the full page with a key."""
        return self._by_key.get(key)

    def closest(self, before: bytes, tokens: Sequence[int]) -> tuple[int, int]:
        """Return the page that begins with the most of some tokens, and how many; else (-1, 0)."""
        best, n_best = -1, 0
        for page in self._after.get(before, ()):
            n = common_prefix(self._contents[page].tokens, tokens)
            if n > n_best:
                best, n_best = page, n
        return best, n_best

    def check(self) -> None:
        """Assert that free pages are blank or known, and that what is known can be found."""
        free = [page for page, n in enumerate(self.n_holders) if not n]
        assert sorted([*self._blank, *self._known]) == free, (self._blank, self._known, free)
        assert set(self._known) == {p for p in free if p in self._contents}, self._known
        keys = {c.key: p for p, c in self._contents.items() if c.key is not None}
        assert keys == self._by_key, (keys, self._by_key)
        found = {page for pages in self._after.values() for page in pages}
        assert found == set(self._contents), (found, self._contents)
        for before, pages in self._after.items():
            assert all(self._contents[page].before == before for page in pages), before
