"""The model that `serve` serves, as the server needs it."""

from __future__ import annotations

from math import prod
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from quantcli.cli.generation import Loaded
    from quantcli.cli.serve import ServeOptions
    from quantcli.server.service import Service
    from quantcli.server.settings import Settings


def service_of(loaded: Loaded, settings: Settings, serving: ServeOptions) -> Service:
    """Return a service for a model that is loaded; something must step its engine."""
    from quantcli.server.runner import Runner
    from quantcli.server.served import Served
    from quantcli.server.service import Service

    model = loaded.model
    served = Served(
        serving.alias or served_name(loaded.name),
        loaded.tokenizer,
        loaded.template,
        loaded.metadata,
        context=model.context,
        n_slots=model.kv.n_pages * model.kv.page_size,
        facts=_facts(loaded),
        adapters=loaded.adapters,
    )
    return Service(served, Runner(loaded.engine), settings, serving.parallel)


def served_name(name: str) -> str:
    """Return what a model is called in answers: its name, of a file the part before .gguf."""
    path = Path(name)
    return path.stem if path.suffix == ".gguf" else name


def _facts(loaded: Loaded) -> dict[str, object]:
    arch = loaded.metadata.get("general.architecture")
    return {
        "n_ctx_train": loaded.metadata.get(f"{arch}.context_length"),
        "n_embd": loaded.metadata.get(f"{arch}.embedding_length"),
        "n_params": sum(prod(info.shape) for info in loaded.checkpoint.tensors.values()),
    }
