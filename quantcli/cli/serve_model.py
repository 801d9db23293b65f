"""The model that `serve` serves: loaded on the worker, with room for many answers at once."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from quantcli.cli import generation

if TYPE_CHECKING:
    from quantcli.cli.options import LoadOptions
    from quantcli.cli.render import StatusLine
    from quantcli.cli.serve import ServeOptions
    from quantcli.cli.worker import Worker
    from quantcli.server.service import Service
    from quantcli.server.settings import Settings


@dataclass
class LoadedServer(generation.Loaded):
    """A model ready to answer many."""

    def service(self, settings: Settings, serving: ServeOptions) -> Service:
        """Return the model as a server needs it."""
        from quantcli.server.runner import Runner
        from quantcli.server.served import Served
        from quantcli.server.service import Service

        model = self.model
        served = Served(
            serving.alias or served_name(self.name),
            self.tokenizer,
            self.template,
            self.metadata,
            context=model.context,
            n_slots=model.kv.n_pages * model.kv.page_size,
            facts=self._facts(),
        )
        return Service(served, Runner(self.engine), settings, serving.parallel)

    def _facts(self) -> dict[str, object]:
        from math import prod

        arch = self.metadata.get("general.architecture")
        tensors = self.checkpoint.tensors.values()
        return {
            "n_ctx_train": self.metadata.get(f"{arch}.context_length"),
            "n_embd": self.metadata.get(f"{arch}.embedding_length"),
            "n_params": sum(prod(info.shape) for info in tensors),
        }


def served_name(name: str) -> str:
    """Return what a model is called in answers: its name, of a file the part before .gguf."""
    path = Path(name)
    return path.stem if path.suffix == ".gguf" else name


@contextmanager
def opened(
    name: str,
    options: LoadOptions,
    serving: ServeOptions,
    worker: Worker,
    status: StatusLine,
) -> Iterator[LoadedServer]:
    """Hold a loaded model, downloaded first if need be; close it on the worker in the end."""
    try:
        loaded = _load(name, options, serving, worker, status)
    finally:
        status.clear()
    try:
        for line in generation.notes(loaded):
            status.note(line)
        yield loaded
    finally:
        if worker.stop(serving.grace):
            worker.call(loaded.close)


def _load(
    name: str, options: LoadOptions, serving: ServeOptions, worker: Worker, status: StatusLine
) -> LoadedServer:
    """Find, download if need be, open and load a model on the worker."""
    from quantcli.checkpoint.store import resolve

    path = resolve(name, progress=status, notify=status.note)

    def work() -> LoadedServer:
        from quantcli.checkpoint import open_checkpoint
        from quantcli.engine.loop import Engine
        from quantcli.engine.options import EngineOptions
        from quantcli.runtime.model import Model
        from quantcli.text import from_metadata
        from quantcli.text.chat import ChatTemplate

        report = worker.checked(status)
        start = time.perf_counter()
        with ExitStack() as undo:
            checkpoint = undo.enter_context(open_checkpoint(path))
            report("reading the vocabulary", 0, 0)
            tokenizer = from_metadata(checkpoint.metadata)
            template = ChatTemplate.from_metadata(checkpoint.metadata)
            model = Model.load(
                checkpoint,
                context=options.ctx or None,
                n_threads=options.threads,
                kv_type=options.chosen_kv_type(),
                cache=options.cache,
                n_sequences=serving.parallel,
                backend=options.chosen_backend(),
                progress=report,
            )
            undo.callback(model.close)
            engine_options = EngineOptions(
                max_jobs=serving.parallel, prefix_caching=serving.prefix_caching
            )
            engine = Engine(model, tokenizer, progress=report, options=engine_options)
            undo.pop_all()
        load_s = time.perf_counter() - start
        return LoadedServer(name, checkpoint, tokenizer, template, model, engine, load_s)

    return worker.call(work)
