"""Linears as plain integers in groups, written as a Hugging Face folder.

The same order of work as for GGUF files, layer by layer where something is to be learned from
text; the grid is another, and what is not a layer's linear is copied as it is.
"""

from __future__ import annotations

import time
from contextlib import closing
from dataclasses import dataclass
from math import prod
from pathlib import Path

import numpy as np

from quantcli import formats
from quantcli.arch import Hyper, check_tensors, get
from quantcli.checkpoint import Checkpoint
from quantcli.errors import UsageError
from quantcli.formats import F32
from quantcli.huggingface.export import (
    ExportPlan,
    ExportWriter,
    exporting,
    plan_export,
    require_folder,
)
from quantcli.huggingface.folder import FolderCheckpoint
from quantcli.huggingface.scheme import ExportScheme, QuantizedLinear, problems
from quantcli.qtensor import U8, QTensor
from quantcli.quantize import Layer, Statistics
from quantcli.quantize.gptq import Gptq
from quantcli.quantize.job import Progress, Settings
from quantcli.quantize.loss import check_finite, energy
from quantcli.quantize.results import TensorResult
from quantcli.quantize.targets import IntegerTarget, Scales

_PROXY = "q4_0"  # the block format on which folds try scales: a group of 4-bit numbers as well
_SLAB_ROWS = 256
_WHOLE = 0.01  # how far from a whole number rounding may leave a zero


@dataclass(frozen=True)
class ExportJob:
    """What will be written, checked before any work.

    linears   shapes (n_out, n_in) of the matrices to be quantized, by GGUF name, in plan order
    plan      what the folder will hold
    problems  what vLLM will refuse or run slowly, a sentence each
    """

    source: FolderCheckpoint
    settings: Settings
    scheme: ExportScheme
    linears: dict[str, tuple[int, int]]
    plan: ExportPlan
    problems: tuple[str, ...]

    @property
    def nbytes(self) -> int:
        """Bytes of all tensors that will be written."""
        return sum(tensor.nbytes for tensor in self.plan.tensors)

    @property
    def n_weights(self) -> int:
        """Weights of the model."""
        return self.source.n_params

    @property
    def label(self) -> str:
        """What the linears become, for people."""
        return f"{self.scheme.format} int{self.scheme.bits} in groups of {self.scheme.group}"


def prepare_export(checkpoint: Checkpoint, settings: Settings, scheme: ExportScheme) -> ExportJob:
    """Check that a model can be exported; no weight is looked at.

    Raises UnsupportedModel for a source that is no Hugging Face folder or is quantized already,
    ShapeError for a matrix that the groups do not fit.
    """
    if scheme.format == "gptq" and not scheme.symmetric:
        raise UsageError(
            "asymmetric GPTQ is read differently by different programs; leave --asym out, or use "
            "--export compressed-tensors."
        )
    source = require_folder(checkpoint)
    hyper = Hyper.from_metadata(source.metadata, source.tensors)
    model = get(hyper.arch).build(hyper)
    model.verify()
    check_tensors(model, source.tensors)
    names = [op.weights[0] for op in model.ops if op.kind == "linear" and op.layer is not None]
    linears = {name: _matrix(source.tensors[name].shape) for name in names}
    found = problems(scheme, linears)
    changed = [] if not settings.folds else _vectors(source, linears)
    plan = plan_export(source, scheme, names, changed)
    return ExportJob(source, settings, scheme, linears, plan, tuple(found))


def export(
    job: ExportJob,
    path: Path,
    *,
    force: bool = False,
    progress: Progress | None = None,
) -> list[TensorResult]:
    """Quantize and write a folder, whole or not at all; return what became of each tensor.

    Raises ModelError for weights or activations that are not finite, ResourceError for a disk that
    is full or too small, UsageError if the path is taken.
    """
    with exporting(job.source, path, job.plan, force=force) as writer:
        found = {result.name: result for result in _Export(job, writer, progress).run()}
    return [found.get(name) or _copied(job.source, name) for name in job.source.tensors]


class _Export:
    """The work under way."""

    def __init__(self, job: ExportJob, writer: ExportWriter, progress: Progress | None) -> None:
        self._job = job
        self._writer = writer
        self._progress = progress
        self._target = IntegerTarget(job.scheme.bits, job.scheme.group, job.scheme.symmetric)
        self._results: list[TensorResult] = []
        self._n_done = 0
        self._n_all = sum(map(prod, job.linears.values()))

    def run(self) -> list[TensorResult]:
        """Do everything; return the results in plan order."""
        settings = self._job.settings
        if settings.walk is None:
            for name in self._job.linears:
                self._put(name, self._job.source.tensor(name).dequantize(), None)
            return self._results
        with closing(settings.walk(self._progress)) as walk:
            for layer in walk:
                if layer.index is None:
                    break
                self._layer(layer)
        return self._results

    def _layer(self, layer: Layer) -> None:
        proxy = formats.get(_PROXY)
        for fold in self._job.settings.folds:
            fold.fold(layer, dict.fromkeys(self._job.linears, proxy))
        for group in layer.groups:
            statistics = layer.statistics(group[0])
            for name in group:
                values = self._put(name, layer.weights[name], statistics)
                data = np.ascontiguousarray(values).reshape(-1).view(np.uint8)
                layer.put(name, QTensor(name, values.shape, formats.get("f32"), data))
        prefix = f"blk.{layer.index}."
        for name in self._job.plan.changed:
            if name.startswith(prefix):
                self._writer.put_changed(name, layer.weights[name])

    def _put(self, name: str, weights: F32, statistics: Statistics | None) -> F32:
        """Choose a linear's integers, write them, and return the weights that they stand for."""
        began = time.perf_counter()
        check_finite(weights, name)
        codes, scales, error, baseline = self._chosen(weights, statistics)
        scheme = self._job.scheme
        zeros = None if scheme.symmetric else _zeros(scales, scheme)
        self._writer.put_linear(name, QuantizedLinear(codes, scales.scales, zeros))
        info = self._job.source.tensors[name]
        self._results.append(
            TensorResult(
                name=name,
                shape=info.shape,
                source=info.format.name,
                format=f"int{scheme.bits}",
                wanted="",
                reason="mix",
                nbytes=sum(t.nbytes for t in scheme.tensors(name, *self._job.linears[name])),
                error=error,
                baseline=baseline,
                seconds=time.perf_counter() - began,
            )
        )
        self._n_done += weights.size
        if self._progress:
            self._progress("quantizing", self._n_done, self._n_all)
        return self._values(codes, scales)

    def _chosen(
        self, weights: F32, statistics: Statistics | None
    ) -> tuple[U8, Scales, float, float | None]:
        """Return codes u8 (n_out, n_in), scales, the relative error and that of the search."""
        quantizer = self._job.settings.quantizer
        if isinstance(quantizer, Gptq) and statistics is not None:
            factor = quantizer.factor(statistics, self._target)
            if factor is not None:
                found = quantizer.choose(weights, self._target, factor, statistics)
                whole = max(float(found.energy.sum()), np.finfo(np.float64).tiny)
                lost, base = float(found.losses.sum()), float(found.baseline.sum())
                return found.codes, found.scales, lost / whole, base / whole
        importance = statistics.importance if statistics else np.ones(weights.shape[1], np.float32)
        parts = []
        for start in range(0, len(weights), _SLAB_ROWS):
            rows = weights[start : start + _SLAB_ROWS]
            scales = self._target.fit(rows, importance)
            parts.append((self._target.nearest(rows, scales), scales))
        codes = np.concatenate([part for part, _ in parts])
        scales = Scales(
            *(
                np.concatenate([getattr(s, name) for _, s in parts])
                for name in ("scales", "minima", "units")
            )
        )
        known = statistics.importance if statistics else None
        whole = energy(weights, known)
        lost = energy(weights - self._values(codes, scales), known)
        return codes, scales, lost / whole if whole else 0.0, None

    def _values(self, codes: U8, scales: Scales) -> F32:
        """Return the weights that codes and scales stand for, f32 (n_out, n_in)."""
        target = self._target
        values = np.repeat(scales.scales, target.group, axis=1) * target.levels[codes]
        values -= np.repeat(scales.minima, target.group, axis=1)
        result: F32 = values
        return result


def _zeros(scales: Scales, scheme: ExportScheme) -> U8:
    """Return the code that stands for 0 in each group, u8 (n_out, n_groups)."""
    safe = np.where(scales.scales != 0, scales.scales, 1)
    zeros = scales.minima / safe + np.float32(scheme.half)
    whole = np.rint(zeros)
    assert np.abs(zeros - whole).max() < _WHOLE, "a zero that is no whole number"
    assert 0 <= whole.min() <= whole.max() < 1 << scheme.bits, (whole.min(), whole.max())
    result: U8 = whole.astype(np.uint8)
    return result


def _copied(source: FolderCheckpoint, name: str) -> TensorResult:
    info = source.tensors[name]
    form = info.format.name
    return TensorResult(name, info.shape, form, form, "", "kept", info.nbytes)


def _vectors(source: FolderCheckpoint, linears: dict[str, tuple[int, int]]) -> list[str]:
    """Return the layers' vectors, which folds may change."""
    layers = {name.split(".", 2)[1] for name in linears}
    return [
        name
        for name, info in source.tensors.items()
        if len(info.shape) == 1 and name.startswith("blk.") and name.split(".", 2)[1] in layers
    ]


def _matrix(shape: tuple[int, ...]) -> tuple[int, int]:
    n_out, n_in = shape
    return n_out, n_in
