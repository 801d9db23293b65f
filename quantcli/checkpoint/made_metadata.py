"""Metadata of a model that is no GGUF file, as if it had been read from one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from quantcli.checkpoint import gguf_layout as layout
from quantcli.checkpoint.gguf_write import Item, WriteValue, array_of, array_type, scalar_of
from quantcli.checkpoint.metadata import LENGTH_NBYTES, Array, Entry, Metadata, StringArray, Value
from quantcli.errors import UnsupportedModel


def made_metadata(path: Path, keys: Mapping[str, WriteValue]) -> Metadata:
    """Return metadata whose values and types are those that `write_gguf` would write.

    path   of the model, for messages

    Raises UnsupportedModel if a GGUF file of these keys would be larger than our reader allows.
    """
    data = bytearray()
    entries: dict[str, Entry] = {}
    for key, value in keys.items():
        if isinstance(value, str):
            entries[key] = Entry(layout.STRING, 0, value)
        elif isinstance(value, bool | int | float | np.generic):
            number = scalar_of(value)
            entries[key] = Entry(array_type(number.dtype), 0, _python(number))
        else:
            entries[key] = Entry(layout.ARRAY, len(data), _append(data, value))
    if len(data) > layout.MAX_METADATA_NBYTES:
        raise UnsupportedModel(
            f"{path}: its vocabulary takes {len(data)} bytes; the most is "
            f"{layout.MAX_METADATA_NBYTES}."
        )
    return Metadata(path, bytes(data), entries)


def _append(
    data: bytearray, value: Sequence[Item] | StringArray | npt.NDArray[np.generic]
) -> Array:
    """Append an array's items as a GGUF file holds them."""
    if isinstance(value, np.ndarray):
        data += np.ascontiguousarray(value, value.dtype.newbyteorder("<")).tobytes()
        return Array(array_type(value.dtype), value.size)
    if not (len(value) and isinstance(value[0], str)):
        return _append(data, array_of(value))
    encoded = [str(text).encode() for text in value]
    lengths = np.fromiter(map(len, encoded), "<u8", len(encoded))
    stops = np.cumsum(lengths.astype(np.int64) + LENGTH_NBYTES) + len(data)
    bounds = np.concatenate([np.array([len(data)], np.int64), stops])
    heads = lengths.tobytes()
    data += b"".join(
        piece for i, text in enumerate(encoded) for piece in (heads[8 * i : 8 * i + 8], text)
    )
    return Array(layout.STRING, len(encoded), bounds)


def _python(number: np.generic) -> Value:
    return number.item()  # type: ignore[no-any-return]
