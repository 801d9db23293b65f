"""A job: everything about a quantization that is known, and checked, before any work."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from hashlib import sha256

import numpy as np

from quantcli import __version__
from quantcli.arch import Hyper, check_tensors, get
from quantcli.checkpoint import Checkpoint, Metadata
from quantcli.checkpoint.gguf_write import TensorSpec, WriteValue, typed
from quantcli.errors import UsageError
from quantcli.plan import Plan
from quantcli.quantize import Fold, LayerWalk, Quantizer, Statistics
from quantcli.quantize.mixes import NEEDS_STATISTICS, OUTPUT
from quantcli.quantize.plain import QUANTIZER as PLAIN
from quantcli.quantize.recipe import Choice, Facts, Recipe, assign, in_layer_order, layer_of

Progress = Callable[[str, int, int], None]  # what is done, how much of it, of how much

_SPLIT_KEYS = ("split.no", "split.count", "split.tensors.count")
_QUANTIZATION_VERSION = 2  # of GGML's block layouts
_SAMPLE_NBYTES = 4096  # of each end of a tensor, to tell one model from another


@dataclass(frozen=True)
class Settings:
    """How to quantize.

    walk         makes the walk of those that go layer by layer; it is told how to report progress
    statistics   by matrix name, for one that goes tensor by tensor
    n_tokens     tokens that such a walk runs through the model
    calibration  what identifies them: a digest of the text, the tokens and the settings
    origin       keys about them for the output's metadata
    """

    recipe: Recipe
    quantizer: Quantizer = PLAIN
    folds: tuple[Fold, ...] = ()
    walk: Callable[[Progress | None], LayerWalk] | None = None
    n_tokens: int = 0
    statistics: Mapping[str, Statistics] = field(default_factory=dict)
    calibration: str = ""
    origin: Mapping[str, WriteValue] = field(default_factory=dict)
    allow_requantize: bool = False

    @property
    def by_layer(self) -> bool:
        """Whether the work goes layer by layer."""
        return self.walk is not None

    @property
    def has_statistics(self) -> bool:
        """Whether anything is known about the inputs."""
        return bool(self.statistics) or self.by_layer

    @property
    def method(self) -> str:
        """What the user calls this, such as "awq + gptq"."""
        return " + ".join([*(fold.name for fold in self.folds), self.quantizer.name])


@dataclass(frozen=True)
class Job:
    """What will be done. `choices` are in the order of the output file, which is that of work."""

    checkpoint: Checkpoint
    settings: Settings
    hyper: Hyper
    plan: Plan
    choices: tuple[Choice, ...]
    metadata: Mapping[str, WriteValue]

    @property
    def specs(self) -> list[TensorSpec]:
        """The output's tensors."""
        return [TensorSpec(c.name, c.shape, c.format) for c in self.choices]

    @property
    def nbytes(self) -> int:
        """Bytes of the output's tensors."""
        return sum(c.nbytes for c in self.choices)

    @property
    def n_weights(self) -> int:
        """Weights of the model."""
        return sum(c.n_weights for c in self.choices)

    @property
    def bits_per_weight(self) -> float:
        """Bits that the output spends on a weight."""
        return 8 * self.nbytes / max(1, self.n_weights)

    def run_id(self) -> str:
        """Return what tells this run from any that would write other bytes."""
        settings = self.settings
        facts = {
            "version": __version__,
            "model": fingerprint(self.checkpoint),
            "formats": [(c.name, c.format.name) for c in self.choices],
            "method": settings.method,
            "options": [repr(part) for part in (settings.quantizer, *settings.folds)],
            "calibration": settings.calibration,
        }
        return sha256(json.dumps(facts).encode()).hexdigest()


def prepare(checkpoint: Checkpoint, settings: Settings) -> Job:
    """Check a model and decide every tensor's format; no weight is looked at.

    Raises UnsupportedModel for an architecture that quantcli does not have, CheckpointError for a
    tensor that is missing, UsageError for a source that is quantized already, unless the settings
    allow it, or a type that needs statistics.
    """
    hyper = Hyper.from_metadata(checkpoint.metadata, checkpoint.tensors)
    plan = get(hyper.arch).build(hyper)
    plan.verify()
    check_tensors(plan, checkpoint.tensors)
    recipe = settings.recipe
    if recipe.mix.name == NEEDS_STATISTICS and not settings.has_statistics:
        raise UsageError(
            f"{recipe.mix.name} without statistics of the inputs gives garbage. "
            "Add --imatrix FILE or --calib builtin, or use q2_k."
        )
    facts = Facts.from_metadata(checkpoint.metadata)
    choices = assign(checkpoint.tensors, facts, recipe, has_imatrix=settings.has_statistics)
    _refuse_lossy(checkpoint, choices, settings)
    order = _work_order(choices, settings)
    metadata = output_metadata(checkpoint.metadata, recipe.mix.file_type, settings.origin)
    return Job(checkpoint, settings, hyper, plan, tuple(choices[n] for n in order), metadata)


def output_metadata(
    metadata: Metadata, file_type: int, origin: Mapping[str, WriteValue]
) -> dict[str, WriteValue]:
    """Return the output's keys: the source's, then those that llama-quantize sets, in its order."""
    keys = typed(metadata)
    for key in _SPLIT_KEYS:
        keys.pop(key, None)
    changed: dict[str, WriteValue] = {
        "general.quantization_version": np.uint32(_QUANTIZATION_VERSION),
        "general.file_type": np.uint32(file_type),
        **origin,
    }
    for key, value in changed.items():
        keys.pop(key, None)
        keys[key] = value
    return keys


def fingerprint(checkpoint: Checkpoint) -> str:
    """Return what tells a model from others without reading all of it.

    Both ends of every tensor are looked at, and all names, shapes and keys.
    """
    digest = sha256()
    for key in checkpoint.metadata:
        digest.update(key.encode())
    for info in checkpoint.tensors.values():
        digest.update(f"{info.name} {info.shape} {info.format.name}".encode())
        n = min(_SAMPLE_NBYTES, info.nbytes)
        for start in (0, info.nbytes - n):
            sample = np.empty(n, np.uint8)
            checkpoint.read_into(info.name, sample, start)
            digest.update(sample.data)
    return digest.hexdigest()


def _work_order(choices: Mapping[str, Choice], settings: Settings) -> list[str]:
    """Return the order of the output: llama-quantize's, or that in which layers are done."""
    names = in_layer_order(choices)
    if not settings.by_layer:
        return names
    # an embedding that is also the output matrix waits for the statistics of the last norm
    last = {OUTPUT, "output_norm.weight"} | (set() if OUTPUT in choices else {"token_embd.weight"})
    outside = [n for n in names if layer_of(n) is None]
    inside = [n for n in names if layer_of(n) is not None]
    return [n for n in outside if n not in last] + inside + [n for n in outside if n in last]


def _refuse_lossy(
    checkpoint: Checkpoint, choices: Mapping[str, Choice], settings: Settings
) -> None:
    folded = bool(settings.folds)  # even where the format stays, weights are rounded anew
    twice = [
        c
        for c in choices.values()
        if c.loses_twice or (folded and c.reason != "kept" and c.is_lossy)
    ]
    if not twice or settings.allow_requantize:
        return
    names = sorted({c.source.name for c in twice})
    raise UsageError(
        f"{checkpoint.paths[0].name}: {len(twice)} of {len(choices)} tensors are quantized "
        f"already ({', '.join(names)}); rounding them again loses more than quantizing the "
        "original. Use the 16-bit original, or add --allow-requantize."
    )
