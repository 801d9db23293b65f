"""The contract of a KV cache: which sequence holds which slots, and what is in them. No arrays.

A slot is one token's place. Storage is divided into pages of `page_size` slots; a sequence's page
table lists its pages in order of position, so position p lies in page table[p // page_size] at
offset p % page_size. A contiguous cache is one page as long as the context. The arrays themselves
belong to the runtime.

Sequences that begin the same share pages. Only full pages whose content is described are shared,
and nothing writes to them; of a page that is full only in part, the part in common is copied. What
a sequence leaves behind when it is freed stays known until its page is needed. Keys and values of a
token depend on nothing but the tokens up to it, so what is found is what would be computed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from quantcli import catalog
from quantcli.kvcache.prefix import Copy, Found

__all__ = ["Copy", "Found", "KVCache", "create"]


class KVCache(Protocol):
    """Who holds which page."""

    page_size: int  # slots a page, a multiple of 16
    n_pages: int
    context: int  # longest sequence, in tokens

    @property
    def n_free_pages(self) -> int:
        """Pages that no sequence holds."""
        ...

    @property
    def n_cached_pages(self) -> int:
        """Of these, pages whose content a prompt may still use."""
        ...

    def n_pages_for(self, n_tokens: int) -> int:
        """Return how many pages a sequence of n_tokens has."""
        ...

    def can_reserve(self, seq: int, n_tokens: int) -> bool:
        """Return whether `reserve` would succeed."""
        ...

    def reserve(self, seq: int, n_tokens: int) -> None:
        """Make slots for positions [0, n_tokens) of a sequence, opening it if it is new.

        Never shrinks. Raises ResourceError, changing nothing, if the context or the pages run out.
        """
        ...

    def page_table(self, seq: int) -> Sequence[int]:
        """Return the pages of a sequence, in order of position. Append-only until `truncate`."""
        ...

    def truncate(self, seq: int, n_tokens: int) -> None:
        """Keep the slots of the first n_tokens; give whole pages behind them back.

        What is known of slots that may now be written again is forgotten; they must not be shared.
        """
        ...

    def free(self, seq: int) -> None:
        """Give all of a sequence's pages back; unknown sequences are ignored."""
        ...

    def find(self, tokens: Sequence[int], salt: str = "") -> Found:
        """Return where the start of some tokens lies that have been described with this salt."""
        ...

    def open(self, seq: int, found: Found) -> Copy | None:
        """Open a new sequence with what was found, nothing having changed since.

        Returns what must be copied, before anything else is computed, for the last page to be
        its own; None if nothing must. Takes as many free pages as are found and not held yet.
        """
        ...

    def describe(self, seq: int, tokens: Sequence[int], salt: str = "") -> None:
        """Note that a sequence's slots hold these tokens' keys and values, for others to find.

        Only for what has been computed and will not be written again.
        """
        ...

    def forget(self, seq: int) -> None:
        """Note that nobody else may use what a sequence's own pages hold."""
        ...

    def clear(self) -> None:
        """Forget what all pages hold."""
        ...

    def check(self) -> None:
        """Assert that every page is free or held by exactly the sequences that list it."""
        ...


def create(kind: str, *, context: int, n_sequences: int, n_slots: int | None = None) -> KVCache:
    """Return an empty cache of a kind in the catalog.

    context      longest sequence, in tokens
    n_sequences  sequences that may be open at once
    n_slots      slots in all; by default n_sequences whole contexts
    """
    module = catalog.load("cache", kind)
    return module.create(context=context, n_sequences=n_sequences, n_slots=n_slots)  # type: ignore[no-any-return]
