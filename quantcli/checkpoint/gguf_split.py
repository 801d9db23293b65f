"""Make a checkpoint of a GGUF file, or of all the files that a model is split into."""

from __future__ import annotations

import re
from contextlib import ExitStack
from functools import cache
from pathlib import Path

from quantcli import catalog
from quantcli.checkpoint import Checkpoint, TensorInfo
from quantcli.checkpoint import gguf_layout as layout
from quantcli.checkpoint.gguf_layout import GGUFError, quoted
from quantcli.checkpoint.gguf_read import Head, read_head
from quantcli.checkpoint.metadata import Metadata
from quantcli.checkpoint.positional import PositionalFile
from quantcli.errors import CheckpointError, UnsupportedModel
from quantcli.formats import BlockFormat, every

_SHARD_NAME = re.compile(r"(.+)-(\d{5})-of-(\d{5})\.gguf", re.DOTALL)

# general.type or general.architecture, a key only such files have, what they are
_ADAPTER = ("adapter", "adapter.type", "a LoRA adapter")
_NOT_MODELS = (
    _ADAPTER,
    ("imatrix", "imatrix.chunk_count", "an importance matrix"),
    ("mmproj", "clip.projector_type", "a multimodal projector"),
    ("clip", "clip.has_vision_encoder", "a multimodal projector"),
    ("controlvector", "controlvector.layer_count", "a control vector"),
)


def open_gguf(path: Path, *, is_adapter: bool = False) -> Checkpoint:
    """Open a GGUF file and, if it is the first of several, the others; see open_checkpoint.

    is_adapter   whether it is to be an adapter; else it must be a model
    """
    with ExitStack() as stack:
        first = stack.enter_context(PositionalFile(path))
        head = read_head(first)
        count = _shard_count(path, head.metadata)
        if is_adapter:
            _require_adapter(path, head)
        else:
            _require_model(path, head, is_split=count > 1)
        files, heads = [first], [head]
        for number in range(2, count + 1):
            file = stack.enter_context(_open_shard(path, number, count))
            files.append(file)
            heads.append(_read_shard(file, number, count, head.metadata))
        checkpoint = Checkpoint(
            tuple(files), head.metadata, _tensors(files, heads), _notes(files, heads)
        )
        if count > 1:
            _require_all(path, head.metadata, checkpoint)
        stack.pop_all()  # the checkpoint closes them now
    return checkpoint


def _require_model(path: Path, head: Head, *, is_split: bool) -> None:
    """Refuse what is not a language model, saying what it is."""
    metadata = head.metadata
    row = _kind(metadata)
    if row == _ADAPTER:
        raise refuse_adapter(path)
    if row:
        raise UnsupportedModel(
            f"{path}: is {row[2]}, not a language model; give the model's own GGUF file."
        )
    key = "general.architecture"
    if key not in metadata:
        allowed = "there: the file is not a model, or its conversion was not finished"
        raise _bad_key(path, metadata, key, None, allowed)
    if metadata.type_name(key) != "str":
        got = f"of type {metadata.type_name(key)}"
        raise _bad_key(path, metadata, key, got, "a str, the name of the architecture")
    if not head.tensors and not is_split:
        raise UnsupportedModel(
            f"{path}: holds a vocabulary at most, and no tensors; give the model's own GGUF file."
        )


def _require_adapter(path: Path, head: Head) -> None:
    """Refuse what is not an adapter, saying what it is."""
    row = _kind(head.metadata)
    if row != _ADAPTER:
        what = row[2] if row else "a model"
        advice = "" if row else "; give it as MODEL, and --lora the adapter's own file"
        raise UnsupportedModel(f"{path}: is {what}, not a LoRA adapter{advice}.")


def refuse_adapter(path: Path) -> UnsupportedModel:
    """Return the error for an adapter where a model is wanted."""
    return UnsupportedModel(
        f"{path}: is a LoRA adapter, not a language model; name the model that it was made for, "
        f"and add --lora {path} to run, serve, eval, compare or bench it. It cannot be quantized."
    )


def _kind(metadata: Metadata) -> tuple[str, str, str] | None:
    """Return the row of what a file is, if it is no model."""
    kinds = {_word(metadata, "general.type"), _word(metadata, "general.architecture")}
    return next((row for row in _NOT_MODELS if row[0] in kinds or row[1] in metadata), None)


def _word(metadata: Metadata, key: str) -> str | None:
    """Return a string, or None if the key is missing or holds anything else."""
    value = metadata.get(key)
    return value if isinstance(value, str) else None


def _bad_key(path: Path, metadata: Metadata, key: str, got: object, allowed: str) -> GGUFError:
    """Return the error for a key whose value is wrong, or which is missing (got None)."""
    if got is None:
        return GGUFError(path, f"key {key!r}", "missing", allowed)
    return GGUFError(path, f"key {key!r}", got, allowed, metadata.offset(key))


def _integer(path: Path, metadata: Metadata, key: str) -> int | None:
    """Return an integer of any type, or None if the key is missing."""
    value = metadata.get(key)
    if value is None or (isinstance(value, int) and not isinstance(value, bool)):
        return value
    got = f"of type {metadata.type_name(key)}"
    raise _bad_key(path, metadata, key, got, "of an integer type")


def _shard_count(path: Path, metadata: Metadata) -> int:
    """Return the number of files the model is split into; refuse all but the first of them."""
    count = _integer(path, metadata, "split.count")
    if count is None or count in (0, 1):
        return 1
    if not 0 < count <= layout.MAX_SHARDS:
        raise _bad_key(path, metadata, "split.count", count, f"at most {layout.MAX_SHARDS}")
    index = _integer(path, metadata, "split.no")
    first = _sibling(path, 1, count)
    if index != 0:
        got = None if index is None else f"{index}, part {index + 1} of {count}"
        raise _bad_key(path, metadata, "split.no", got, f"0: give the first part, {first}")
    if first != path:
        allowed = f"{quoted(first.name)}, as it is the first of {count} parts"
        raise GGUFError(path, "the file's name", quoted(path.name), allowed)
    return count


def _sibling(path: Path, number: int, count: int) -> Path:
    """Return the path of another part of a split model, named as this one is."""
    match = _SHARD_NAME.fullmatch(path.name)
    prefix = match[1] if match else path.name.removesuffix(".gguf")
    return path.with_name(layout.SHARD_NAME.format(prefix=prefix, number=number, count=count))


def _open_shard(path: Path, number: int, count: int) -> PositionalFile:
    shard = _sibling(path, number, count)
    if not shard.exists():
        raise CheckpointError(
            f"{shard}: no such file; it is part {number} of {count}, and all must be in one folder."
        )
    return PositionalFile(shard)


def _read_shard(file: PositionalFile, number: int, count: int, first: Metadata) -> Head:
    """Read the head of a later part and check that it is what its name says."""
    head = read_head(file)
    part = f"part {number} of {count}"
    for key, want in (("split.no", number - 1), ("split.count", count)):
        got = _integer(file.path, head.metadata, key)
        if got != want:
            raise _bad_key(file.path, head.metadata, key, got, f"{want}, as it is {part}")
    for key in ("general.architecture", "general.name"):
        ours, theirs = _word(first, key), _word(head.metadata, key)
        if theirs is not None and theirs != ours:
            allowed = f"{quoted(ours or '')} as in part 1: the parts are of different models"
            raise _bad_key(file.path, head.metadata, key, quoted(theirs), allowed)
    return head


@cache
def _formats() -> dict[int, BlockFormat]:
    return {block_format.ggml_id: block_format for block_format in every()}


def _tensors(files: list[PositionalFile], heads: list[Head]) -> dict[str, TensorInfo]:
    """Return the tensors of all parts; refuse one that is there twice or not supported."""
    tensors: dict[str, TensorInfo] = {}
    for shard, (file, head) in enumerate(zip(files, heads, strict=True)):
        for raw in head.tensors:
            if raw.name in tensors:
                also = files[tensors[raw.name].shard].path.name
                what, got = f"tensor {quoted(raw.name)}", f"also in {also}"
                raise GGUFError(file.path, what, got, "in one part only", raw.at)
            known = _formats().get(raw.type_id)
            if known is None:
                name = layout.TENSOR_TYPES[raw.type_id].name
                names = ", ".join(catalog.names("format"))
                raise UnsupportedModel(
                    f"{file.path}: tensor {quoted(raw.name)} (byte {raw.at}) is of type {name}, "
                    f"which quantcli does not decode; supported types are {names}."
                )
            tensors[raw.name] = TensorInfo(
                raw.name, raw.dims[::-1], known, raw.nbytes, shard, raw.offset
            )
    return tensors


def _require_all(path: Path, metadata: Metadata, checkpoint: Checkpoint) -> None:
    key = "split.tensors.count"
    want = _integer(path, metadata, key)
    n = len(checkpoint.tensors)
    if want is not None and want != n:
        allowed = f"{n}, the tensors in the {len(checkpoint.paths)} parts; fetch the model again"
        raise _bad_key(path, metadata, key, want, allowed)


def _notes(files: list[PositionalFile], heads: list[Head]) -> tuple[str, ...]:
    return tuple(
        f"{file.path}: {file.nbytes - head.end} bytes after the last tensor are ignored."
        for file, head in zip(files, heads, strict=True)
        if file.nbytes > head.end
    )
