"""The merges of a BPE vocabulary, checked, without those that lead to control tokens."""

from __future__ import annotations

from quantcli.errors import CheckpointError
from quantcli.text.special import Specials
from quantcli.text.vocabulary import (
    MERGES,
    TOKENS,
    Kind,
    Metadata,
    Vocabulary,
    described,
    of_kind,
    strings,
)


def plain_merges(
    metadata: Metadata, vocabulary: Vocabulary, specials: Specials
) -> tuple[dict[str, int], list[tuple[str, str]]]:
    """Return the ids of tokens that plain text may become, and the merges among them.

    Raises CheckpointError for merges that are missing, malformed or of unknown tokens.
    """
    ids = dict(vocabulary.by_text)
    for token in of_kind(specials.kinds, Kind.CONTROL, Kind.UNKNOWN, Kind.UNUSED):
        del ids[vocabulary.texts[token]]
    pairs = _pairs(strings(metadata, MERGES))
    if not _closed(pairs, ids):
        pairs = _within(pairs, ids, vocabulary.by_text)
    return ids, pairs


def _pairs(merges: list[str]) -> list[tuple[str, str]]:
    """Return merges as pairs; the space between the two is not the first character."""
    cuts = [merge.find(" ", 1) for merge in merges]
    if -1 in cuts:
        index = cuts.index(-1)
        raise CheckpointError(
            f"{MERGES}[{index}] is {described(merges[index])}; it should be two tokens with a "
            "space between."
        )
    return [(merge[:cut], merge[cut + 1 :]) for merge, cut in zip(merges, cuts, strict=True)]


def _closed(pairs: list[tuple[str, str]], ids: dict[str, int]) -> bool:
    """Return whether all parts and results of merges are tokens."""
    if not pairs:
        return True
    known = ids.keys()
    left, right = map(set, zip(*pairs, strict=True))
    return known >= left and known >= right and known >= {a + b for a, b in pairs}


def _within(
    pairs: list[tuple[str, str]], ids: dict[str, int], texts: dict[str, int]
) -> list[tuple[str, str]]:
    """Return the merges among plain tokens; raise CheckpointError for one of unknown tokens."""
    kept = []
    for index, (left, right) in enumerate(pairs):
        parts = (left, right, left + right)
        unknown = [part for part in parts if part not in texts]
        if unknown:
            raise CheckpointError(
                f"{MERGES}[{index}] is {described(left + ' ' + right)}, but "
                f"{described(unknown[0])} is not in {TOKENS}."
            )
        if all(part in ids for part in parts):
            kept.append((left, right))
    return kept
