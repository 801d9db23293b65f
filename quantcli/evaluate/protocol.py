"""How a text is cut into chunks, and which of their tokens are scored."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from quantcli.errors import UnknownName, UsageError

LLAMA_CPP = "llama.cpp"
FULL = "full"
PROTOCOLS = {LLAMA_CPP: 512, FULL: 2048}  # name: tokens a chunk where nothing else is asked for
MIN_CONTEXT = 4  # the least of which half a chunk scores a token


@dataclass(frozen=True, slots=True)
class Protocol:
    """A way to measure perplexity, over chunks of `context` tokens that do not overlap.

    name        "llama.cpp": what follows the first half of a chunk and one token is scored, so
                that every prediction sees half a chunk at least, as llama-perplexity does. "full":
                everything after a chunk's first token, as in the literature on quantization.
    replaces    whether BOS takes the place of each chunk's first token, if the model wants BOS
    """

    name: str
    context: int
    replaces: bool

    @property
    def first_row(self) -> int:
        """The first token whose prediction of the next one is scored."""
        return self.context // 2 if self.name == LLAMA_CPP else 0

    @property
    def n_scored(self) -> int:
        """Predictions of a chunk that are scored."""
        return self.context - 1 - self.first_row


@dataclass(frozen=True, slots=True)
class Chunk:
    """Tokens that are evaluated together.

    number     counts from 1
    tokens     all of them; the row of each but the last predicts the next
    first_row  the first row whose prediction is scored
    """

    number: int
    tokens: tuple[int, ...]
    first_row: int

    @property
    def targets(self) -> tuple[int, ...]:
        """The tokens that are scored."""
        return self.tokens[self.first_row + 1 :]


def protocol(
    name: str = LLAMA_CPP, context: int | None = None, bos: bool | None = None
) -> Protocol:
    """Return a protocol by name.

    context  tokens a chunk; None: 512 for "llama.cpp", 2048 for "full"
    bos      whether every chunk starts with BOS; None: as usual, which is yes for "llama.cpp" and
             no for "full", where only the text starts with it

    Raises UnknownName, and UsageError for a context too short to score anything.
    """
    if name not in PROTOCOLS:
        raise UnknownName("protocol", name, PROTOCOLS)
    context = context or PROTOCOLS[name]
    if context < MIN_CONTEXT:
        raise UsageError(
            f"--ctx {context} is too short to score a token. Give {MIN_CONTEXT} or more."
        )
    return Protocol(name, context, name == LLAMA_CPP if bos is None else bos)


def cut(
    tokens: Sequence[int],
    how: Protocol,
    bos: int | None,
    *,
    n_chunks: int | None = None,
    source: str = "the text",
) -> list[Chunk]:
    """Return the whole chunks of a tokenized text; what is left over at its end is not used.

    bos       the token that chunks start with where the protocol replaces the first, or None
    n_chunks  the most to return
    source    what the text is called in the error

    Raises UsageError if there is not one whole chunk.
    """
    n_whole = len(tokens) // how.context
    if n_whole == 0:
        raise UsageError(
            f"{source} has {len(tokens)} tokens, and a chunk {how.context}. "
            "Use a longer text or a smaller --ctx."
        )
    chunks = []
    for i in range(min(n_whole, n_chunks or n_whole)):
        part = tuple(tokens[i * how.context : (i + 1) * how.context])
        if how.replaces and bos is not None:
            part = (bos, *part[1:])
        chunks.append(Chunk(i + 1, part, how.first_row))
    return chunks
