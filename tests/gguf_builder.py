"""GGUF files put together byte by byte: good ones, and bad ones of every kind.

A good file: `GGUF([key("general.architecture", "llama")], [Tensor("w", (32,))]).build()`. Each
field can be given a wrong value, which is then written as it is.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from quantcli.checkpoint.gguf_layout import (
    ARRAY,
    BOOL,
    F32,
    F64,
    I32,
    I64,
    SCALARS,
    STRING,
    TENSOR_TYPES,
    U32,
)

Plain = bool | int | float | str | bytes
_MASK = (1 << 64) - 1


def u32(value: int) -> bytes:
    """Return a u32, whatever does not fit cut off."""
    return struct.pack("<I", value & 0xFFFFFFFF)


def u64(value: int) -> bytes:
    """Return a u64, whatever does not fit cut off."""
    return struct.pack("<Q", value & _MASK)


def text(value: str | bytes, length: int | None = None) -> bytes:
    """Return a string led by its length, or by another number."""
    raw = value.encode() if isinstance(value, str) else value
    return u64(len(raw) if length is None else length) + raw


def item(type_id: int, value: Plain) -> bytes:
    """Return one number or string."""
    if type_id == STRING:
        assert isinstance(value, str | bytes)
        return text(value)
    if isinstance(value, float) and type_id not in (F32, F64):
        value = int(value) if math.isfinite(value) else 0
    code = SCALARS[type_id].code
    if isinstance(value, int) and type_id not in (F32, F64):
        return struct.pack("<Q", value & _MASK)[: code.size]
    return code.pack(value)


@dataclass
class Key:
    """A key and its value.

    item     type of an array's items
    n_items  written in place of an array's length
    length   written in place of the name's length
    raw      written in place of the value, its type included
    """

    name: str | bytes
    type_id: int
    value: Plain | Sequence[Plain] = 0
    item: int | None = None
    n_items: int | None = None
    length: int | None = None
    raw: bytes | None = None

    def build(self) -> bytes:
        """Return its bytes."""
        return text(self.name, self.length) + (self._value() if self.raw is None else self.raw)

    def _value(self) -> bytes:
        if self.type_id != ARRAY:
            assert isinstance(self.value, Plain)
            return u32(self.type_id) + item(self.type_id, self.value)
        assert not isinstance(self.value, bool | int | float)
        assert self.item is not None
        n = len(self.value) if self.n_items is None else self.n_items
        items = b"".join(item(self.item, v) for v in self.value)
        return u32(ARRAY) + u32(self.item) + u64(n) + items


def key(name: str, value: Plain | Sequence[Plain], type_id: int | None = None) -> Key:
    """Return a key; the type follows from the value where it is not given.

    Integers are u32 alone and i32 in arrays; floats are f32; `type_id` of a list is its items'.
    """
    if isinstance(value, str | bytes | bool | int | float):
        return Key(name, _type_of(value, U32) if type_id is None else type_id, value)
    of = _type_of(value[0], I32) if type_id is None else type_id
    return Key(name, ARRAY, list(value), of)


def _type_of(value: Plain, integer: int) -> int:
    if isinstance(value, bool):
        return BOOL
    if isinstance(value, int):
        return integer if abs(value) < 1 << 31 else I64
    return F32 if isinstance(value, float) else STRING


@dataclass
class Tensor:
    """A tensor.

    dims    in the file's order: the contiguous axis first
    data    its bytes; zeros of the right number if None
    offset  written in place of the one it has
    n_dims  written in place of the number of dims
    """

    name: str | bytes
    dims: tuple[int, ...]
    type_id: int = 0
    data: bytes | None = None
    offset: int | None = None
    n_dims: int | None = None

    def payload(self) -> bytes:
        """Return its bytes."""
        if self.data is not None:
            return self.data
        kind = TENSOR_TYPES.get(self.type_id)
        if kind is None or not all(0 < d < 1 << 20 for d in self.dims):
            return b""
        return bytes(int(np.prod(self.dims)) // kind.weights_per_block * kind.block_nbytes)

    def row(self, offset: int) -> bytes:
        """Return its row of the tensor table."""
        n_dims = len(self.dims) if self.n_dims is None else self.n_dims
        dims = b"".join(map(u64, self.dims))
        offset = offset if self.offset is None else self.offset
        return text(self.name) + u32(n_dims) + dims + u32(self.type_id) + u64(offset)


@dataclass
class GGUF:
    """A file.

    n_keys, n_tensors  written in place of the numbers of keys and tensors
    alignment          of the data; says nothing in the file, for that add the key
    tail               bytes after the data
    """

    keys: list[Key] = field(default_factory=list)
    tensors: list[Tensor] = field(default_factory=list)
    version: int = 3
    magic: bytes = b"GGUF"
    n_keys: int | None = None
    n_tensors: int | None = None
    alignment: int = 32
    tail: bytes = b""

    def head(self) -> bytes:
        """Return all but the data."""
        n_keys = len(self.keys) if self.n_keys is None else self.n_keys
        n_tensors = len(self.tensors) if self.n_tensors is None else self.n_tensors
        parts = [self.magic, u32(self.version), u64(n_tensors), u64(n_keys)]
        parts += [entry.build() for entry in self.keys]
        offset = 0
        for tensor in self.tensors:
            parts.append(tensor.row(offset))
            offset += self._padded(len(tensor.payload()))
        return b"".join(parts)

    def build(self) -> bytes:
        """Return the file."""
        parts = [self._pad(self.head())]
        parts += [self._pad(tensor.payload()) for tensor in self.tensors]
        return b"".join(parts) + self.tail

    def _padded(self, nbytes: int) -> int:
        return -(-nbytes // self.alignment) * self.alignment

    def _pad(self, data: bytes) -> bytes:
        return data + bytes(self._padded(len(data)) - len(data))
