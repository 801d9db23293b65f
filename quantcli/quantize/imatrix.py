"""Importance matrices: the sum of squares of each input of each matrix, as llama.cpp keeps them.

A GGUF file with, for each matrix, `<name>.in_sum2` f32 (n_in,) and `<name>.counts` f32 (1,), and
for a stack of experts both with a row for each. Older files, `.dat`, are a list of
means times a number of calls. Source: llama.cpp, tools/imatrix and common/imatrix-loader.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from struct import Struct

import numpy as np
import numpy.typing as npt

from quantcli import formats
from quantcli.checkpoint.gguf_layout import MAGIC
from quantcli.checkpoint.gguf_read import RawTensor, read_head
from quantcli.checkpoint.gguf_write import TensorSpec, WriteValue, write_gguf
from quantcli.checkpoint.metadata import StringArray
from quantcli.checkpoint.positional import PositionalFile
from quantcli.errors import CheckpointError, ShapeError
from quantcli.formats import F32
from quantcli.qtensor import U8
from quantcli.quantize import Statistics

I64 = npt.NDArray[np.int64]

DATASETS, CHUNK_COUNT, CHUNK_SIZE = "imatrix.datasets", "imatrix.chunk_count", "imatrix.chunk_size"
_SUMS, _COUNTS = ".in_sum2", ".counts"
_LEGACY_CHUNK = 512  # tokens a call of older files, which do not say
_MAX_NBYTES = 1 << 32
_MAX_NAME_NBYTES = 64 << 10
_I32 = Struct("<i")


@dataclass(frozen=True, slots=True)
class Entry:
    """What is known about the input of one matrix, or of each of a stack of experts.

    sums    f32 (n_matrices, n_in)   sum of x_j ** 2
    counts  i64 (n_matrices,)        rows that were added up
    """

    sums: F32
    counts: I64

    @property
    def means(self) -> F32:
        """Mean of x_j ** 2, f32 (n_matrices, n_in); ones for a matrix that saw no row."""
        counts = self.counts[:, None]
        means = np.where(counts > 0, self.sums / np.maximum(counts, 1), np.float32(1))
        return means.astype(np.float32)

    @property
    def n_unseen(self) -> int:
        """Matrices that saw no row."""
        return int((self.counts == 0).sum())


@dataclass(frozen=True, slots=True)
class Imatrix:
    """All entries of a file, and what they were made of.

    datasets  names of the texts
    n_chunks, chunk_size   how many chunks of how many tokens; size 0 where a file does not say
    """

    entries: dict[str, Entry] = field(default_factory=dict)
    datasets: tuple[str, ...] = ()
    n_chunks: int = 0
    chunk_size: int = 0

    def statistics(self) -> dict[str, Statistics]:
        """Return what a quantizer needs, by matrix or stack of experts."""
        known = {}
        for name, entry in self.entries.items():
            counts = tuple(entry.counts.tolist())
            if len(counts) == 1:
                known[name] = Statistics(entry.means[0], counts[0])
            else:
                known[name] = Statistics(entry.means, sum(counts), counts=counts)
        return known

    def unseen(self) -> dict[str, tuple[int, int]]:
        """Return, of the matrices that have experts without any row, how many and of how many."""
        return {
            name: (entry.n_unseen, len(entry.counts))
            for name, entry in self.entries.items()
            if entry.n_unseen
        }

    def check(self, shapes: Mapping[str, tuple[int, ...]], path: Path) -> tuple[str, ...]:
        """Return the matrices of a model that have no entry.

        shapes  of the model's matrices, by name

        Raises ShapeError for an entry that does not fit its matrix.
        """
        for name, shape in shapes.items():
            entry = self.entries.get(name)
            if entry is not None and entry.sums.shape[1] != shape[-1]:
                raise ShapeError(
                    f"{path}: {name} has {entry.sums.shape[1]} inputs, and the model's "
                    f"{shape[-1]}; it is another model's. Make one with 'quantcli imatrix'."
                )
        return tuple(name for name in shapes if name not in self.entries)


def read_imatrix(path: Path) -> Imatrix:
    """Read a file of either kind; raises CheckpointError for one that is neither or is damaged."""
    with PositionalFile(path) as file:
        if file.nbytes > _MAX_NBYTES:
            raise CheckpointError(
                f"{path}: {file.nbytes} bytes are too many for an importance matrix; name one."
            )
        if file.nbytes >= len(MAGIC) and file.read(len(MAGIC), 0) == MAGIC:
            return _read_gguf(file)
        return _read_legacy(path, file.read(file.nbytes, 0))


def write_imatrix(path: Path, imatrix: Imatrix, *, force: bool = False) -> None:
    """Write a GGUF file with the layout and the order of llama-imatrix.

    Raises as `write_gguf`.
    """
    metadata: dict[str, WriteValue] = {
        "general.type": "imatrix",
        DATASETS: list(imatrix.datasets),
        CHUNK_COUNT: np.uint32(imatrix.n_chunks),
        CHUNK_SIZE: np.uint32(imatrix.chunk_size),
    }
    arrays: dict[str, F32] = {}
    for name, entry in sorted(imatrix.entries.items()):
        sums, counts = entry.sums.astype("<f4"), entry.counts[:, None].astype("<f4")
        is_one = len(counts) == 1  # then it has one axis, as ggml drops those of 1
        arrays[name + _SUMS] = sums[0] if is_one else sums
        arrays[name + _COUNTS] = counts[0] if is_one else counts
    f32 = formats.get("f32")
    specs = [TensorSpec(name, array.shape, f32) for name, array in arrays.items()]

    def read(spec: TensorSpec) -> Iterable[U8]:
        yield arrays[spec.name].reshape(-1).view(np.uint8)

    write_gguf(path, metadata, specs, read, force=force)


def merge(parts: Sequence[Imatrix]) -> Imatrix:
    """Return the sum of several, as if all texts had been one.

    Raises ShapeError if they are of different models.
    """
    entries: dict[str, Entry] = {}
    for name in dict.fromkeys(name for part in parts for name in part.entries):
        found = [part.entries[name] for part in parts if name in part.entries]
        if len({entry.sums.shape for entry in found}) > 1:
            shapes = ", ".join(str(entry.sums.shape) for entry in found)
            raise ShapeError(f"{name} has shapes {shapes}; merge files of one model.")
        sums = np.stack([entry.sums for entry in found]).sum(axis=0, dtype=np.float64)
        counts = np.stack([entry.counts for entry in found]).sum(axis=0)
        entries[name] = Entry(np.float32(sums), counts)  # type: ignore[arg-type]
    return Imatrix(
        entries,
        tuple(name for part in parts for name in part.datasets),
        sum(part.n_chunks for part in parts),
        max((part.chunk_size for part in parts), default=0),
    )


def _read_gguf(file: PositionalFile) -> Imatrix:
    head = read_head(file)
    kind = head.metadata.get("general.type")
    if kind != "imatrix":
        raise CheckpointError(
            f"{file.path}: is no importance matrix (general.type is {kind!r}); "
            "make one with 'quantcli imatrix'."
        )
    tensors = {tensor.name: tensor for tensor in head.tensors}
    entries = {}
    for name in (t.removesuffix(_SUMS) for t in tensors if t.endswith(_SUMS)):
        if name + _COUNTS not in tensors:
            raise CheckpointError(f"{file.path}: {name} has sums but no counts; make it anew.")
        sums = _array(file, tensors[name + _SUMS])
        counts = _array(file, tensors[name + _COUNTS])
        entries[name] = _entry(file.path, name, sums, counts.reshape(-1))
    if not entries:
        raise CheckpointError(f"{file.path}: has no entries; make it anew.")
    datasets = head.metadata.get(DATASETS)
    return Imatrix(
        entries,
        tuple(datasets) if isinstance(datasets, StringArray) else (),
        _count(head.metadata.get(CHUNK_COUNT)),
        _count(head.metadata.get(CHUNK_SIZE)),
    )


def _array(file: PositionalFile, tensor: RawTensor) -> F32:
    """Return a tensor's values, its contiguous axis last: f32 (n, tensor.dims[0])."""
    f32 = formats.get("f32")
    if tensor.type_id != f32.ggml_id:
        raise CheckpointError(f"{file.path}: {tensor.name} is not F32; make it anew.")
    data = np.frombuffer(file.read(tensor.nbytes, tensor.offset), "<f4")
    return data.astype(np.float32).reshape(-1, tensor.dims[0])


def _count(value: object) -> int:
    return int(value) if isinstance(value, int | np.integer) else 0


def _entry(path: Path, name: str, sums: F32, counts: F32) -> Entry:
    """Return an entry after checking that its numbers can be sums of squares and counts."""
    if len(counts) not in (1, len(sums)):
        raise CheckpointError(f"{path}: {name} has {len(sums)} rows and {len(counts)} counts.")
    for what, values in (("sums", sums), ("counts", counts)):
        if not np.isfinite(values).all() or (values < 0).any():
            bad = values[~(values >= 0) | ~np.isfinite(values)].flat[0]
            raise CheckpointError(
                f"{path}: the {what} of {name} hold {bad:g}; make it anew with 'quantcli imatrix'."
            )
    whole = np.broadcast_to(counts, (len(sums),)) if len(counts) == 1 else counts
    return Entry(sums, whole.astype(np.int64))


def _read_legacy(path: Path, data: bytes) -> Imatrix:
    """Read a `.dat` file: entries, then perhaps the number of chunks and the text's name.

        i32 n_entries, then for each: i32 length, name, i32 n_calls, i32 n_in, f32 (n_in)
        i32 n_chunks; i32 length, name of the text

    A value is mean * n_calls, so that of the tokens of a call nothing is known.
    """
    reader = _Legacy(path, data)
    n_entries = reader.count("the number of entries")
    entries = {}
    for _ in range(n_entries):
        name = reader.text()
        n_calls = reader.count(f"the calls of {name}")
        n_in = reader.count(f"the inputs of {name}")
        with np.errstate(over="ignore", invalid="ignore"):  # what is wrong is found below
            values = reader.floats(n_in) * np.float32(_LEGACY_CHUNK)
        counts = np.array([n_calls * _LEGACY_CHUNK], np.float32)
        entries[name] = _entry(path, name, values[None, :], counts)
    n_chunks = reader.count("the number of chunks", least=0) if reader.is_more else 0
    datasets = (reader.text(),) if reader.is_more else ()
    return Imatrix(entries, tuple(filter(None, datasets)), n_chunks, 0)


class _Legacy:
    """Reads the numbers of a `.dat` file one after the other, none past its end."""

    def __init__(self, path: Path, data: bytes) -> None:
        self._path = path
        self._data = data
        self._at = 0

    @property
    def is_more(self) -> bool:
        return self._at < len(self._data)

    def count(self, what: str, least: int = 1) -> int:
        value: int = _I32.unpack(self._take(4))[0]
        if not least <= value <= len(self._data):
            raise CheckpointError(
                f"{self._path}: is no importance matrix: {what} would be {value}. Name a file "
                "made by llama-imatrix or 'quantcli imatrix'."
            )
        return value

    def text(self) -> str:
        n = _I32.unpack(self._take(4))[0]
        if not 0 <= n <= _MAX_NAME_NBYTES:
            raise CheckpointError(f"{self._path}: a name would be {n} bytes long; make it anew.")
        return self._take(n).decode("utf-8", "replace")

    def floats(self, n: int) -> F32:
        return np.frombuffer(self._take(4 * n), "<f4").astype(np.float32)

    def _take(self, n: int) -> bytes:
        if self._at + n > len(self._data):
            raise CheckpointError(
                f"{self._path}: ends in the middle of an importance matrix; fetch or make it anew."
            )
        self._at += n
        return self._data[self._at - n : self._at]
