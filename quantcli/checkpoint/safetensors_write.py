"""Write a model's safetensors files: sizes are known beforehand, tensors come in any order.

A file holds wide items before narrow ones, as the format's own library writes them, so that each
tensor lies aligned. Files of a large model are filled in the order of its tensors.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import BinaryIO

from quantcli.checkpoint.home import flush
from quantcli.checkpoint.safetensors import INDEX, ITEM_NBYTES, SINGLE
from quantcli.qtensor import U8

SHARD_NBYTES = 5_000_000_000  # what other programs split at
_ALIGNMENT = 8


@dataclass(frozen=True, slots=True)
class OutTensor:
    """A tensor to be written; `dtype` as the format spells it."""

    name: str
    dtype: str
    shape: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        """Bytes of its items."""
        return prod(self.shape) * ITEM_NBYTES[self.dtype]


def shards_of(
    tensors: Sequence[OutTensor], shard_nbytes: int = SHARD_NBYTES
) -> dict[str, list[OutTensor]]:
    """Return which tensors go to which file, by file name; a file has at least one tensor."""
    groups: list[list[OutTensor]] = []
    room = 0
    for tensor in tensors:
        if not groups or tensor.nbytes > room:
            groups.append([])
            room = shard_nbytes
        groups[-1].append(tensor)
        room -= tensor.nbytes
    if len(groups) == 1:
        return {SINGLE: groups[0]}
    n = len(groups)
    return {f"model-{i:05d}-of-{n:05d}.safetensors": g for i, g in enumerate(groups, 1)}


def nbytes_of(tensors: Sequence[OutTensor]) -> int:
    """Return about how many bytes files and index take."""
    return sum(tensor.nbytes + 400 for tensor in tensors)


class SafetensorsWriter:
    """The weight files of a folder while they are written.

    The folder is a draft: whatever goes wrong, its owner removes it.
    """

    def __init__(
        self, folder: Path, tensors: Sequence[OutTensor], shard_nbytes: int = SHARD_NBYTES
    ) -> None:
        """Write the headers of all files."""
        self._folder = folder
        self._shards = shards_of(tensors, shard_nbytes)
        self._places: dict[str, tuple[OutTensor, str, int]] = {}
        self._missing = {tensor.name for tensor in tensors}
        assert len(self._missing) == len(tensors), "two tensors have one name"
        self._files: dict[str, BinaryIO] = {}
        for file_name, group in self._shards.items():
            self._files[file_name] = (folder / file_name).open("xb")
            head = self._place(file_name, group)
            self._files[file_name].write(head)

    def _place(self, file_name: str, group: list[OutTensor]) -> bytes:
        """Give each tensor its place in a file and return the file's header."""
        header: dict[str, object] = {"__metadata__": {"format": "pt"}}
        offset = 0
        starts = {}
        for tensor in sorted(group, key=lambda t: (-ITEM_NBYTES[t.dtype], t.name)):
            stop = offset + tensor.nbytes
            header[tensor.name] = {
                "dtype": tensor.dtype,
                "shape": list(tensor.shape),
                "data_offsets": [offset, stop],
            }
            starts[tensor.name] = (tensor, offset)
            offset = stop
        raw = json.dumps(header, separators=(",", ":")).encode()
        raw += b" " * (-len(raw) % _ALIGNMENT)
        head = len(raw).to_bytes(8, "little") + raw
        for name, (tensor, start) in starts.items():
            self._places[name] = (tensor, file_name, len(head) + start)
        return head

    def write(self, name: str, slabs: Iterable[U8]) -> None:
        """Write a tensor: its bytes in order, u8 (n,) each."""
        tensor, file_name, offset = self._places[name]
        file = self._files[file_name]
        file.seek(offset)
        for slab in slabs:
            file.write(slab.data)
        assert file.tell() == offset + tensor.nbytes, (name, "slabs of another size")
        self._missing.remove(name)

    def finish(self) -> None:
        """Write the index, if there are several files, and see all of it to the disk."""
        assert not self._missing, sorted(self._missing)[:3]
        for file in self._files.values():
            flush(file)
            file.close()
        if len(self._shards) > 1:
            total = sum(tensor.nbytes for group in self._shards.values() for tensor in group)
            weight_map = {name: file for name, (_, file, _) in sorted(self._places.items())}
            index = {"metadata": {"total_size": total}, "weight_map": weight_map}
            with (self._folder / INDEX).open("w", encoding="utf-8") as index_file:
                json.dump(index, index_file, indent=2)
                flush(index_file)

    def close(self) -> None:
        """Close the files, whether they are finished or not."""
        for file in self._files.values():
            file.close()
