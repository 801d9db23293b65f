"""A KV cache of fixed pages, handed out as sequences grow, shared where prompts begin the same."""

from __future__ import annotations

from collections.abc import Sequence

from quantcli.errors import ResourceError
from quantcli.kvcache.pages import Content, Pages, next_key, root_key
from quantcli.kvcache.prefix import Copy, Found

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
        self._pages = Pages(n_pages)
        self._tables: dict[int, list[int]] = {}  # sequence: its pages, in order of position
        # Sequence: the keys before its first page, its second, ... as far as content is known.
        self._keys: dict[int, list[bytes]] = {}

    @property
    def n_free_pages(self) -> int:
        """Pages that no sequence holds."""
        return self._pages.n_free

    @property
    def n_cached_pages(self) -> int:
        """Of these, pages whose content a prompt may still use."""
        return self._pages.n_known

    def n_pages_for(self, n_tokens: int) -> int:
        """Return how many pages a sequence of n_tokens has."""
        return -(-n_tokens // self.page_size)

    def can_reserve(self, seq: int, n_tokens: int) -> bool:
        """Return whether `reserve` would succeed."""
        return n_tokens <= self.context and self._n_missing(seq, n_tokens) <= self._pages.n_free

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
        if n_missing > self._pages.n_free:
            raise ResourceError(
                f"the KV cache is full: {n_tokens} tokens need {n_missing} more pages of "
                f"{self.page_size}, and {self._pages.n_free} of {self.n_pages} are free. "
                "Wait for another request to end, or use a larger cache."
            )
        table = self._tables.setdefault(seq, [])
        table.extend(self._pages.take() for _ in range(n_missing))

    def page_table(self, seq: int) -> Sequence[int]:
        """Return the pages of an open sequence, in order of position.

        The list is live: it grows with `reserve` and is cut by `truncate`.
        """
        return self._tables[seq]

    def truncate(self, seq: int, n_tokens: int) -> None:
        """Keep the slots of the first n_tokens; give whole pages behind them back.

        What is known of slots that may now be written again is forgotten; they must not be shared.
        """
        assert n_tokens >= 0, n_tokens
        table = self._tables[seq]
        n_kept = self.n_pages_for(n_tokens)
        for page in reversed(table[n_kept:]):
            self._pages.drop(page)
        del table[n_kept:]
        if seq in self._keys:
            n_whole = n_tokens // self.page_size
            del self._keys[seq][n_whole + 1 :]
            for page in table[n_whole:]:
                assert self._pages.n_holders[page] == 1, "a shared page would be written"
                self._pages.forget(page)

    def free(self, seq: int) -> None:
        """Give all of a sequence's pages back; unknown sequences are ignored."""
        self._keys.pop(seq, None)
        for page in reversed(self._tables.pop(seq, [])):  # the end of a prompt is put out first
            self._pages.drop(page)

    def forget(self, seq: int) -> None:
        """Note that nobody else may use what a sequence's own pages hold."""
        for page in self._tables.get(seq, ()):
            if self._pages.n_holders[page] == 1:
                self._pages.forget(page)

    def find(self, tokens: Sequence[int], salt: str = "") -> Found:
        """Return where the start of some tokens lies that have been described with this salt."""
        keys, pages = [root_key(salt)], []
        size = self.page_size
        for start in range(0, len(tokens) - size + 1, size):
            part = tokens[start : start + size]
            key = next_key(keys[-1], part)
            page = self._pages.with_key(key)
            if page is None:
                break
            content = self._pages.content(page)
            assert content is not None
            if content.tokens != tuple(part):  # two prompts of one key: not in this universe
                break
            keys.append(key)
            pages.append(page)
        start = len(pages) * size
        tail, n_tail = self._pages.closest(keys[-1], tokens[start : start + size])
        n_held = sum(not self._pages.is_free(page) for page in pages)
        return Found(start + n_tail, tuple(pages), tuple(keys), tail, n_tail, n_held)

    def open(self, seq: int, found: Found) -> Copy | None:
        """Open a new sequence with what was found, nothing having changed since.

        Returns what must be copied, before anything else is computed, for the last page to be
        its own; None if nothing must. Takes as many free pages as are found and not held yet.
        """
        assert seq not in self._tables, seq
        for page in found.pages:
            self._pages.hold(page)
        table = self._tables[seq] = list(found.pages)
        self._keys[seq] = list(found.keys)
        if not found.n_tail:
            return None
        source = found.tail
        content = self._pages.content(source)
        assert content is not None
        if self._pages.is_free(source) and found.n_tail == len(content.tokens):
            self._pages.hold(source)  # it only grows: nothing is lost
            table.append(source)
            return None
        page = self._pages.take(but=source)
        table.append(page)
        if page != source:
            return Copy(source, page, found.n_tail)
        kept = Content(content.before, content.tokens[: found.n_tail], None)
        self._pages.describe(page, kept)
        return None

    def describe(self, seq: int, tokens: Sequence[int], salt: str = "") -> None:
        """Note that a sequence's slots hold these tokens' keys and values, for others to find.

        Only for what has been computed and will not be written again.
        """
        table, size = self._tables[seq], self.page_size
        keys = self._keys.setdefault(seq, [root_key(salt)])
        while len(keys) <= len(tokens) // size:
            index = len(keys) - 1
            part = tuple(tokens[index * size : (index + 1) * size])
            key = next_key(keys[-1], part)
            if self._pages.with_key(key) != table[index]:
                self._pages.describe(table[index], Content(keys[-1], part, key))
            keys.append(key)
        rest = tuple(tokens[(len(keys) - 1) * size :])
        if rest:
            self._pages.describe(table[len(keys) - 1], Content(keys[-1], rest, None))

    def clear(self) -> None:
        """Forget what all pages hold."""
        for page in range(self.n_pages):
            self._pages.forget(page)

    def check(self) -> None:
        """Assert that every page is free or held by exactly the sequences that list it."""
        n_holders = [0] * self.n_pages
        for table in self._tables.values():
            assert len(set(table)) == len(table), table
            for page in table:
                n_holders[page] += 1
        assert n_holders == self._pages.n_holders, (self._tables, self._pages.n_holders)
        self._pages.check()
        too_long = {
            s: t for s, t in self._tables.items() if len(t) > self.n_pages_for(self.context)
        }
        assert not too_long, (too_long, self.context)
        for page, n in enumerate(n_holders):
            content = self._pages.content(page)
            is_partial = content is not None and content.key is None
            assert n < 2 or not is_partial, f"page {page} is shared but not full"

    def _n_missing(self, seq: int, n_tokens: int) -> int:
        return max(0, self.n_pages_for(n_tokens) - len(self._tables.get(seq, ())))


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
