"""SentencePiece's table of characters to replace (`tokenizer.ggml.precompiled_charsmap`), checked.

The table is a trie in an array of 32-bit units, then texts that end in NUL. A unit, from the top:

    is_value:1  offset:21 (bits 10-30)  wide:1 (bit 9)  has_leaf:1 (bit 8)  label:8

The child of a node for a byte b lies at node ^ offset ^ b, if its label is b. Where has_leaf is set
the unit at node ^ offset holds, in its low 31 bits, where the replacement begins among the texts.
Source: darts-clone, and normalizer.cc of SentencePiece.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from quantcli.errors import CheckpointError
from quantcli.text.vocabulary import PREFIX, Metadata, described

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    U32 = npt.NDArray[np.uint32]

KEY = PREFIX + "precompiled_charsmap"
LONGEST = 256  # bytes that are replaced at once; those in use have 18
_IS_VALUE = 1 << 31


class CharacterMap:
    """Replaces, from left to right, the longest text that has a replacement."""

    def __init__(self, units: U32, texts: bytes) -> None:
        """Wrap the trie, u32 (n,), and the replacements."""
        self._units: list[int] = units.tolist()
        self._texts = texts

    @classmethod
    def from_metadata(cls, metadata: Metadata) -> CharacterMap | None:
        """Return a file's table, None if it has none; raise CheckpointError for a broken one."""
        import numpy as np

        value = metadata.get(KEY)
        if value is None:
            return None
        array = np.asarray(value) if isinstance(value, np.ndarray | list | tuple) else None
        if array is None or array.ndim != 1 or array.dtype.kind not in "iu":
            raise CheckpointError(f"{KEY} is {described(value)}; it should be an array of bytes.")
        data = (array.astype(np.int64) & 255).astype(np.uint8).tobytes()
        n_bytes = int.from_bytes(data[:4], "little")
        if len(data) < 4 or n_bytes % 4 or n_bytes + 4 >= len(data):
            raise CheckpointError(
                f"{KEY} has {len(data)} bytes, which do not fit its trie of {n_bytes}."
            )
        return cls(np.frombuffer(data, "<u4", n_bytes // 4, 4), data[4 + n_bytes :])

    def replaced(self, text: str) -> str:
        """Return a text with replacements; raise CheckpointError where the table leads nowhere."""
        data = text.encode()
        parts: list[bytes] = []
        start = at = 0
        while at < len(data):
            length, offset = self._longest(data, at)
            if length:
                parts += (data[start:at], self._text(offset))
                at += length
                start = at
            else:
                at += 1
                while at < len(data) and data[at] & 0xC0 == 0x80:  # within a character
                    at += 1
        parts.append(data[start:])
        return b"".join(parts).decode("utf-8", "replace")

    def _longest(self, data: bytes, at: int) -> tuple[int, int]:
        """Return the length of the longest text here that is replaced, and where by what."""
        units, found = self._units, (0, 0)
        try:
            node = _offset(units[0])
            for stop in range(at, min(len(data), at + LONGEST)):
                byte = data[stop]
                node ^= byte
                unit = units[node]
                if byte == 0 or unit & (_IS_VALUE | 0xFF) != byte:
                    break
                node ^= _offset(unit)
                if unit >> 8 & 1:
                    found = (stop + 1 - at, units[node] & (_IS_VALUE - 1))
        except IndexError:
            raise CheckpointError(f"{KEY} is broken: its trie leads beyond its end.") from None
        return found

    def _text(self, offset: int) -> bytes:
        stop = self._texts.find(b"\0", offset)
        if stop < 0:
            raise CheckpointError(f"{KEY} is broken: a replacement lies beyond its end.")
        return self._texts[offset:stop]


def _offset(unit: int) -> int:
    return unit >> 10 << ((unit & 1 << 9) >> 6)
