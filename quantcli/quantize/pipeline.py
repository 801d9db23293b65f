"""The work: read, quantize, write, tensor by tensor or layer by layer, in bounded memory.

Whatever stops it, what is done stays in a draft beside the output, and the same command with
`--resume` goes on to the same bytes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import closing
from dataclasses import replace
from functools import partial
from itertools import groupby
from pathlib import Path

import numpy as np

from quantcli.checkpoint.gguf_draft import GGUFDraft
from quantcli.errors import ModelError, UsageError
from quantcli.kernels.quantize import encode as encode_values
from quantcli.qtensor import U8, QTensor
from quantcli.quantize import Layer, Statistics
from quantcli.quantize.job import Job, Progress
from quantcli.quantize.loss import check_finite
from quantcli.quantize.recipe import Choice, layer_of
from quantcli.quantize.results import ResultLog, TensorResult, result_of
from quantcli.quantize.slabs import (
    Encoded,
    Slab,
    encode,
    encode_weights,
    in_order,
    read_rows,
    slabs,
)
from quantcli.quantize.walk_state import WalkState

# How much work a kill may cost at most; flushing after every tensor would cost more than encoding.
_SAFE_EVERY_S = 5.0
_NOTHING = np.empty(0, np.uint8)


def run(
    job: Job,
    path: Path,
    *,
    n_threads: int,
    resume: bool = False,
    force: bool = False,
    progress: Progress | None = None,
) -> list[TensorResult]:
    """Quantize, and return what became of each tensor in the output's order.

    path     the GGUF file to write; it appears whole or not at all
    resume   whether to go on with what an interrupted run of the same job left
    force    whether to replace a file that is there, and to drop an interrupted run
    progress called with "quantizing", the weights that are done and all of them; and between, by a
             walk, with "calibrating" and its tokens

    Raises ModelError for weights or activations that are not finite, ResourceError for a disk that
    is full or too small, UsageError if the path is taken or there is an interrupted run.
    """
    if not resume and not force:
        _refuse_unfinished(path)
    with GGUFDraft(
        path,
        job.metadata,
        job.specs,
        run=job.run_id(),
        resume=resume,
        force=force,
        safe_every_s=_SAFE_EVERY_S,
    ) as draft:
        log = ResultLog(beside(path, "results"), resume=resume)
        state = WalkState(beside(path, "state"), resume=resume)
        work = Work(job, draft, log, n_threads, progress)
        try:
            work.run(state)
        except ModelError:  # another run would end here too
            draft.discard()
            log.remove()
            state.remove()
            raise
        draft.finish()
    log.remove()
    state.remove()
    return [log.results.get(c.name) or result_of(c) for c in job.choices]


def beside(path: Path, what: str) -> Path:
    """Return the file beside an output in which an interrupted run keeps something."""
    return path.with_name(f".{path.name}.part.{what}")


def _refuse_unfinished(path: Path) -> None:
    if path.with_name(f".{path.name}.part.json").exists():
        raise UsageError(
            f"{path.name} was begun before and not finished. Add --resume to go on, or --force to "
            "start over."
        )


class Work:
    """The work under way: a draft that grows, and the results so far."""

    def __init__(
        self,
        job: Job,
        draft: GGUFDraft,
        log: ResultLog,
        n_threads: int,
        progress: Progress | None,
    ) -> None:
        """Begin after the tensors that the draft already has."""
        self._job = job
        self._draft = draft
        self._log = log
        self._n_threads = n_threads
        self._progress = progress
        self._n_weights = sum(c.n_weights for c in job.choices)
        self._n_done = sum(c.n_weights for c in job.choices[: draft.n_done])

    def run(self, state: WalkState) -> None:
        """Do all that the draft does not have."""
        if self._job.settings.by_layer:
            self.by_layer(state)
        else:
            self.by_tensor(self._job.choices)

    def by_tensor(
        self, choices: Iterable[Choice], statistics: dict[str, Statistics] | None = None
    ) -> None:
        """Quantize tensors that need no walk, as far as the draft does not have them."""
        settings = self._job.settings
        done = self._done
        todo = [choice for choice in choices if choice.name not in done]
        work = partial(
            encode,
            self._job.checkpoint,
            settings.quantizer,
            settings.statistics if statistics is None else statistics,
        )
        pieces = (slab for choice in todo for slab in slabs(choice))
        encoded = in_order(work, pieces, self._n_threads)
        for name, parts in groupby(encoded, key=lambda part: part.slab.choice.name):
            self._write(name, parts)

    def by_layer(self, state: WalkState) -> None:
        """Quantize a model whose layers are walked through."""
        job, settings = self._job, self._job.settings
        assert settings.walk is not None, settings.method
        first = next((i for i, c in enumerate(job.choices) if layer_of(c.name) is not None), 0)
        self.by_tensor(job.choices[:first])
        with closing(settings.walk(self._progress)) as walk:
            embedding = job.plan.ops[0].weights[0]
            if embedding in self._done:
                walk.embed(self._draft.tensor(self._place(embedding)))
            start = state.restore(walk)
            for position, layer in enumerate(walk, start):
                if position > start:
                    state.save(walk, position)
                if layer.index is None:
                    self._last(layer)
                elif all(c.name in self._done for c in self._choices(layer)):
                    self._again(layer)
                else:
                    self._layer(layer)

    @property
    def _done(self) -> set[str]:
        """Names of the tensors that the draft has."""
        return {spec.name for spec in self._draft.tensors[: self._draft.n_done]}

    def _place(self, name: str) -> int:
        """Return where a tensor is in the draft."""
        return next(i for i, spec in enumerate(self._draft.tensors) if spec.name == name)

    def _choices(self, layer: Layer) -> list[Choice]:
        """Return the choices of a layer's tensors."""
        return [c for c in self._job.choices if layer_of(c.name) == layer.index]

    def _layer(self, layer: Layer) -> None:
        """Quantize a layer and write what the draft does not have of it."""
        choices = {c.name: c for c in self._choices(layer)}
        notes = self._fold(layer)
        parts: dict[str, list[Encoded]] = {}
        for group in layer.groups:
            statistics = layer.statistics(group[0])
            for name in group:
                choice = choices[name]
                parts[name] = self._matrix(layer, choice, statistics)
                data = np.concatenate([part.data for part in parts[name]])
                layer.put(name, QTensor(name, choice.shape, choice.format, data))
        for name, choice in choices.items():
            if name not in parts:
                parts[name] = [self._vector(layer, choice)]
            if name not in self._done:
                self._write(name, parts.pop(name))
        first = next(iter(choices))
        if notes:
            self._log.add(replace(self._log.results[first], notes=notes))

    def _fold(self, layer: Layer) -> tuple[str, ...]:
        """Let the folds rewrite a layer's weights; return their notes."""
        formats = {c.name: c.format for c in self._job.choices}
        notes: list[str] = []
        for fold in self._job.settings.folds:
            notes += fold.fold(layer, formats)
        return tuple(notes)

    def _matrix(self, layer: Layer, choice: Choice, statistics: Statistics) -> list[Encoded]:
        """Return a matrix of a layer in its new format; its weights may be overwritten."""
        quantizer = self._job.settings.quantizer
        weights = layer.weights[choice.name]
        check_finite(weights, choice.name)
        whole = Slab(choice, 0, weights.size // weights.shape[-1])
        if not choice.changes and not self._job.settings.folds:
            return [Encoded(whole, read_rows(self._job.checkpoint, whole).data)]
        if statistics.hessian is not None and quantizer.needs == "hessian":
            return [encode_weights(quantizer, statistics, whole, weights)]  # on its own threads
        flat = weights.reshape(-1, weights.shape[-1])  # experts one after the other

        def work(slab: Slab) -> Encoded:
            rows = flat[slab.row_start : slab.row_stop]
            return encode_weights(quantizer, statistics, slab, rows)

        return list(in_order(work, slabs(choice), self._n_threads))

    def _vector(self, layer: Layer, choice: Choice) -> Encoded:
        """Return a tensor that is not quantized: as it is, or as the folds have changed it."""
        slab = next(slabs(choice, choice.n_weights))
        rows = read_rows(self._job.checkpoint, slab)
        source = rows.dequantize()
        check_finite(source, choice.name)
        now = layer.weights.get(choice.name)
        if now is None or np.array_equal(now.reshape(source.shape), source):
            return Encoded(slab, rows.data)
        check_finite(now, choice.name)
        return Encoded(slab, encode_values(now.reshape(source.shape), choice.format))

    def _again(self, layer: Layer) -> None:
        """Let a layer that the draft has pass by, with the weights that it has there."""
        matrices = {name for group in layer.groups for name in group}
        for choice in self._choices(layer):
            if choice.name not in matrices:
                values = self._draft.tensor(self._place(choice.name)).dequantize()
                layer.weights[choice.name] = values
        for group in layer.groups:
            for name in group:
                layer.put(name, self._draft.tensor(self._place(name)))

    def _last(self, layer: Layer) -> None:
        """Quantize what comes after the layers: by slabs, for an output matrix may be huge."""
        rest = [c for c in self._job.choices if c.name not in self._done]
        statistics = {group[0]: layer.statistics(group[0]) for group in layer.groups}
        self.by_tensor(rest, statistics)

    def _write(self, name: str, parts: Iterable[Encoded]) -> None:
        """Append a tensor to the draft as its slabs come."""
        spec = self._draft.tensors[self._draft.n_done]
        assert spec.name == name, (spec.name, name)
        kept: list[Encoded] = []

        def data() -> Iterator[U8]:
            for part in parts:
                yield part.data
                kept.append(replace(part, data=_NOTHING))
                self._n_done += part.slab.n_weights
                if self._progress:
                    self._progress("quantizing", self._n_done, self._n_weights)

        self._draft.write(data())
        self._log.add(result_of(kept[0].slab.choice, kept))
