"""A KV cache with one span a sequence: a paged cache whose page is as long as the context."""

from __future__ import annotations

from quantcli.errors import ResourceError
from quantcli.kvcache.paged import PagedKVCache, rounded


def create(*, context: int, n_sequences: int, n_slots: int | None = None) -> PagedKVCache:
    """Return an empty cache with room for n_sequences, or for as many as n_slots hold."""
    page_size = rounded(context)
    n_pages = n_sequences if n_slots is None else n_slots // page_size
    if n_pages < 1:
        raise ResourceError(
            f"{n_slots} slots do not hold one sequence of {page_size}. Use a smaller --ctx, "
            "or --cache paged."
        )
    return PagedKVCache(page_size=page_size, n_pages=n_pages, context=context)
