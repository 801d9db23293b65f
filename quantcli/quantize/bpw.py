"""The best mix of formats at a size: measured errors, weighted by what they do, and a budget.

The loss of a model is taken as a sum over its matrices, sensitivity of the matrix times relative
output error of its format: both small, so that losses add up. Least loss within a budget of bytes
is a multiple-choice knapsack, solved by dynamic programming (Kellerer, Pferschy and Pisinger,
"Knapsack Problems", 2004, section 11.5).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import gcd, prod

import numpy as np
import numpy.typing as npt

from quantcli import formats
from quantcli.checkpoint import Checkpoint
from quantcli.errors import UsageError
from quantcli.formats import F32, BlockFormat
from quantcli.quantize import Statistics
from quantcli.quantize.fallback import fits
from quantcli.quantize.job import Job, prepare
from quantcli.quantize.mixes import OUTPUT
from quantcli.quantize.plain import QUANTIZER as PLAIN
from quantcli.quantize.recipe import Choice
from quantcli.quantize.sensitivity import Sensitivity
from quantcli.quantize.slabs import Slab, encode_weights, read_weights

Progress = Callable[[str, int, int], None]

CANDIDATES = (
    "q2_k",
    "q3_k",
    "mxfp4",
    "iq4_xs",
    "q4_k",
    "iq4_nl",
    "q4_0",
    "q5_k",
    "q5_0",
    "q5_1",
    "q6_k",
    "q8_0",
)
_MAX_CELLS = 60_000_000  # of the table of choices, a byte each
_N_SAMPLES = 8  # places of a matrix where rows are looked at
_SAMPLE_WEIGHTS = 1 << 16  # of a matrix: its error is then known within a few percent


@dataclass(frozen=True, slots=True)
class Option:
    """What a matrix could become: bytes, and the loss that goes with it."""

    format: str
    nbytes: int
    loss: float


@dataclass(frozen=True, slots=True)
class Allocation:
    """The formats that were chosen, what they take, and the loss that is expected."""

    formats: dict[str, str]
    nbytes: int
    loss: float


def allocate(options: Mapping[str, Sequence[Option]], budget: int) -> Allocation:
    """Choose one option for each name: least loss, at most `budget` bytes in all.

    Exact where sizes have a large common divisor, as those of most models have; else sizes are
    rounded up by a hundred thousandth or so of the budget, and what that leaves is spent after.

    Raises ValueError if not even the smallest options fit.
    """
    useful = {name: _useful(some) for name, some in options.items()}
    nbytes = sum(some[0].nbytes for some in useful.values())
    if nbytes > budget:
        raise ValueError(nbytes)
    chosen = _least_loss(useful, budget - nbytes)
    chosen = _spend(useful, chosen, budget - sum(o.nbytes for o in chosen.values()))
    return Allocation(
        {name: option.format for name, option in chosen.items()},
        sum(option.nbytes for option in chosen.values()),
        sum(option.loss for option in chosen.values()),
    )


def _useful(some: Sequence[Option]) -> list[Option]:
    """Return the options that lose less than every smaller one, from the smallest on."""
    kept: list[Option] = []
    for option in sorted(some, key=lambda o: (o.nbytes, o.loss)):
        if not kept or (option.loss < kept[-1].loss and option.nbytes > kept[-1].nbytes):
            kept.append(option)
    return kept


def _least_loss(options: Mapping[str, Sequence[Option]], surplus: int) -> dict[str, Option]:
    """Choose by dynamic programming over what is spent beyond the smallest options."""
    extra = {name: [o.nbytes - some[0].nbytes for o in some] for name, some in options.items()}
    surplus = min(surplus, sum(sizes[-1] for sizes in extra.values()))
    unit = gcd(*(size for sizes in extra.values() for size in sizes)) or 1
    unit = max(unit, -(-surplus * len(options) // _MAX_CELLS))
    n = surplus // unit + 1
    least = np.zeros(n)  # loss of the names so far, for each number of units to spend
    picks: list[npt.NDArray[np.uint8]] = []
    for name, some in options.items():
        best = least + some[0].loss
        pick = np.zeros(n, np.uint8)
        for i, option in enumerate(some[1:], 1):
            cost = -(-extra[name][i] // unit)
            if cost < n:
                with_it = least[: n - cost] + option.loss
                better = with_it < best[cost:]
                best[cost:][better] = with_it[better]
                pick[cost:][better] = i
        least = best
        picks.append(pick)
    chosen: dict[str, Option] = {}
    left = n - 1
    for name, pick in zip(reversed(list(options)), reversed(picks), strict=True):
        i = int(pick[left])
        chosen[name] = options[name][i]
        left -= -(-extra[name][i] // unit)
    return {name: chosen[name] for name in options}


def _spend(
    options: Mapping[str, Sequence[Option]], chosen: dict[str, Option], left: int
) -> dict[str, Option]:
    """Spend what is left, each time on the change that lowers the loss most."""
    while True:
        changes = [
            (option.loss - chosen[name].loss, name, option)
            for name, some in options.items()
            for option in some
            if option.loss < chosen[name].loss and option.nbytes - chosen[name].nbytes <= left
        ]
        if not changes:
            return chosen
        _, name, option = min(changes, key=lambda change: change[:2])
        left -= option.nbytes - chosen[name].nbytes
        chosen = {**chosen, name: option}


def measured_errors(
    checkpoint: Checkpoint,
    choices: Sequence[Choice],
    candidates: Sequence[str],
    statistics: Mapping[str, Statistics],
    *,
    n_threads: int,
    progress: Progress | None = None,
) -> dict[str, dict[str, float]]:
    """Return each matrix's relative output error in each format that its rows fit.

    Some rows of each are encoded, the same ones for every format, weighted by what is known of
    its inputs. Raises ModelError for a weight that is not finite.
    """
    from concurrent.futures import ThreadPoolExecutor

    found: dict[str, dict[str, float]] = {}
    work = partial(_errors_of, checkpoint, candidates=candidates, statistics=statistics)
    with ThreadPoolExecutor(n_threads, thread_name_prefix="measure") as pool:
        for i, (choice, errors) in enumerate(zip(choices, pool.map(work, choices), strict=True)):
            found[choice.name] = errors
            if progress:
                progress("measuring errors", i + 1, len(choices))
    return found


def _errors_of(
    checkpoint: Checkpoint,
    choice: Choice,
    *,
    candidates: Sequence[str],
    statistics: Mapping[str, Statistics],
) -> dict[str, float]:
    """Return one matrix's errors by format."""
    slabs = _sample(choice)
    known = statistics.get(choice.name)
    errors: dict[str, float] = {}
    for slab in slabs:
        weights: F32 = read_weights(checkpoint, slab)
        for name in candidates:
            fmt: BlockFormat = formats.get(name)
            if not fits(name, choice.shape[-1]):
                continue
            part = replace(slab, choice=replace(choice, format=fmt))
            encoded = encode_weights(PLAIN, known, part, weights.copy())
            errors[name] = errors.get(name, 0.0) + (encoded.error or 0.0) / len(slabs)
    return errors


def _sample(choice: Choice) -> list[Slab]:
    """Return some evenly spread rows of a matrix."""
    n_rows = prod(choice.shape[:-1])
    each = max(1, min(n_rows, _SAMPLE_WEIGHTS // choice.shape[-1]) // _N_SAMPLES)
    n = min(_N_SAMPLES, n_rows // each)
    rows_per_expert = choice.shape[-2]
    found = []
    for i in range(n):
        start = i * (n_rows - each) // max(1, n - 1) if n > 1 else 0
        expert = start // rows_per_expert
        start = min(start, (expert + 1) * rows_per_expert - each)  # of one expert alone
        found.append(Slab(choice, start, start + each, expert))
    return found


def resized(
    job: Job,
    bits_per_weight: float,
    *,
    sensitivity: Sensitivity | None = None,
    n_threads: int,
    progress: Progress | None = None,
) -> Job:
    """Return a job with the formats that lose least at a size; what the user has set stays.

    bits_per_weight  of the whole file's tensors, at most
    sensitivity      what matters in this model; None: what matters in others

    Raises UsageError if the size cannot be reached, ModelError for a weight that is not finite.
    """
    least = least_bits(job)
    if bits_per_weight < least:
        raise UsageError(
            f"{bits_per_weight:.4g} bits per weight cannot be reached: this model takes at least "
            f"{least:.3f}. Ask for more."
        )
    free = free_choices(job)
    fixed = job.nbytes - sum(c.nbytes for c in free)
    budget = int(bits_per_weight * job.n_weights / 8) - fixed
    settings = job.settings
    errors = measured_errors(
        job.checkpoint,
        free,
        CANDIDATES,
        settings.statistics,
        n_threads=n_threads,
        progress=progress,
    )
    if sensitivity is None:
        sensitivity = Sensitivity(job.hyper.n_layers, OUTPUT not in job.checkpoint.tensors)
    options = {c.name: _options(c, errors[c.name], sensitivity) for c in free}
    recipe = replace(settings.recipe, exact=allocate(options, budget).formats)
    return prepare(job.checkpoint, replace(settings, recipe=recipe))


def bits_to_keep(job: Job) -> float | None:
    """Return the bits of a weight to choose formats for: those asked for, or those of the type.

    None for a type where every row fits, where llama.cpp's fallbacks or one format everywhere are
    wanted, and where the size cannot be reached with blocks that rows fit.
    """
    recipe = job.settings.recipe
    if recipe.bits is not None:
        return recipe.bits
    has_fallen = any(c.reason == "fallback" for c in job.choices)
    if not has_fallen or recipe.policy != "size" or recipe.pure:
        return None
    bits = nominal_bits(job)
    return bits if bits >= least_bits(job) else None


def nominal_bits(job: Job) -> float:
    """Return the bits of a weight that the type would spend if every row fitted its format."""
    nbits = sum(formats.get(c.wanted).bits_per_weight * c.n_weights for c in job.choices)
    return nbits / max(1, job.n_weights)


def least_bits(job: Job) -> float:
    """Return the bits of a weight below which no choice of formats gets a model."""
    free = free_choices(job)
    nbytes = job.nbytes - sum(c.nbytes for c in free)
    for choice in free:
        n_rows, n_in = prod(choice.shape[:-1]), choice.shape[-1]
        fitting = [formats.get(name) for name in CANDIDATES if fits(name, n_in)]
        sizes = [fmt.row_nbytes(n_in) for fmt in fitting] or [2 * n_in]
        nbytes += n_rows * min(sizes)
    return 8 * nbytes / job.n_weights


def free_choices(job: Job) -> list[Choice]:
    """Return the tensors whose formats are to be chosen for a size.

    Of a type only those that its formats do not fit: the others stay as the type has them.
    """
    open_reasons = ("fallback", "size") + (("mix",) if job.settings.recipe.bits else ())
    return [c for c in job.choices if c.reason in open_reasons]


def _options(choice: Choice, errors: Mapping[str, float], sensitivity: Sensitivity) -> list[Option]:
    weight = sensitivity.of(choice.name)
    n_rows, n_in = prod(choice.shape[:-1]), choice.shape[-1]
    options = []
    for name, error in errors.items():
        nbytes = n_rows * formats.get(name).row_nbytes(n_in)
        options.append(Option(name, nbytes, weight * error))
    if not options:  # rows that fit no block
        options.append(Option("f16", 2 * n_rows * n_in, 0.0))
    return options
