"""A bounds-checked walk through the head of a GGUF file."""

from __future__ import annotations

from array import array
from contextlib import suppress
from struct import Struct
from struct import error as StructError

import numpy as np
import numpy.typing as npt

from quantcli.checkpoint import gguf_layout as layout
from quantcli.checkpoint.gguf_layout import GGUFError
from quantcli.checkpoint.positional import PositionalFile

I64 = npt.NDArray[np.int64]

_U32 = Struct("<I")
_U64 = Struct("<Q")
_FIRST_READ_NBYTES = 1 << 20
_WINDOW_NBYTES = 1 << 16  # its temporaries stay in the second-level cache
_RUN_STRINGS = 1024  # a window that shows fewer is slower than following them in Python
_NONE = np.empty(0, np.int64)


class Cursor:
    """A bounds-checked walk through the head of a file, which is read as far as needed."""

    def __init__(self, file: PositionalFile) -> None:
        """Start at the first byte."""
        self.file = file
        self.data = b""
        self.pos = 0
        self.n_strings = 0

    @property
    def left(self) -> int:
        """Bytes of the file from here on."""
        return self.file.nbytes - self.pos

    def error(self, what: str, got: object, allowed: str, at: int | None) -> GGUFError:
        """Return the error for a bad value at byte `at`."""
        return GGUFError(self.file.path, what, got, allowed, at)

    def take(self, nbytes: int, what: str) -> int:
        """Step over `nbytes` bytes, which are then in `data`, and return where they start."""
        at = self.pos
        self.fetch(at + nbytes, what)
        self.pos = at + nbytes
        return at

    def fetch(self, stop: int, what: str) -> None:
        """Read on until `data` reaches byte `stop` of the file."""
        if stop <= len(self.data):
            return
        if stop > self.file.nbytes:
            allowed = f"at least {stop} for {what}: the download is incomplete or the file damaged"
            raise self.error("the size in bytes", self.file.nbytes, allowed, None)
        if stop > layout.MAX_METADATA_NBYTES:
            allowed = f"within the first {layout.MAX_METADATA_NBYTES} bytes"
            raise self.error(f"the end of {what}", f"at byte {stop}", allowed, self.pos)
        want = max(stop, 2 * len(self.data), _FIRST_READ_NBYTES)
        want = min(want, self.file.nbytes, layout.MAX_METADATA_NBYTES)
        self.data += self.file.read(want - len(self.data), len(self.data))

    def u32(self, what: str) -> int:
        """Read a u32."""
        at = self.take(4, what)
        return int(_U32.unpack_from(self.data, at)[0])

    def u64(self, what: str) -> int:
        """Read a u64."""
        at = self.take(8, what)
        return int(_U64.unpack_from(self.data, at)[0])

    def count(self, what: str, limit: int, item_nbytes: int = 1) -> int:
        """Read a u64 that counts things of at least `item_nbytes` bytes each, which follow."""
        at = self.pos
        n = self.u64(what)
        if n * item_nbytes > self.left:
            allowed = f"at most {self.left // item_nbytes}, as {self.left} bytes are left"
            raise self.error(what, n, allowed, at)
        if n > limit:
            raise self.error(what, n, f"at most {limit}", at)
        return n

    def bytes(self, what: str, limit: int) -> bytes:
        """Read a string's bytes, led by their number."""
        n = self.count(f"the length of {what}", limit)
        at = self.take(n, what)
        return self.data[at : at + n]

    def strings(self, n: int, what: str) -> I64:
        """Step over `n` strings and return i64 (n + 1): where each one's length starts, the end.

        Lengths are a chain: where one lies follows from the one before. Guessing the chain of a
        whole window and checking it at once takes 6 ms for Gemma's 262,144 tokens; following it
        in Python, as is done where the guess fails, takes 30 ms.
        """
        parts: list[I64] = []
        n_read = 0
        while n_read < n:
            starts = self._guess_chain(n - n_read)
            if starts.size < _RUN_STRINGS:
                starts = self._follow_chain(min(n - n_read, _RUN_STRINGS), what)
            last = int(starts[-1])
            n_read += starts.size
            parts.append(starts)
            self.pos = last
            self.count(f"the length of string {n_read - 1} of {what}", layout.MAX_STRING_NBYTES)
            self.pos = last + 8 + int(_U64.unpack_from(self.data, last)[0])
        self.fetch(self.pos, f"the last string of {what}")
        return np.concatenate([*parts, np.array([self.pos], np.int64)])

    def _guess_chain(self, n: int) -> I64:
        """Return where up to `n` strings start from here on, as far as a window shows surely.

        A length below 256 is a byte followed by seven zeros. Such places are the chain exactly if
        the first is here and each next one is where the one before says.
        """
        stop = min(self.pos + _WINDOW_NBYTES, self.file.nbytes, layout.MAX_METADATA_NBYTES)
        if n < _RUN_STRINGS or stop <= self.pos:
            return _NONE
        self.fetch(stop, "strings")
        window = np.frombuffer(self.data, np.uint8, stop - self.pos, self.pos)
        zero = window == 0
        two = zero[:-1] & zero[1:]
        four = two[:-2] & two[2:]
        seven = four[:-3] & four[3:]
        starts = np.flatnonzero(seven[1:])[:n]
        if not starts.size or starts[0]:
            return _NONE
        follows = starts[:-1] + 8 + window[starts[:-1]] == starts[1:]
        n_sure = starts.size if follows.all() else int(follows.argmin()) + 1
        return starts[:n_sure].astype(np.int64) + self.pos

    def _follow_chain(self, n: int, what: str) -> I64:
        """Return where the next `n` strings start, or fewer if one ends past the file."""
        starts = array("q")
        unpack = _U64.unpack_from
        pos = self.pos
        while len(starts) < n and pos <= self.file.nbytes:
            self.fetch(pos + 8, f"the strings of {what}")
            data = self.data
            with suppress(StructError, OverflowError):  # past what was read so far
                for _ in range(n - len(starts)):
                    (length,) = unpack(data, pos)
                    starts.append(pos)
                    pos += 8 + length
        return np.array(starts, np.int64)
