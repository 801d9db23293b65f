"""What of a prompt a cache holds already, and how a sequence comes by it."""

from __future__ import annotations

from typing import NamedTuple


class Found(NamedTuple):
    """The start of a prompt, found in a cache.

    n_tokens   tokens found
    pages      whole pages, in order of position, to be shared
    keys       of what lies before the first page, the second, ... and behind the last
    tail       page that begins with the n_tail tokens behind the whole pages
    n_held     pages of `pages` that are held already, so that sharing them takes no free page
    """

    n_tokens: int
    pages: tuple[int, ...]
    keys: tuple[bytes, ...]
    tail: int
    n_tail: int
    n_held: int


class Copy(NamedTuple):
    """Slots [0, n_slots) of page `source` are to be copied to page `target`, in every layer."""

    source: int
    target: int
    n_slots: int
