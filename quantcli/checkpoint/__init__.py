"""Model files: open one, and get its metadata, its tensors' places and their bytes."""

from __future__ import annotations

import os
from dataclasses import dataclass
from math import prod
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Self

import numpy as np

from quantcli import catalog
from quantcli.checkpoint.gguf_layout import GGUFError
from quantcli.checkpoint.metadata import Metadata, StringArray, Value
from quantcli.checkpoint.positional import PositionalFile
from quantcli.errors import CheckpointError
from quantcli.formats import BlockFormat
from quantcli.qtensor import U8, QTensor

if TYPE_CHECKING:
    from quantcli.checkpoint.adapter import Adapter

__all__ = [
    "Checkpoint",
    "GGUFError",
    "Metadata",
    "StringArray",
    "TensorInfo",
    "Value",
    "open_checkpoint",
]


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """Where a tensor lies, and what it is.

    shape   (n_out, n_in) for a matrix, (n,) for a vector; the last axis is contiguous
    nbytes  bytes in the file; they are there, and no other tensor has them
    shard   index into the checkpoint's paths
    offset  byte of that file where the tensor starts
    """

    name: str
    shape: tuple[int, ...]
    format: BlockFormat
    nbytes: int
    shard: int
    offset: int


class Checkpoint:
    """An open model: everything about it has been checked but the weights themselves.

    paths     its files, in order
    metadata  keys and values
    tensors   by name, in the files' order
    notes     remarks on what is odd but harmless, one sentence each
    packed    tensors that are read as floats, but are integers where they lie: rounded before
    adapters  LoRA adapters whose tensors are among its own
    """

    packed: tuple[str, ...] = ()
    adapters: tuple[Adapter, ...] = ()

    def __init__(
        self,
        files: tuple[PositionalFile, ...],
        metadata: Metadata,
        tensors: dict[str, TensorInfo],
        notes: tuple[str, ...] = (),
    ) -> None:
        """Take over open files and what was read from them."""
        self._files = files
        self.paths = tuple(file.path for file in files)
        self.metadata = metadata
        self.tensors = tensors
        self.notes = notes

    def __enter__(self) -> Self:
        """Return itself; leaving the block closes the files."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<Checkpoint {self.paths[0]}: {len(self.tensors)} tensors>"

    @property
    def architecture(self) -> str:
        """The name of the model's architecture, as the file spells it."""
        return str(self.metadata["general.architecture"])

    @property
    def n_params(self) -> int:
        """Weights in all tensors."""
        return sum(prod(info.shape) for info in self.tensors.values())

    @property
    def nbytes(self) -> int:
        """Bytes of all tensors."""
        return sum(info.nbytes for info in self.tensors.values())

    def close(self) -> None:
        """Close the files; metadata stays readable. No read may be under way."""
        for file in self._files:
            file.close()

    def read_into(self, name: str, buffer: U8, start: int = 0) -> None:
        """Fill a buffer with a tensor's bytes from `start` on. Threads may read at once.

        buffer  u8 (n,)   C-contiguous; start + n <= the tensor's nbytes

        Raises CheckpointError if there is no such tensor, or the file was cut short since it was
        opened, or cannot be read.
        """
        info = self._info(name)
        assert buffer.flags.c_contiguous, name
        assert 0 <= start <= start + buffer.nbytes <= info.nbytes, (name, start, buffer.nbytes)
        if buffer.nbytes:
            view = buffer.data.cast("B")
            self._files[info.shard].read_into(view, info.offset + start)

    def tensor(self, name: str) -> QTensor:
        """Return a tensor with a fresh copy of its bytes; raises as `read_into`."""
        info = self._info(name)
        data = np.empty(info.nbytes, np.uint8)
        self.read_into(name, data)
        return QTensor(name, info.shape, info.format, data)

    def _info(self, name: str) -> TensorInfo:
        info = self.tensors.get(name)
        if info is None:
            raise CheckpointError(f"{self.paths[0]}: has no tensor {name}; it is not complete.")
        return info


def open_checkpoint(path: str | Path) -> Checkpoint:
    """Open a model: a GGUF file, the first of several that make one up, or a Hugging Face folder.

    Only heads and small files are read. Raises CheckpointError (a GGUFError for a GGUF file) for
    what is malformed, missing or cannot be read, and UnsupportedModel for what is not a language
    model or holds tensors of a type that quantcli does not decode.
    """
    from quantcli.checkpoint.adapter import PEFT_CONFIG
    from quantcli.checkpoint.gguf_split import open_gguf, refuse_adapter
    from quantcli.checkpoint.safetensors import is_folder_of_safetensors

    path = Path(path)
    if is_folder_of_safetensors(path):
        # Joins the files to an architecture and a vocabulary, and so stands in a layer above.
        checkpoint: Checkpoint = catalog.load("container", "folder").open_model(path)
        return checkpoint
    if os.path.isfile(path / PEFT_CONFIG):  # raises for no name, however long
        raise refuse_adapter(path)
    return open_gguf(path)
