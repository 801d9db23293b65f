"""What a job will take, before any of it is done: sizes, memory, time."""

from __future__ import annotations

import time
from dataclasses import dataclass
from math import prod

import numpy as np

from quantcli import formats
from quantcli.errors import ResourceError
from quantcli.plan import Buffer
from quantcli.quantize.job import Job, Progress
from quantcli.quantize.plain import QUANTIZER as PLAIN
from quantcli.quantize.recipe import Choice, layer_of
from quantcli.quantize.slabs import SLAB_WEIGHTS, Slab, encode
from quantcli.runtime.memory import size

# Python, NumPy, Numba and LLVM with the kernels of quantizing: measured 160 to 210 MB on Linux.
_RUNTIME_NBYTES = 210 << 20
_SAMPLE_WEIGHTS = 1 << 16  # enough to time an encoder within a tenth, in milliseconds
_LAYER_FACTOR = 1.3  # of a layer in f32: itself, and what packing it for the forward pass adds
_HELD_NBYTES = 1 << 30  # of activations in a layer, at most

# Of a walk, fitted to runs on a small model (2-core AVX-512 x86, 2026-11): passes through each
# layer, products for each pair of inputs and token, width below which GPTQ costs the same for each
# weight, seconds of a factorization and for the cube of its width, and what AWQ tries.
_PASSES = 3.0
_MOMENTS = 1.0
_FIXED = 1000
_FACTOR_S, _FACTOR = 0.05, 1.2e-10
_TRIALS, _TRIAL_ROWS, _TRIAL_COLUMNS = 11, 192, 2048
_SAMPLE_TOKENS, _SAMPLE_WIDTH, _SAMPLE_ROWS, _SAMPLE_FORMAT = 512, 1024, 64, "q4_0"


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


def memory_needed(job: Job, n_threads: int) -> int:
    """Return about the most bytes of memory that the work holds at once."""
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
    widest_input = max(width for width, _ in inputs_of(job))
    total += int(_LAYER_FACTOR * 4 * max(layers.values()))
    total += 2 * 4 * widest_input**2
    # two streams of activations, quantized and original: what enters a layer and what it holds
    entering = 4 * job.settings.n_tokens * job.hyper.d_model
    held = min(_HELD_NBYTES, 4 * job.settings.n_tokens * widest_input)
    return total + 2 * (entering + held)


def require_memory(job: Job, n_threads: int, available: int) -> None:
    """Raise ResourceError if the work does not fit in so many bytes of memory."""
    needed = memory_needed(job, n_threads)
    if needed <= available:
        return
    advice = "use fewer --calib-tokens" if job.settings.by_layer else "close other programs"
    raise ResourceError(
        f"quantizing takes about {size(needed)} of memory and {size(available)} are available; "
        f"{advice}."
    )


def inputs_of(job: Job) -> list[tuple[int, int]]:
    """Return (width, outputs of all matrices that read it) of each input in the layers."""
    outputs: dict[Buffer, int] = {}
    for op in job.plan.ops:
        if op.kind == "linear" and op.layer is not None:
            outputs[op.inputs[0]] = outputs.get(op.inputs[0], 0) + op.output.width
    return [(buffer.width, n_out) for buffer, n_out in outputs.items()]


def seconds_needed(job: Job, n_threads: int, progress: Progress | None = None) -> float:
    """Return about how long the work takes, from measuring a little of each part of it.

    The first call in the life of an installation compiles what it measures, which is not counted.
    """
    seconds = _seconds_of_search(job, progress) / n_threads
    if job.settings.by_layer:
        if progress:
            progress("measuring the speed of this machine", 0, 0)
        seconds += _seconds_of_walk(job, n_threads)
    return seconds


def _seconds_of_search(job: Job, progress: Progress | None) -> float:
    """Return what rounding every tensor takes on one thread, from a sample of each format."""
    statistics = job.settings.statistics
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
        encode(job.checkpoint, PLAIN, statistics, Slab(choice, 0, 1))
        slab = Slab(choice, 0, n_rows)
        began = time.perf_counter()
        encode(job.checkpoint, PLAIN, statistics, slab)
        each = (time.perf_counter() - began) / slab.n_weights
        total += each * sum(c.n_weights for c in some)
    return total


def _seconds_of_walk(job: Job, n_threads: int) -> float:
    """Return what running tokens, adding up moments and GPTQ take.

    Counted in multiplications, at the rates that two samples of them have on this machine.
    """
    n_tokens, folds = job.settings.n_tokens, bool(job.settings.folds)
    is_gptq = job.settings.quantizer.needs == "hessian"
    inputs = inputs_of(job)
    moments, rounding = _seconds_of_products(), _seconds_of_rounding() if is_gptq else 0.0
    products = _PASSES * 2 * sum(width * n_out for width, n_out in inputs) * n_tokens
    if folds or is_gptq:
        products += _MOMENTS * sum(width**2 for width, _ in inputs) * n_tokens
    seconds = products * moments / n_threads
    for width, n_out in inputs:
        tried = (_TRIALS * min(_TRIAL_ROWS, n_out) if folds else 0) + n_out
        seconds += rounding * (_FIXED * width + width**2) * tried / n_threads
        if is_gptq:
            seconds += _seconds_of_factor(width)
            seconds += _TRIALS * _seconds_of_factor(min(width, _TRIAL_COLUMNS)) if folds else 0.0
    return seconds


def _seconds_of_factor(width: int) -> float:
    return _FACTOR_S + _FACTOR * width**3


def _seconds_of_products() -> float:
    """Return the seconds of a multiplication and addition, from adding up second moments."""
    from quantcli.quantize.statistics import Moments
    from quantcli.runtime.executor import Executor

    x = np.ones((_SAMPLE_TOKENS, _SAMPLE_WIDTH), np.float32)
    executor = Executor(1)
    try:
        moments = Moments(_SAMPLE_WIDTH, executor, with_hessian=True)
        moments.add(x)
        began = time.perf_counter()
        moments.add(x)
        return 2 * (time.perf_counter() - began) / (_SAMPLE_TOKENS * _SAMPLE_WIDTH**2)
    finally:
        executor.close()


def _seconds_of_rounding() -> float:
    """Return the seconds of GPTQ for each row and square of its width, from some rows."""
    from quantcli.quantize import MatrixJob, Statistics
    from quantcli.quantize.gptq import Gptq

    n = _SAMPLE_WIDTH
    statistics = Statistics(np.ones(n, np.float32), n, np.eye(n, dtype=np.float32))
    fmt = formats.get(_SAMPLE_FORMAT)
    rows = np.random.default_rng(0).standard_normal((_SAMPLE_ROWS, n)).astype(np.float32)
    quantizer = Gptq(n_threads=1)
    quantizer.quantize(MatrixJob("", rows[:16].copy(), fmt, fmt, statistics))
    began = time.perf_counter()
    quantizer.quantize(MatrixJob("", rows, fmt, fmt, statistics))
    return (time.perf_counter() - began) / (_SAMPLE_ROWS * (_FIXED * n + n**2))
