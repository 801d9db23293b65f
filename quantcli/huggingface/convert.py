"""From a Hugging Face folder to a GGUF file in 16 or 32 bits or Q8_0, as llama.cpp converts.

Other types are quantizing's business, which chooses them tensor by tensor.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from quantcli import formats
from quantcli.arch.hugging_face import is_f32
from quantcli.checkpoint.gguf_write import (
    Advance,
    TensorSpec,
    WriteValue,
    encode_head,
    typed,
    write_gguf,
)
from quantcli.errors import UnknownName
from quantcli.formats import BlockFormat
from quantcli.huggingface.folder import FILE_TYPES, FolderCheckpoint, file_type, main_format
from quantcli.huggingface.rows import RowSource, decoded, n_rows, row_nbytes
from quantcli.qtensor import U8

TYPES = ("auto", *FILE_TYPES)
_SLAB_NBYTES = 4 << 20


@dataclass(frozen=True, slots=True)
class Converted:
    """What a conversion writes.

    type     f32, f16, bf16 or q8_0
    nbytes   size of the file
    """

    path: Path
    type: str
    metadata: dict[str, WriteValue]
    tensors: tuple[TensorSpec, ...]
    nbytes: int


def plan_conversion(folder: FolderCheckpoint, path: Path | None, type_name: str) -> Converted:
    """Return what a conversion would write, with the name of the folder if `path` is None.

    type_name   one of TYPES; "auto" is the folder's own 16-bit type, and f16 for one in 32 bits

    Raises UnknownName for another type.
    """
    if type_name not in TYPES:
        raise UnknownName("type", type_name, TYPES)
    own = main_format(folder.sources)
    chosen = type_name if type_name != "auto" else ("bf16" if own == "bf16" else "f16")
    tensors = tuple(
        TensorSpec(info.name, info.shape, _format(folder.sources[info.name], info.name, chosen))
        for info in folder.tensors.values()
    )
    metadata = typed(folder.metadata) | {"general.file_type": file_type(folder.sources, chosen)}
    nbytes = len(encode_head(metadata, tensors)) + sum(-(-t.nbytes // 32) * 32 for t in tensors)
    path = path or Path(f"{folder.folder.resolve().name}-{chosen.upper()}.gguf")
    return Converted(path, chosen, metadata, tensors, nbytes)


def convert(
    folder: FolderCheckpoint,
    plan: Converted,
    *,
    force: bool = False,
    progress: Advance | None = None,
) -> None:
    """Write the file; arguments and errors as `write_gguf`. Memory holds a few megabytes."""

    def read(spec: TensorSpec) -> Iterator[U8]:
        return _slabs(folder, spec)

    write_gguf(plan.path, plan.metadata, plan.tensors, read, force=force, progress=progress)


def _format(source: RowSource, name: str, chosen: str) -> BlockFormat:
    shape = source.shape
    if is_f32(name, shape):
        return formats.get("f32")
    if source.format.weights_per_block > 1:  # what comes in blocks stays in them
        return source.format
    block_format = formats.get(chosen)
    # Rows that are not whole blocks stay in 16 bits.
    return formats.get("f16") if shape[-1] % block_format.weights_per_block else block_format


def _slabs(folder: FolderCheckpoint, spec: TensorSpec) -> Iterator[U8]:
    source = folder.sources[spec.name]
    step = max(1, _SLAB_NBYTES // row_nbytes(source) // source.unit) * source.unit
    for start in range(0, n_rows(spec.shape), step):
        stop = min(start + step, n_rows(spec.shape))
        if source.format.name == spec.format.name:
            yield source.read(start, stop)
            continue
        weights = decoded(source, start, stop)
        assert spec.format.encode is not None, spec
        yield spec.format.encode(weights.reshape(-1, spec.format.weights_per_block)).view(np.uint8)
