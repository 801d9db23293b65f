"""What a job will take, before any of it is done: sizes, memory, time."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from math import prod

from quantcli.quantize.job import Job
from quantcli.quantize.mixes import kind_of
from quantcli.quantize.plain import QUANTIZER as PLAIN
from quantcli.quantize.recipe import Choice, layer_of
from quantcli.quantize.slabs import SLAB_WEIGHTS, Slab, encode

# Python, NumPy, Numba and LLVM with the kernels of quantizing: measured 160 to 210 MB on Linux.
_RUNTIME_NBYTES = 210 << 20
_SAMPLE_WEIGHTS = 1 << 16  # enough to time an encoder within a tenth, in milliseconds
_LAYER_FACTOR = 1.3  # of a layer in f32: itself, and what packing it for the forward pass adds


@dataclass(frozen=True, slots=True)
class Row:
    """Tensors of one kind that are treated alike.

    wanted   the format they were to get, where their rows did not fit that
    """

    kind: str
    shape: tuple[int, ...]
    source: str
    format: str
    wanted: str
    reason: str
    count: int
    n_weights: int
    nbytes: int

    @property
    def bits_per_weight(self) -> float:
        """Bits of a weight."""
        return 8 * self.nbytes / max(1, self.n_weights)


def table(job: Job) -> list[Row]:
    """Return the job's tensors by kind and treatment, in the order of the output."""
    found: dict[tuple[object, ...], list[Choice]] = {}
    for choice in job.choices:
        key = (short_name(choice.name), choice.shape, choice.source.name, choice.format.name)
        found.setdefault((*key, choice.wanted, choice.reason), []).append(choice)
    return [
        Row(
            kind=short_name(some[0].name),
            shape=some[0].shape,
            source=some[0].source.name,
            format=some[0].format.name,
            wanted=some[0].wanted if some[0].wanted != some[0].format.name else "",
            reason=some[0].reason,
            count=len(some),
            n_weights=sum(c.n_weights for c in some),
            nbytes=sum(c.nbytes for c in some),
        )
        for some in found.values()
    ]


def short_name(name: str) -> str:
    """Return a tensor's name without its layer and without "weight": "ffn_down", "output"."""
    parts = [part for part in name.split(".") if not part.isdigit() and part != "blk"]
    return ".".join(parts).removesuffix(".weight")


def memory_needed(job: Job, n_threads: int, n_tokens: int = 0) -> int:
    """Return about the most bytes of memory that the work holds at once.

    n_tokens  calibration tokens that run through the layers
    """
    widest = max(c.shape[-1] for c in job.choices)
    slab = 4 * max(SLAB_WEIGHTS, widest) * 3  # the rows, their blocks, and a temporary array
    total = _RUNTIME_NBYTES + (2 * n_threads + 1) * slab
    if not job.settings.by_layer:
        return total
    layers: dict[int, int] = {}
    for choice in job.choices:
        layer = layer_of(choice.name)
        if layer is not None:
            layers[layer] = layers.get(layer, 0) + choice.n_weights
    widths = [c.shape[-1] for c in job.choices if kind_of(c.name) not in ("token_embd", "other")]
    total += int(_LAYER_FACTOR * 4 * max(layers.values()))
    total += 2 * 4 * max(widths) ** 2
    return total + 2 * 4 * n_tokens * job.hyper.d_model


def seconds_needed(
    job: Job, n_threads: int, progress: Callable[[str, int, int], None] | None = None
) -> float:
    """Return about how long the search for codes takes, from encoding a little of each format.

    The first call in the life of an installation compiles the encoders, which is not counted.
    """
    settings = job.settings
    quantizer = PLAIN if settings.quantizer.needs == "hessian" else settings.quantizer
    groups: dict[tuple[str, str], list[Choice]] = {}
    for choice in job.choices:
        key = (choice.source.name, choice.format.name if choice.changes else "")
        groups.setdefault(key, []).append(choice)
    total = 0.0
    for i, some in enumerate(groups.values()):
        if progress:
            progress("measuring the speed of this machine", i, len(groups))
        choice = max(some, key=lambda c: c.n_weights)
        n_rows = min(prod(choice.shape[:-1]) or 1, max(1, _SAMPLE_WEIGHTS // choice.shape[-1]))
        n_rows = min(n_rows, choice.shape[-2] if len(choice.shape) > 1 else 1)
        encode(job.checkpoint, quantizer, settings.statistics, Slab(choice, 0, 1))
        slab = Slab(choice, 0, n_rows)
        began = time.perf_counter()
        encode(job.checkpoint, quantizer, settings.statistics, slab)
        each = (time.perf_counter() - began) / slab.n_weights
        total += each * sum(c.n_weights for c in some)
    return total / n_threads
