"""The contract of a KV cache: which sequence holds which slots. Accounting on ints, no arrays.

A slot is one token's place. Storage is divided into pages of `page_size` slots; a sequence's page
table lists its pages in order of position, so position p lies in page table[p // page_size] at
offset p % page_size. A contiguous cache is one page as long as the context. The arrays themselves
belong to the runtime.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from quantcli import catalog


class KVCache(Protocol):
    """Who holds which page."""

    page_size: int  # slots a page, a multiple of 16
    n_pages: int
    context: int  # longest sequence, in tokens

    @property
    def n_free_pages(self) -> int:
        """Pages that no sequence holds."""
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
        """Keep the slots of the first n_tokens; give whole pages behind them back."""
        ...

    def free(self, seq: int) -> None:
        """Give all of a sequence's pages back; unknown sequences are ignored."""
        ...

    def check(self) -> None:
        """Assert that every page is free or held by exactly one sequence."""
        ...


def create(kind: str, *, context: int, n_sequences: int, n_slots: int | None = None) -> KVCache:
    """Return an empty cache of a kind in the catalog.

    context      longest sequence, in tokens
    n_sequences  sequences that may be open at once
    n_slots      slots in all; by default n_sequences whole contexts
    """
    module = catalog.load("cache", kind)
    return module.create(context=context, n_sequences=n_sequences, n_slots=n_slots)  # type: ignore[no-any-return]
