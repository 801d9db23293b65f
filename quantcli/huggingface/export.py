"""Write a Hugging Face folder whose linears are integers: GPTQ, AWQ or compressed-tensors.

The source is a folder, too: what is not quantized, the tokenizer and the configuration come from
there. A GGUF file has none of them.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from quantcli.checkpoint import Checkpoint
from quantcli.checkpoint.drafts import folder_draft
from quantcli.checkpoint.gguf_write import Advance
from quantcli.checkpoint.home import flush
from quantcli.checkpoint.safetensors import StoredTensor
from quantcli.checkpoint.safetensors_write import (
    SHARD_NBYTES,
    OutTensor,
    SafetensorsWriter,
    nbytes_of,
)
from quantcli.errors import UnsupportedModel
from quantcli.formats import F32
from quantcli.huggingface.files import CONFIG, read_config
from quantcli.huggingface.folder import FolderCheckpoint
from quantcli.huggingface.rows import unpermuted
from quantcli.huggingface.scheme import ExportScheme, QuantizedLinear
from quantcli.qtensor import U8

Step = Callable[[str], None]

_SLAB_NBYTES = 4 << 20
# Copied beside the weights. A card is not: it speaks of the model that was not quantized.
_COPIED = (
    "generation_config.json",
    "tokenizer.json",
    "tokenizer.model",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
    "chat_template.json",
    "chat_template.jinja",
    "additional_chat_templates/*.jinja",
    "preprocessor_config.json",
    "processor_config.json",
    "LICENSE*",
    "NOTICE*",
)
_LINEARS = ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down", "output")


@dataclass(frozen=True, slots=True)
class ExportPlan:
    """What an export writes.

    linears   the folder's module of each quantized linear, by GGUF name
    changed   dtype by GGUF name of the tensors that are written with other values
    tensors   all that is written, in order
    skipped   modules that are linears and stay as they are
    """

    scheme: ExportScheme
    linears: Mapping[str, str]
    changed: Mapping[str, str]
    tensors: tuple[OutTensor, ...]
    skipped: tuple[str, ...]


def require_folder(checkpoint: Checkpoint) -> FolderCheckpoint:
    """Return a checkpoint that can be exported; raise UnsupportedModel for a GGUF file."""
    if isinstance(checkpoint, FolderCheckpoint):
        return checkpoint
    raise UnsupportedModel(
        f"{checkpoint.paths[0]}: is a GGUF file, which has neither config.json nor tokenizer.json; "
        "vLLM and transformers need both. Give the model's Hugging Face folder."
    )


def plan_export(
    source: FolderCheckpoint,
    scheme: ExportScheme,
    linears: Sequence[str],
    changed: Sequence[str] = (),
) -> ExportPlan:
    """Return what an export writes.

    linears   GGUF names of the weights to be quantized
    changed   GGUF names of other tensors that get new values, such as norms with folded scales

    Raises UnsupportedModel for a tensor that is no tensor of its own in the folder, such as one
    expert's, and for a source that is quantized itself.
    """
    names = {}
    for name in (*linears, *changed):
        if name not in source.hf_names:
            raise UnsupportedModel(f"{name} is not one tensor in {source.folder}; it stays there.")
        names[name] = source.hf_names[name]
    modules = {name: names[name].removesuffix(".weight") for name in linears}
    tensors: list[OutTensor] = []
    replaced = {names[name] for name in linears}
    by_hf_name = {names[name]: name for name in linears}
    others = {names[name]: name for name in changed}
    for stored in _stored(source):
        if stored.name in replaced:
            n_out, n_in = source.tensors[by_hf_name[stored.name]].shape
            tensors += scheme.tensors(modules[by_hf_name[stored.name]], n_out, n_in)
        elif stored.name in others:
            tensors.append(OutTensor(stored.name, "F32", stored.shape))
        else:
            tensors.append(OutTensor(stored.name, stored.dtype, stored.shape))
    skipped = [
        source.hf_names[name].removesuffix(".weight")
        for name in source.hf_names
        if name not in modules and _is_linear(name)
    ]
    skipped += ["lm_head"] if "output.weight" not in source.hf_names else []
    return ExportPlan(
        scheme, modules, dict.fromkeys(changed, "F32"), tuple(tensors), tuple(sorted(set(skipped)))
    )


class ExportWriter:
    """A folder under way: linears and changed tensors are put in any order, each once."""

    def __init__(
        self, source: FolderCheckpoint, plan: ExportPlan, files: SafetensorsWriter, step: Step
    ) -> None:
        """Start with nothing put; use `exporting`."""
        self._source, self._plan, self._files, self._step = source, plan, files, step
        self._written: set[str] = set()

    def put_linear(self, name: str, linear: QuantizedLinear) -> None:
        """Write the integers of a linear, by its GGUF name."""
        n_heads = self._source.declared.n_permuted_heads(name, self._source.config)
        if n_heads:
            linear = linear.unpermuted(linear.codes.shape[0] // n_heads)
        outs = self._plan.scheme.tensors(self._plan.linears[name], *linear.codes.shape)
        for out, array in zip(outs, self._plan.scheme.arrays(linear), strict=True):
            assert out.shape == array.shape, (out, array.shape)
            self._write(out.name, [np.ascontiguousarray(array).reshape(-1).view(np.uint8)])
        self._written.add(self._source.hf_names[name])

    def put_changed(self, name: str, values: F32) -> None:
        """Write new values of a tensor that stays a float: f32, as GGUF has them."""
        assert name in self._plan.changed, name
        stored = as_stored(self._source, name, values)
        self._write(self._source.hf_names[name], [stored.reshape(-1).view(np.uint8)])
        self._written.add(self._source.hf_names[name])

    def put_rest(self) -> None:
        """Copy what stays as it is; all linears and changed tensors must have been put."""
        for name in (*self._plan.linears, *self._plan.changed):
            assert self._source.hf_names[name] in self._written, f"{name} was not put"
        for stored in _stored(self._source):
            if stored.name not in self._written:
                self._write(stored.name, _bytes_of(self._source, stored))

    def _write(self, name: str, slabs: Iterable[U8]) -> None:
        self._files.write(name, slabs)
        self._step(name)


@contextmanager
def exporting(
    source: FolderCheckpoint,
    path: Path,
    plan: ExportPlan,
    *,
    force: bool = False,
    shard_nbytes: int = SHARD_NBYTES,
    progress: Advance | None = None,
) -> Iterator[ExportWriter]:
    """Hold a folder that takes its place at the end of the block, whole or not at all.

    Memory holds one linear. Raises UsageError if the path is taken, ResourceError if the disk is
    too small or fills up; whatever is raised in the block, too, leaves no folder.
    """
    nbytes = {tensor.name: tensor.nbytes for tensor in plan.tensors}
    total, done = sum(nbytes.values()), 0

    def step(name: str) -> None:
        nonlocal done
        done += nbytes[name]
        if progress is not None:
            progress(done, total)

    with folder_draft(path, force=force, nbytes=nbytes_of(plan.tensors)) as folder:
        _copy_files(source.folder, folder)
        _write_configs(source, folder, plan)
        files = SafetensorsWriter(folder, plan.tensors, shard_nbytes)
        try:
            writer = ExportWriter(source, plan, files, step)
            yield writer
            writer.put_rest()
            files.finish()
        finally:
            files.close()


def as_stored(source: FolderCheckpoint, name: str, values: F32) -> F32:
    """Return a GGUF tensor's values as the folder has them: rows put back, Gemma's 1 taken off."""
    n_heads = source.declared.n_permuted_heads(name, source.config)
    if n_heads:
        values = unpermuted(values, values.shape[0] // n_heads)
    shift = source.declared.shift(name)
    return np.ascontiguousarray(values - np.float32(shift) if shift else values, "<f4")


def _stored(source: FolderCheckpoint) -> list[StoredTensor]:
    """Return the folder's own tensors; raise UnsupportedModel if it is quantized."""
    for name, info in source.tensors.items():
        is_own = name not in source.hf_names or source.hf_names[name] in source.files.tensors
        if not is_own:
            raise UnsupportedModel(
                f"{source.folder}: {info.name} is packed integers already; quantize from the "
                "model's own 16-bit folder."
            )
    return list(source.files.tensors.values())


def _bytes_of(source: FolderCheckpoint, stored: StoredTensor) -> Iterator[U8]:
    for start in range(0, stored.nbytes, _SLAB_NBYTES):
        data = np.empty(min(_SLAB_NBYTES, stored.nbytes - start), np.uint8)
        source.files.read_into(stored, data.data, start)
        yield data


def _is_linear(name: str) -> bool:
    parts = name.split(".")
    return parts[-1] == "weight" and parts[-2] in _LINEARS


def _copy_files(source: Path, folder: Path) -> None:
    for pattern in _COPIED:
        for path in sorted(source.glob(pattern)):
            if path.is_file():
                target = folder / path.relative_to(source)
                target.parent.mkdir(exist_ok=True)
                shutil.copyfile(path, target)


def _write_configs(source: FolderCheckpoint, folder: Path, plan: ExportPlan) -> None:
    """Write config.json with how the weights are packed, and the model's dtype with it."""
    quantization = plan.scheme.config(plan.skipped)
    config = read_config(source.folder)
    dtype = {"F16": "float16", "BF16": "bfloat16"}[plan.scheme.scale_dtype]
    nested = config.get("text_config")
    for table in (config, nested):
        if isinstance(table, dict):
            # vLLM makes scales of the model's dtype: another one would round them.
            for key in [key for key in ("torch_dtype", "dtype") if key in table] or ["torch_dtype"]:
                table[key] = dtype
    config["quantization_config"] = quantization
    _dump(folder / CONFIG, config)
    if plan.scheme.format == "gptq":
        _dump(folder / "quantize_config.json", quantization)


def _dump(path: Path, table: object) -> None:
    with path.open("w", encoding="utf-8") as file:
        json.dump(table, file, indent=2, ensure_ascii=False)
        file.write("\n")
        flush(file)
