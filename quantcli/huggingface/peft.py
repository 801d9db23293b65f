"""Folders of PEFT's with a LoRA adapter, read as the GGUF adapter that they would become.

    adapter_config.json         rank, alpha and what else PEFT was told
    adapter_model.safetensors   base_model.model.MODULE.lora_A.weight (rank, n_in), lora_B.weight
                                (n_out, rank); of an embedding lora_embedding_A (rank, n_vocab)

Source: https://huggingface.co/docs/peft, "Checkpoint format" and "LoraConfig".
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from quantcli import arch, catalog
from quantcli.arch import Hyper
from quantcli.arch.hf_config import HFConfig
from quantcli.arch.hugging_face import HuggingFace
from quantcli.checkpoint.adapter import PEFT_CONFIG, Adapter, as_adapter
from quantcli.checkpoint.gguf_layout import quoted
from quantcli.checkpoint.gguf_write import WriteValue
from quantcli.checkpoint.json_file import read_object, shown, wrong
from quantcli.checkpoint.positional import PositionalFile
from quantcli.checkpoint.safetensors import SafetensorsFiles, read_header
from quantcli.errors import CheckpointError, ModelError, UnsupportedModel
from quantcli.huggingface.folder import FolderCheckpoint
from quantcli.huggingface.rows import InMemory, Permuted, RowSource, Stored, decoded

WEIGHTS = "adapter_model.safetensors"
_CONVERT = (
    "convert it with llama.cpp's convert_lora_to_gguf.py, and give the GGUF file that comes of it"
)
_TENSOR = re.compile(
    r"base_model\.model\.(?P<module>.+)\.lora_(?P<embedding>embedding_)?(?P<half>[AB])(?:\.weight)?"
)
# Settings that change what the matrices mean, and their values that do not.
_UNSUPPORTED = {
    "use_dora": (None, False),
    "fan_in_fan_out": (None, False),
    "lora_bias": (None, False),
    "bias": (None, "none"),
    "alpha_pattern": (None, {}),
    "layer_replication": (None, []),
    "alora_invocation_tokens": (None, []),
    "invocation_string": (None, ""),
    "trainable_token_indices": (None, []),
    "target_parameters": (None, []),
}


def open_peft(folder: Path, hyper: Hyper, scale: float) -> Adapter:
    """Open an adapter for a model of these numbers; only its configuration and head are read.

    Raises CheckpointError for what is malformed or missing, and UnsupportedModel for a kind of
    adapter, or an architecture, that has to be converted to GGUF elsewhere.
    """
    config = read_object(folder / PEFT_CONFIG)
    alpha = _alpha(config, folder / PEFT_CONFIG)
    declared = arch.in_folders(hyper.arch)
    if declared is None:
        known = ", ".join(n for n in catalog.names("architecture") if arch.in_folders(n))
        raise UnsupportedModel(
            f"{folder}: adapters in folders are read for models of {known}, and this is for "
            f"{hyper.arch}; {_CONVERT}."
        )
    if not (folder / WEIGHTS).is_file():
        raise CheckpointError(f"{folder}: has no {WEIGHTS}; fetch it, or {_CONVERT}.")
    file = PositionalFile(folder / WEIGHTS)
    try:
        files = SafetensorsFiles((file,), {t.name: t for t in read_header(file)})
        heads = {
            "num_attention_heads": hyper.n_heads[0],
            "num_key_value_heads": hyper.n_kv_heads[0],
        }
        metadata: dict[str, WriteValue] = {
            "general.architecture": hyper.arch,
            "general.type": "adapter",
            "adapter.type": "lora",
            "adapter.lora.alpha": alpha,
        }
        checkpoint = FolderCheckpoint(
            files,
            metadata,
            _sources(files, declared, HFConfig(heads)),
            folder=folder,
            declared=declared,
            config=HFConfig(heads),
            hf_names={},
        )
        return as_adapter(checkpoint, scale)
    except BaseException:
        file.close()
        raise


def _alpha(config: Mapping[str, object], path: Path) -> float:
    """Return alpha as GGUF means it: what the rank divides."""
    if (kind := config.get("peft_type")) != "LORA":
        raise UnsupportedModel(f"{path}: peft_type is {shown(kind)}; only LORA is supported.")
    for key, harmless in _UNSUPPORTED.items():
        if config.get(key) not in harmless:
            raise UnsupportedModel(
                f"{path}: {key} is {shown(config[key])}, which is not supported; train the adapter "
                "without it."
            )
    alpha, rank = config.get("lora_alpha"), config.get("r")
    if isinstance(alpha, bool) or not isinstance(alpha, int | float) or not abs(alpha) < 1e30:
        raise wrong(config, "lora_alpha", "a number", str(path))
    if not config.get("use_rslora"):
        return float(alpha)
    if isinstance(rank, bool) or not isinstance(rank, int) or not 0 < rank < 1 << 20:
        raise wrong(config, "r", "a whole number above 0", str(path))
    if config.get("rank_pattern"):
        raise UnsupportedModel(
            f"{path}: use_rslora and rank_pattern together are not supported; train the adapter "
            "with one rank."
        )
    return float(alpha) * math.sqrt(rank)


def _sources(
    files: SafetensorsFiles, declared: HuggingFace, config: HFConfig
) -> dict[str, RowSource]:
    """Return where the rows of each tensor of the GGUF adapter come from."""
    path = files.paths[0]
    sources: dict[str, RowSource] = {}
    for name, tensor in files.tensors.items():
        found = _TENSOR.fullmatch(name)
        if found is None:
            raise UnsupportedModel(
                f"{path}: tensor {quoted(name)} is no matrix of a LoRA adapter; adapters with "
                "whole layers beside them are not supported."
            )
        if len(tensor.shape) != 2 or not all(tensor.shape):
            raise CheckpointError(
                f"{path}: tensor {quoted(name)} has shape {list(tensor.shape)}, which is no matrix."
            )
        target = _target(declared, found["module"], path)
        source: RowSource = Stored(files, tensor)
        source.format  # noqa: B018 - refuses a dtype that is no float
        if found["half"] == "B" and (n_heads := declared.n_permuted_heads(target, config)):
            source = Permuted(source, n_heads)
        elif found["half"] == "A" and found["embedding"]:
            rows = decoded(source, 0, tensor.shape[0])
            source = InMemory(np.ascontiguousarray(rows.T))
        key = f"{target}.lora_{found['half'].lower()}"
        if key in sources:
            raise CheckpointError(f"{path}: tensor {quoted(name)} is there a second time.")
        sources[key] = source
    return sources


def _target(declared: HuggingFace, module: str, path: Path) -> str:
    """Return GGUF's name of the matrix that a module's adapter is for."""
    try:
        places = declared.places(f"{module}.weight")
    except ModelError as error:
        raise UnsupportedModel(f"{path}: {error}") from error
    if len(places) != 1 or places[0].expert is not None or places[0].piece is not None:
        raise UnsupportedModel(
            f"{path}: adapts {quoted(module)}, which is not supported in folders; {_CONVERT}."
        )
    return places[0].name
