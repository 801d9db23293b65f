"""What `inspect` shows of a LoRA adapter."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from quantcli.checkpoint.adapter import Adapter
    from quantcli.cli.render import JsonValue

_LAYER = re.compile(r"(?:blk|model\.layers)\.(\d+)\.")


def show_adapter(path: Path, *, tensors: bool, as_json: bool) -> None:
    """Print what an adapter is, in GGUF or a folder of PEFT's."""
    from quantcli.cli import render

    found = _peft(path) if path.is_dir() else _gguf(path)
    if as_json:
        render.emit_json(found.document())
        return
    print("summary")
    print(render.facts(found.summary))
    print("metadata")
    print(render.pairs((k, render.shorten(str(v), 100)) for k, v in found.metadata.items()))
    if tensors:
        print("tensors")
        rows = [
            (f"  {name}", " x ".join(map(str, shape)), kind, f"{nbytes:,}")
            for name, shape, kind, nbytes in found.tensors
        ]
        print(render.table(("  name", "shape", "format", "bytes"), rows, right="lrlr"))


@dataclass(frozen=True, slots=True)
class _Found:
    """Everything about an adapter; of a tensor its name, shape, format and bytes."""

    summary: dict[str, JsonValue]
    metadata: dict[str, JsonValue]
    tensors: list[tuple[str, tuple[int, ...], str, int]]

    def document(self) -> JsonValue:
        """Return it for --json."""
        tensors: list[JsonValue] = [
            {"name": name, "shape": shape, "format": kind, "nbytes": nbytes}
            for name, shape, kind, nbytes in self.tensors
        ]
        return {"summary": self.summary, "metadata": self.metadata, "tensors": tensors}


def _gguf(path: Path) -> _Found:
    from quantcli.checkpoint.adapter import open_adapter
    from quantcli.cli.inspect import items_of, json_value

    adapter = open_adapter(path)
    with adapter.checkpoint as checkpoint:
        return _Found(
            _summary(adapter),
            {key: json_value(value) for key, value in items_of(checkpoint.metadata)},
            [(t.name, t.shape, t.format.name, t.nbytes) for t in checkpoint.tensors.values()],
        )


def _summary(adapter: Adapter) -> dict[str, JsonValue]:
    ranks = sorted({pair.rank for pair in adapter.pairs.values()})
    name = adapter.checkpoint.metadata.get("general.name")
    return {
        "file": adapter.path.name,
        "kind": "LoRA adapter",
        "name": name if isinstance(name, str) else None,
        "architecture": adapter.architecture,
        "rank": ranks[0] if len(ranks) == 1 else ranks,
        "alpha": adapter.alpha,
        **_targets(adapter.pairs),
        "parameters": adapter.checkpoint.n_params,
        "weights_nbytes": adapter.checkpoint.nbytes,
        "use": f"quantcli run MODEL --lora {adapter.path}",
    }


def _targets(names: Iterable[str]) -> dict[str, JsonValue]:
    """Return which matrices are adapted, and in how many layers."""
    names = list(names)
    layers = {int(found[1]) for name in names if (found := _LAYER.match(name))}
    parts = dict.fromkeys(_LAYER.sub("", name).removesuffix(".weight") for name in names)
    return {"matrices": len(names), "targets": list(parts), "layers": len(layers)}


def _peft(folder: Path) -> _Found:
    """Return what a folder says; where its matrices go needs the model."""
    from quantcli.checkpoint.adapter import PEFT_CONFIG
    from quantcli.checkpoint.json_file import read_object
    from quantcli.checkpoint.positional import PositionalFile
    from quantcli.checkpoint.safetensors import read_header
    from quantcli.huggingface.peft import WEIGHTS

    config = read_object(folder / PEFT_CONFIG)
    with PositionalFile(folder / WEIGHTS) as file:
        tensors = read_header(file)
    modules = [t.name.split(".lora_")[0].removeprefix("base_model.model.") for t in tensors]
    base = config.get("base_model_name_or_path")
    return _Found(
        {
            "folder": folder.name,
            "kind": "LoRA adapter, as PEFT writes it",
            "base_model": base if isinstance(base, str) else None,
            "rank": str(config.get("r")),
            "alpha": str(config.get("lora_alpha")),
            **_targets(dict.fromkeys(modules)),
            "weights_nbytes": sum(t.nbytes for t in tensors),
            "use": f"quantcli run MODEL --lora {folder}",
        },
        {key: str(value) for key, value in config.items()},
        [(t.name, t.shape, t.dtype, t.nbytes) for t in tensors],
    )
