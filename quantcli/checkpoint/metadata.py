"""A model's metadata: a mapping whose arrays are built from the file's bytes when asked for."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple, overload

import numpy as np
import numpy.typing as npt

from quantcli.checkpoint.gguf_layout import BOOL, SCALARS, STRING, GGUFError, quoted

I64 = npt.NDArray[np.int64]
LENGTH_NBYTES = 8  # each string is led by its length, u64


class StringArray(Sequence[str]):
    """An array of strings that stays in the file's bytes and is decoded on demand.

    Reading an element that is not UTF-8 raises GGUFError; `raw` returns its bytes instead.
    """

    def __init__(self, path: Path, key: str, data: bytes, bounds: I64) -> None:
        """Wrap the strings of one key.

        data    the head of the file
        bounds  i64 (n + 1)   where in `data` the length of each string starts, and the end
        """
        self._path = path
        self._key = key
        self._data = data
        self._bounds = bounds

    def __len__(self) -> int:
        return self._bounds.size - 1

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> list[str]: ...
    def __getitem__(self, index: int | slice) -> str | list[str]:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        return self._decode(index, self.raw(index))

    def __iter__(self) -> Iterator[str]:
        return iter(self.to_list())

    def __repr__(self) -> str:
        return f"<StringArray {self._key}: {len(self)} strings>"

    def raw(self, index: int) -> bytes:
        """Return the bytes of one string."""
        n = len(self)
        if not -n <= index < n:
            raise IndexError(f"string {index} of {n}")
        index %= n
        start, stop = self._bounds[index : index + 2].tolist()
        return self._data[start + LENGTH_NBYTES : stop]

    def encoded(self) -> bytes:
        """Return all strings as a GGUF file holds them: each led by its length, u64."""
        return self._data[int(self._bounds[0]) : int(self._bounds[-1])]

    def to_list(self) -> list[str]:
        """Return all strings; 262,144 take about 60 ms."""
        data, bounds = self._data, self._bounds.tolist()
        starts = (self._bounds[:-1] + LENGTH_NBYTES).tolist()
        try:
            return [
                data[start:stop].decode() for start, stop in zip(starts, bounds[1:], strict=True)
            ]
        except UnicodeDecodeError:
            return [self[index] for index in range(len(self))]  # raises, naming the string

    def _decode(self, index: int, raw: bytes) -> str:
        try:
            return raw.decode()
        except UnicodeDecodeError as error:
            what = f"string {index % len(self)} of key {quoted(self._key)}"
            offset = int(self._bounds[index % len(self)]) + LENGTH_NBYTES
            raise GGUFError(self._path, what, quoted(raw), "UTF-8", offset) from error


Value = bool | int | float | str | StringArray | npt.NDArray[np.generic]


class Array(NamedTuple):
    """An array, checked but not yet built.

    item    the type of its items
    n_items how many there are
    bounds  i64 (n_items + 1) where each string starts and the last ends, or None for numbers
    """

    item: int
    n_items: int
    bounds: I64 | None = None


class BadText(NamedTuple):
    """A string that is not UTF-8: an error only for those who read it."""

    raw: bytes


class Entry(NamedTuple):
    """The value of one key: its type in the file, the byte where it starts, and what is there."""

    type_id: int
    offset: int
    value: Value | Array | BadText


class Metadata(Mapping[str, Value]):
    """Keys and values of a file, in the file's order.

    Numbers, booleans and strings are Python's; arrays of numbers are read-only NumPy arrays of
    the file's own type, arrays of strings are StringArrays. Both are built once, when first read.
    Reading a string that is not UTF-8 raises GGUFError.
    """

    def __init__(self, path: Path, data: bytes, entries: Mapping[str, Entry]) -> None:
        """Wrap what was read: `data` is the head of the file, in which arrays lie."""
        self._path = path
        self._data = data
        self._entries = entries
        self._built: dict[str, Value] = {}

    def __getitem__(self, key: str) -> Value:
        entry = self._entries[key]
        value = entry.value
        if isinstance(value, BadText):
            what = f"the value of key {quoted(key)}"
            raise GGUFError(self._path, what, quoted(value.raw), "UTF-8", entry.offset)
        if isinstance(value, Array):
            if key not in self._built:
                self._built[key] = self._build(key, value, entry.offset)
            return self._built[key]
        return value

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, key: object) -> bool:
        return key in self._entries  # without building or decoding the value

    def __repr__(self) -> str:
        return f"<Metadata of {self._path}: {len(self)} keys>"

    def type_name(self, key: str) -> str:
        """Return a value's type in the file, such as "u32", "str" or, for an array, "[f32]"."""
        entry = self._entries[key]
        if isinstance(entry.value, Array):
            return f"[{_type_name(entry.value.item)}]"
        return _type_name(entry.type_id)

    def offset(self, key: str) -> int:
        """Return the byte of the file where a value starts; of an array, its first item."""
        return self._entries[key].offset

    def _build(self, key: str, array: Array, offset: int) -> Value:
        if array.bounds is not None:
            return StringArray(self._path, key, self._data, array.bounds)
        dtype = np.dtype(SCALARS[array.item].dtype)
        raw = np.frombuffer(self._data, dtype, array.n_items, offset)
        # A copy: in the file items lie at any address, and kernels want them aligned.
        items = raw.astype(np.bool_ if array.item == BOOL else dtype.newbyteorder("="))
        items.flags.writeable = False
        return items


def _type_name(type_id: int) -> str:
    return "str" if type_id == STRING else SCALARS[type_id].name
