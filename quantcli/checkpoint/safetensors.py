"""Read safetensors files: the header checked size by size, the data by position.

    bytes 0..7      length of the header, u64
    header          JSON: name -> {dtype, shape, data_offsets: [start, stop)}
    data            offsets count from here

A model of several files has an index: `weight_map` says which file a tensor lies in.
Source: https://huggingface.co/docs/safetensors, "Format".
"""

from __future__ import annotations

import os
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import pairwise
from math import prod
from pathlib import Path

from quantcli.checkpoint.gguf_layout import quoted
from quantcli.checkpoint.json_file import MAX_NBYTES, parse_object, read_object, shown
from quantcli.checkpoint.positional import PositionalFile
from quantcli.errors import CheckpointError

INDEX = "model.safetensors.index.json"
SINGLE = "model.safetensors"

ITEM_NBYTES = {
    "BOOL": 1,
    "U8": 1,
    "I8": 1,
    "F8_E4M3": 1,
    "F8_E5M2": 1,
    "F8_E8M0": 1,
    "I16": 2,
    "U16": 2,
    "F16": 2,
    "BF16": 2,
    "I32": 4,
    "U32": 4,
    "F32": 4,
    "I64": 8,
    "U64": 8,
    "F64": 8,
}
_HEADER_LENGTH_NBYTES = 8
_MAX_HEADER_NBYTES = 2 * MAX_NBYTES  # 100,000 tensors; the format's own limit is 100 MB
_MAX_TENSORS = 1 << 18  # mixtures of experts come to 91,000
_MAX_DIMS = 8
_MAX_SHARDS = 512  # one open file each; the largest models come in about 200


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """A tensor as it lies in a safetensors file.

    dtype   as the format spells it, such as "BF16"
    shape   the last axis is contiguous
    file    index into the files
    offset  byte of that file where it starts; its nbytes are there, and no other tensor has them
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    file: int
    offset: int

    @property
    def nbytes(self) -> int:
        """Bytes of its items."""
        return prod(self.shape) * ITEM_NBYTES[self.dtype]


class SafetensorsFiles:
    """The open weight files of a folder.

    paths    in order
    tensors  by name
    """

    def __init__(self, files: tuple[PositionalFile, ...], tensors: dict[str, StoredTensor]) -> None:
        """Take over open files and what their headers say."""
        self.files = files
        self.paths = tuple(file.path for file in files)
        self.tensors = tensors

    def close(self) -> None:
        """Close the files. No read may be under way."""
        for file in self.files:
            file.close()

    def read_into(self, tensor: StoredTensor, buffer: memoryview, start: int = 0) -> None:
        """Fill `buffer` with a tensor's bytes from `start` on. Threads may read at once.

        Raises CheckpointError if the file was cut short since it was opened, or cannot be read.
        """
        assert 0 <= start <= start + len(buffer) <= tensor.nbytes, (tensor, start, len(buffer))
        self.files[tensor.file].read_into(buffer, tensor.offset + start)


def is_folder_of_safetensors(path: Path) -> bool:
    """Return whether a folder holds a model's safetensors files, going by names alone."""
    # Not Path.is_dir, which raises for names that the system finds too long.
    return os.path.isdir(path) and ((path / INDEX).is_file() or bool(_weight_files(path)))


def open_safetensors(folder: Path) -> SafetensorsFiles:
    """Open a folder's weights: those its index names, else model*.safetensors.

    Raises CheckpointError for a malformed header or index, a tensor that is missing or there
    twice, and a name in the index that leads out of the folder.
    """
    index = _read_index(folder)
    names = sorted(set(index.values())) if index else _weight_files(folder)
    if not names:
        raise CheckpointError(f"{folder}: holds no {SINGLE} and no {INDEX}; fetch the model again.")
    if len(names) > _MAX_SHARDS:
        raise CheckpointError(f"{folder}: has {len(names)} weight files; at most {_MAX_SHARDS}.")
    with ExitStack() as stack:
        files = tuple(stack.enter_context(_open_shard(folder, name)) for name in names)
        tensors: dict[str, StoredTensor] = {}
        for number, file in enumerate(files):
            for tensor in read_header(file, number):
                if tensor.name in tensors:
                    first = files[tensors[tensor.name].file].path.name
                    raise CheckpointError(
                        f"{file.path}: tensor {quoted(tensor.name)} is also in {first}; it must "
                        "be in one file only."
                    )
                tensors[tensor.name] = tensor
        if index:
            _require_indexed(folder, index, tensors, [file.path.name for file in files])
        stack.pop_all()  # whoever asked closes them now
    return SafetensorsFiles(files, tensors)


def read_header(file: PositionalFile, number: int = 0) -> list[StoredTensor]:
    """Return the tensors of one file, sorted by name as the format's own library lists them.

    number   index of the file, for the tensors

    Raises CheckpointError for whatever is wrong with the header.
    """
    if file.nbytes < _HEADER_LENGTH_NBYTES:
        raise _bad(file, f"is {file.nbytes} bytes long", "at least 8: the download is incomplete")
    nbytes = int.from_bytes(file.read(_HEADER_LENGTH_NBYTES, 0), "little")
    left = file.nbytes - _HEADER_LENGTH_NBYTES
    if nbytes > min(left, _MAX_HEADER_NBYTES):
        limit = min(left, _MAX_HEADER_NBYTES)
        raise _bad(file, f"says that its header is {nbytes} bytes long", f"at most {limit}")
    table = parse_object(file.read(nbytes, _HEADER_LENGTH_NBYTES), f"{file.path}: the header")
    table.pop("__metadata__", None)
    if len(table) > _MAX_TENSORS:
        raise _bad(file, f"lists {len(table)} tensors", f"at most {_MAX_TENSORS}")
    start = _HEADER_LENGTH_NBYTES + nbytes
    tensors = [_read_entry(file, number, name, entry, start) for name, entry in table.items()]
    _require_apart(file, tensors)
    return sorted(tensors, key=lambda tensor: tensor.name)


def _read_entry(
    file: PositionalFile, number: int, name: str, entry: object, data_start: int
) -> StoredTensor:
    """Check one row of the header; make its offset absolute."""
    what = f"{file.path}: tensor {quoted(name)}"
    if not isinstance(entry, dict):
        raise CheckpointError(f"{what} is described by {shown(entry)}; it must be an object.")
    dtype, shape, offsets = (
        entry.get("dtype"),
        _sizes(entry, "shape"),
        _sizes(entry, "data_offsets"),
    )
    if not isinstance(dtype, str) or dtype not in ITEM_NBYTES:
        known = ", ".join(ITEM_NBYTES)
        raise CheckpointError(f"{what} has dtype {shown(dtype)}; it must be one of {known}.")
    if shape is None or len(shape) > _MAX_DIMS:
        got = shown(entry.get("shape"))
        raise CheckpointError(f"{what} has shape {got}; it must be up to {_MAX_DIMS} sizes.")
    if offsets is None or len(offsets) != 2:
        got = shown(entry.get("data_offsets"))
        raise CheckpointError(f"{what} has data_offsets {got}; they must be a start and a stop.")
    start, stop = offsets
    tensor = StoredTensor(name, dtype, tuple(shape), number, data_start + start)
    if stop - start != tensor.nbytes:
        raise CheckpointError(
            f"{what} has {stop - start} bytes, but shape {list(shape)} in {dtype} takes "
            f"{tensor.nbytes}."
        )
    if data_start + stop > file.nbytes:
        raise CheckpointError(
            f"{what} ends at byte {data_start + stop}, but the file has {file.nbytes}: the "
            "download is incomplete; fetch it again."
        )
    return tensor


def _sizes(entry: dict[str, object], key: str) -> list[int] | None:
    """Return a list of whole numbers that an i64 can hold, or None if it is something else."""
    value = entry.get(key)
    if not isinstance(value, list):
        return None
    is_list_of_sizes = all(type(item) is int and 0 <= item < 1 << 63 for item in value)
    return value if is_list_of_sizes else None


def _require_apart(file: PositionalFile, tensors: list[StoredTensor]) -> None:
    """Refuse two tensors that share bytes."""
    by_offset = sorted((t for t in tensors if t.nbytes), key=lambda tensor: tensor.offset)
    for before, after in pairwise(by_offset):
        if after.offset < before.offset + before.nbytes:
            raise CheckpointError(
                f"{file.path}: tensors {quoted(before.name)} and {quoted(after.name)} share bytes; "
                "each must have its own."
            )


def _weight_files(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.glob("model*.safetensors"))


def _read_index(folder: Path) -> dict[str, str]:
    """Return which file each tensor lies in, by name; empty if there is no index."""
    path = folder / INDEX
    if not path.is_file():
        return {}
    weight_map = read_object(path).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise CheckpointError(
            f"{path}: weight_map is {shown(weight_map)}; it must name the file of each tensor."
        )
    for name, file in weight_map.items():
        if not isinstance(file, str) or not _is_plain_name(file):
            raise CheckpointError(
                f"{path}: tensor {quoted(name)} is said to lie in {shown(file)}; it must be the "
                "name of a .safetensors file in the same folder."
            )
    return weight_map


def _is_plain_name(name: str) -> bool:
    """Return whether a name stays in its folder on every platform."""
    is_plain = name.isprintable() and not set(name) & set('/\\:*?"<>|') and name[:1] != "."
    return is_plain and name.endswith(".safetensors")


def _open_shard(folder: Path, name: str) -> PositionalFile:
    path = folder / name
    if not path.exists():
        raise CheckpointError(
            f"{path}: no such file, but {INDEX} names it; all parts must be in one folder."
        )
    return PositionalFile(path)


def _require_indexed(
    folder: Path, index: dict[str, str], tensors: dict[str, StoredTensor], names: list[str]
) -> None:
    """Refuse files that hold other tensors than the index says."""
    for name, file in index.items():
        if name not in tensors or names[tensors[name].file] != file:
            raise CheckpointError(
                f"{folder / file}: has no tensor {quoted(name)}, but {INDEX} says so; the "
                "download is incomplete or of two versions."
            )
    extra = next((name for name in tensors if name not in index), None)
    if extra is not None:
        raise CheckpointError(
            f"{folder / names[tensors[extra].file]}: tensor {quoted(extra)} is not in {INDEX}; "
            "the download is of two versions."
        )


def _bad(file: PositionalFile, got: str, allowed: str) -> CheckpointError:
    return CheckpointError(f"{file.path}: {got}; a safetensors file's must be {allowed}.")
