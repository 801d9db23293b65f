"""Write GGUF files: the same arguments give the same bytes, and memory holds one slab at a time.

    header         magic, version, number of tensors, number of keys
    keys           in the mapping's order
    tensor table   in the list's order, offsets relative to the data
    data           each tensor padded to the alignment

Source: the GGUF specification, https://github.com/ggml-org/ggml/blob/master/docs/gguf.md.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path
from struct import Struct

import numpy as np
import numpy.typing as npt

from quantcli.checkpoint import gguf_layout as layout
from quantcli.checkpoint.drafts import file_draft
from quantcli.checkpoint.metadata import Metadata, StringArray
from quantcli.formats import BlockFormat
from quantcli.qtensor import U8

VERSION = 3
ALIGNMENT_KEY = "general.alignment"

Item = bool | int | float | str
WriteValue = Item | np.generic | Sequence[Item] | StringArray | npt.NDArray[np.generic]

_U32 = Struct("<I")
_U64 = Struct("<Q")
_TYPE_IDS = {
    np.dtype(scalar.dtype): type_id
    for type_id, scalar in layout.SCALARS.items()
    if type_id != layout.BOOL
}
_TYPE_IDS[np.dtype(np.bool_)] = layout.BOOL


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """A tensor to be written.

    name    the canonical (GGUF) tensor name
    shape   (n_out, n_in) for a matrix, (n,) for a vector; the last axis is contiguous
    format  its block format
    """

    name: str
    shape: tuple[int, ...]
    format: BlockFormat

    @property
    def nbytes(self) -> int:
        """Bytes of its blocks; raises ShapeError if a row is not whole blocks."""
        return prod(self.shape[:-1]) * self.format.row_nbytes(self.shape[-1])


Read = Callable[[TensorSpec], Iterable[U8]]
Advance = Callable[[int, int], None]  # receives bytes done, bytes in all


def write_gguf(
    path: Path,
    metadata: Mapping[str, WriteValue],
    tensors: Sequence[TensorSpec],
    read: Read,
    *,
    force: bool = False,
    progress: Advance | None = None,
) -> None:
    """Write a file, whole or not at all.

    metadata  keys in order; a Python int becomes u32 (i32 if negative, 64 bits if it must), a
              float f32, a list of ints i32, a list of floats f32; NumPy scalars and arrays keep
              their type, and a `Metadata` the types of its file
    read      tensor -> its bytes in order, u8 (n,) slabs of any size
    force     whether to replace a file that is there

    Raises UsageError if the path is taken, ResourceError if the disk is too small or fills up, and
    what `read` raises; then there is no file and no draft of it.
    """
    head = encode_head(metadata, tensors)
    pad_to = alignment(metadata)
    total = len(head) + sum(_padded(spec.nbytes, pad_to) for spec in tensors)
    with file_draft(path, force=force, nbytes=total) as file:
        file.write(head)
        done = len(head)
        for spec in tensors:
            for slab in read(spec):
                file.write(slab.data)
                done += slab.nbytes
                if progress is not None:
                    progress(done, total)
            done += file.write(bytes(padding(spec, pad_to)))
            assert file.tell() == done, (spec.name, "slabs of another size than the tensor")


def encode_head(metadata: Mapping[str, WriteValue], tensors: Sequence[TensorSpec]) -> bytes:
    """Return everything before the tensors' data, padding included.

    The table's offsets follow from the order: each tensor starts where the one before ends, padded.
    """
    pad_to = alignment(metadata)
    parts = [layout.MAGIC, _U32.pack(VERSION), _U64.pack(len(tensors)), _U64.pack(len(metadata))]
    values = typed(metadata) if isinstance(metadata, Metadata) else metadata
    parts += [_text(key) + encode_value(value) for key, value in values.items()]
    offset = 0
    for spec in tensors:
        dims = spec.shape[::-1]
        assert 0 < len(dims) <= layout.MAX_DIMS, spec
        assert len(spec.name.encode()) <= layout.MAX_NAME_NBYTES, spec
        parts += [_text(spec.name), _U32.pack(len(dims)), *map(_U64.pack, dims)]
        parts += [_U32.pack(spec.format.ggml_id), _U64.pack(offset)]
        offset += _padded(spec.nbytes, pad_to)
    head = b"".join(parts)
    return head + bytes(_padded(len(head), pad_to) - len(head))


def alignment(metadata: Mapping[str, WriteValue]) -> int:
    """Return what tensors' data is aligned to: the metadata's own key, else 32."""
    value = metadata.get(ALIGNMENT_KEY, layout.DEFAULT_ALIGNMENT)
    assert isinstance(value, int | np.integer), value
    return int(value)


def padding(spec: TensorSpec, pad_to: int) -> int:
    """Return how many zeros follow a tensor's data."""
    return _padded(spec.nbytes, pad_to) - spec.nbytes


def typed(metadata: Metadata) -> dict[str, WriteValue]:
    """Return the keys of a file with each number as a NumPy scalar of the file's own type.

    So that they can be changed, added to and written again without losing their types.
    """
    dtypes = {scalar.name: np.dtype(scalar.dtype) for scalar in layout.SCALARS.values()}
    values: dict[str, WriteValue] = {}
    for key, value in metadata.items():
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        values[key] = dtypes[metadata.type_name(key)].type(value) if is_number else value
    return values


def encode_value(value: WriteValue) -> bytes:
    """Return a value as it lies in a file: its type, then itself."""
    if isinstance(value, str):
        return _U32.pack(layout.STRING) + _text(value)
    if isinstance(value, StringArray):
        return _array_head(layout.STRING, len(value)) + value.encoded()
    if isinstance(value, np.ndarray):
        assert value.ndim == 1, value.shape
        type_id = array_type(value.dtype)
        data = np.ascontiguousarray(value, value.dtype.newbyteorder("<"))
        return _array_head(type_id, value.size) + data.tobytes()
    if isinstance(value, bool | int | float | np.generic):
        number = scalar_of(value)
        return (
            _U32.pack(array_type(number.dtype))
            + np.asarray(number, number.dtype.newbyteorder("<")).tobytes()
        )
    return _encode_list(value)


def _encode_list(items: Sequence[Item]) -> bytes:
    if len(items) and isinstance(items[0], str):
        return _array_head(layout.STRING, len(items)) + b"".join(map(_text, map(str, items)))
    return encode_value(array_of(items))


def array_of(items: Sequence[Item]) -> npt.NDArray[np.generic]:
    """Return a list of numbers in the type that files use for it: i32, f32 or bool."""
    assert len(items), "an empty list has no type; use an empty NumPy array"
    if isinstance(items[0], bool):
        return np.array(items, np.bool_)
    return np.array(items, np.float32 if any(isinstance(i, float) for i in items) else np.int32)


def scalar_of(value: bool | int | float | np.generic) -> np.generic:
    """Return a number in the type that files use for it; NumPy's stay as they are."""
    if isinstance(value, np.generic):
        return value
    if isinstance(value, bool):
        return np.bool_(value)
    if isinstance(value, float):
        return np.float32(value)
    if value < 0:
        return np.int32(value) if value >= -(1 << 31) else np.int64(value)
    return np.uint32(value) if value < 1 << 32 else np.uint64(value)


def array_type(dtype: np.dtype[np.generic]) -> int:
    """Return GGUF's number for a type of numbers."""
    type_id = _TYPE_IDS.get(dtype.newbyteorder("<"))
    assert type_id is not None, f"GGUF has no type for {dtype}"
    return type_id


def _array_head(item: int, n: int) -> bytes:
    return _U32.pack(layout.ARRAY) + _U32.pack(item) + _U64.pack(n)


def _text(text: str) -> bytes:
    raw = text.encode()
    return _U64.pack(len(raw)) + raw


def _padded(nbytes: int, pad_to: int) -> int:
    return -(-nbytes // pad_to) * pad_to
