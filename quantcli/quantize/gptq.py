"""GPTQ onto block grids: error feedback, then coordinate descent; never worse than the search.

Rows go in slabs, on threads of their own: a row's codes depend on that row alone, so that neither
slabs nor threads change a byte. For each row the better of the result and the plain search's is
kept, by tr(dW H dW^T) over the calibration tokens.
"""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from threading import Lock

import numpy as np
import numpy.typing as npt

from quantcli.formats import F32, U8
from quantcli.kernels.quantize import descent, gptq
from quantcli.kernels.quantize.lanes import LANES, LINE
from quantcli.kernels.quantize.layouts import LAYOUTS
from quantcli.quantize import MatrixJob, MatrixResult, Needs, Quantizer, Statistics
from quantcli.quantize.factor import Factor, default_shrink, factorize
from quantcli.quantize.plain import QUANTIZER as PLAIN
from quantcli.quantize.targets import BlockTarget, Scales, Target
from quantcli.runtime.threads import default_threads

F64 = npt.NDArray[np.float64]

_SLAB_ROWS = 128
_FIRST_DAMPING = 0.003


@dataclass(frozen=True, slots=True)
class Chosen:
    """Codes of some rows and what they cost.

    codes     u8 (n_rows, n_in)
    scales    of all their blocks
    losses    f64 (n_rows,)   e H e^T of each row
    baseline  f64 (n_rows,)   that of the plain search
    energy    f64 (n_rows,)   w H w^T
    """

    codes: U8
    scales: Scales
    losses: F64
    baseline: F64
    energy: F64


@dataclass
class Gptq:
    """GPTQ with a search for scales on the way, coordinate descent on codes and scales after it.

    shrink    how far H is shrunk toward its diagonal; None: by the number of tokens
    damping   added to its diagonal, relative to the mean; doubled until H is definite
    n_rounds  of coordinate descent
    """

    name: str = "gptq"
    needs: Needs = "hessian"
    shrink: float | None = None
    damping: float = _FIRST_DAMPING
    n_rounds: int = 4
    n_threads: int | None = field(default=None, repr=False)
    _cache: _Cache = field(default_factory=lambda: _Cache(), repr=False, compare=False)

    def quantize(self, job: MatrixJob) -> MatrixResult:
        """Return the matrix in the job's format; never worse than the search alone."""
        start = time.perf_counter()
        statistics = job.statistics
        if job.format.name not in LAYOUTS:
            return PLAIN.quantize(job)
        if statistics is None or statistics.hessian is None:  # experts have their importance
            return PLAIN.quantize(job)
        target = BlockTarget(job.format)
        factor = self.factor(statistics, target)
        if factor is None:
            why = "its Hessian cannot be factored" if statistics.n_tokens else "no token reached it"
            return _with_note(PLAIN.quantize(job), f"{job.name}: {why}; plain search instead.")
        chosen = self.choose(job.weight, target, factor, statistics)
        energy = max(float(chosen.energy.sum()), np.finfo(np.float64).tiny)
        notes: tuple[str, ...] = ()
        if factor.damping > self.damping:
            notes = (f"{job.name}: damped by {factor.damping:g} of its Hessian's mean diagonal.",)
        return MatrixResult(
            data=target.assemble(chosen.scales, chosen.codes).reshape(-1),
            error=float(chosen.losses.sum()) / energy,
            baseline=float(chosen.baseline.sum()) / energy,
            notes=notes,
            seconds=time.perf_counter() - start,
        )

    def for_trials(self) -> Gptq:
        """Return the same with less polish: what loses more with it loses more without."""
        return replace(self, n_rounds=min(self.n_rounds, 1), _cache=_Cache())

    def factor(self, statistics: Statistics, target: Target) -> Factor | None:
        """Return a Hessian ready for a kind of blocks; kept for the next matrix that shares it."""
        assert statistics.hessian is not None
        shrink = self.shrink
        if shrink is None:
            shrink = default_shrink(len(statistics.hessian), statistics.n_tokens)
        return self._cache.get(statistics, target.width, shrink, self.damping)

    def choose(
        self, weights: F32, target: Target, factor: Factor, statistics: Statistics
    ) -> Chosen:
        """Return codes and scales of f32 (n_rows, n_in) on a kind of grid."""
        n_rows = len(weights)
        starts = range(0, n_rows, _SLAB_ROWS)

        def one(start: int) -> Chosen:
            rows = np.ascontiguousarray(weights[start : start + _SLAB_ROWS], np.float32)
            return _Slab(rows, target, factor).choose(statistics.importance, self.n_rounds)

        n_threads = min(self.n_threads or default_threads(), len(starts))
        if n_threads <= 1:
            return _join([one(start) for start in starts])
        with ThreadPoolExecutor(n_threads) as pool:
            return _join(list(pool.map(one, starts)))


class _Cache:
    """The last factorization, for matrices that share an input."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._key: tuple[object, ...] = ()
        self._statistics: Statistics | None = None  # held, so that its id stays its own
        self._factor: Factor | None = None

    def get(
        self, statistics: Statistics, width: int, shrink: float, damping: float
    ) -> Factor | None:
        with self._lock:
            key = (id(statistics), width, shrink, damping)
            if key != self._key:
                self._factor = None  # before the next is made, or there would be two
                assert statistics.hessian is not None
                self._factor = factorize(statistics.hessian, width, shrink=shrink, damping=damping)
                self._key, self._statistics = key, statistics
            return self._factor


class _Slab:
    """Some rows on their way, in panels of 16 with columns in the order of work."""

    def __init__(self, rows: F32, target: Target, factor: Factor) -> None:
        self.rows = rows
        self.target = target
        self.factor = factor
        self.n_rows, self.n = rows.shape
        self.width = factor.width
        self.n_groups = self.width // target.group
        self.n_blocks = self.n // self.width
        self.n_panels = -(-self.n_rows // LANES)
        self.weights = to_lines(rows[:, factor.order])
        self.errors = np.zeros_like(self.weights)
        self.codes = np.zeros(self.weights.shape, np.uint8)
        grid = (self.n_blocks, self.n_panels, self.n_groups, LANES)
        self.scales, self.minima = np.zeros(grid, np.float32), np.zeros(grid, np.float32)
        self.units = np.zeros((self.n_blocks, self.n_panels, 2, LANES), np.float32)
        self.groups = [np.ascontiguousarray(inner // target.group) for inner in factor.inner]
        self.members = [np.argsort(groups, kind="stable") for groups in self.groups]
        self._levels = np.ascontiguousarray(target.levels, np.float32)
        self._is_uniform = bool((np.diff(self._levels) == 1).all())

    def choose(self, importance: F32, n_rounds: int) -> Chosen:
        """Run everything and return the better of the result and the plain search's."""
        energy = self._losses(self.weights, is_error=False)
        scales = self.target.fit(self.rows, importance)
        codes = self.target.nearest(self.rows, scales)
        plain = self.rows - self._values(codes, scales)
        baseline = self._losses(to_lines(plain[:, self.factor.order]))
        del plain
        for k in range(self.n_blocks):
            self._feed_back(k)
        for _ in range(n_rounds):
            for k in range(self.n_blocks):
                self._descend(k)
        losses = self._losses(self.errors)
        ours, our_scales = self._in_order()
        worse = losses > baseline
        ours[worse] = codes[worse]
        for mine, its in (
            (our_scales.scales, scales.scales),
            (our_scales.minima, scales.minima),
            (our_scales.units, scales.units),
        ):
            mine[worse] = its[worse]
        return Chosen(ours, our_scales, np.minimum(losses, baseline), baseline, energy)

    def _feed_back(self, k: int) -> None:
        """Find scales for a block's weights as they are by now, and choose its codes."""
        width, factor = self.width, self.factor
        moved = np.empty((self.n_panels, width, LANES), np.float32)
        targets = np.empty_like(moved)
        a = np.zeros(1, gptq.ARGS)
        self._describe(a, k)
        a["operand"], a["factor"] = factor.carried[k].ctypes.data, factor.factors[k].ctypes.data
        a["moved"], a["targets"] = moved.ctypes.data, targets.ctypes.data
        gptq.carry(a.ctypes.data)
        wanted = np.empty((self.n_rows, width), np.float32)
        wanted[:, factor.inner[k]] = from_lines(targets, self.n_rows)
        columns = slice(factor.blocks[k] * width, (factor.blocks[k] + 1) * width)
        found = self.target.fit(wanted, factor.importance[columns])
        self.scales[k], self.minima[k] = to_lines(found.scales), to_lines(found.minima)
        self.units[k] = to_lines(found.units[:, 0])
        gptq.feedback(a.ctypes.data)

    def _descend(self, k: int) -> None:
        """Improve a block's scales and codes, given all others."""
        target, factor = self.target, self.factor
        a = np.zeros(1, descent.ARGS)
        self._describe(a, k)
        a["n_all"], a["members"] = self.n, self.members[k].ctypes.data
        a["operand"], a["hessian"] = factor.operands[k].ctypes.data, factor.hessians[k].ctypes.data
        a["units"] = self.units[k].ctypes.data
        a["rounding"], a["has_minima"] = target.rounding, target.has_minima
        a["s_low"], a["s_high"] = target.s_range
        a["m_low"], a["m_high"] = target.m_range
        a["n_sweeps"] = 1
        memory = np.empty(descent.scratch_nbytes(self.width), np.uint8)
        a["scratch"] = _aligned(memory)
        descent.descend(a.ctypes.data)

    def _describe(self, a: np.ndarray, k: int) -> None:
        """Fill in what both kernels are told."""
        a["n_panels"], a["panel_nbytes"] = self.n_panels, LINE * self.n
        a["n_before"], a["n_columns"] = k * self.width, self.width
        a["weights"], a["errors"] = self.weights.ctypes.data, self.errors.ctypes.data
        a["codes"] = self.codes.ctypes.data
        a["scales"], a["minima"] = self.scales[k].ctypes.data, self.minima[k].ctypes.data
        a["n_groups"], a["groups"] = self.n_groups, self.groups[k].ctypes.data
        a["levels"], a["n_levels"] = self._levels.ctypes.data, len(self._levels)
        a["is_uniform"] = self._is_uniform

    def _losses(self, lines: F32, *, is_error: bool = True) -> F64:
        """Return x H x^T of each row, H as calibration found it, in the order of work."""
        factor = self.factor
        total = np.zeros((self.n_panels, LANES), np.float32)
        memory = np.empty((self.width + 1) * LINE, np.uint8)
        a = np.zeros(1, descent.LOSS_ARGS)
        a["n_panels"], a["panel_nbytes"], a["n_all"] = self.n_panels, LINE * self.n, self.n
        a["n_columns"], a["rows"] = self.width, lines.ctypes.data
        a["total"], a["scratch"] = total.ctypes.data, _aligned(memory)
        for k in range(self.n_blocks):
            a["n_before"], a["operand"] = k * self.width, factor.operands[k].ctypes.data
            descent.add_loss(a.ctypes.data)
        squares = np.einsum("pil,pil,i->pl", lines, lines, factor.added, dtype=np.float64)
        exact = (total - squares) / (1 - factor.shrink)
        losses: F64 = np.maximum(exact.reshape(-1)[: self.n_rows], 0)
        return losses

    def _values(self, codes: U8, scales: Scales) -> F32:
        """Return the weights that codes and scales stand for."""
        scale = np.repeat(scales.scales, self.target.group, axis=1)
        values = scale * self._levels[codes]
        values -= np.repeat(scales.minima, self.target.group, axis=1)
        return values

    def _in_order(self) -> tuple[U8, Scales]:
        """Return codes and scales as rows, in the matrix's order."""
        factor = self.factor
        codes = np.empty((self.n_rows, self.n), np.uint8)
        codes[:, factor.order] = from_lines(self.codes, self.n_rows)
        shape = (self.n_rows, self.n_blocks, -1)
        arrays = []
        for grid in (self.scales, self.minima, self.units):
            rows = np.stack([from_lines(block, self.n_rows) for block in grid], axis=1)
            natural = np.empty_like(rows)
            natural[:, factor.blocks] = rows
            arrays.append(natural)
        scales, minima, units = arrays
        flat = (self.n_rows, -1)
        return codes, Scales(scales.reshape(flat), minima.reshape(flat), units.reshape(shape))


def to_lines(rows: F32) -> F32:
    """Return rows f32 (n_rows, n) as lines f32 (n_panels, n, 16); lanes behind the last are 0."""
    n_rows, n = rows.shape
    padded = np.zeros((-(-n_rows // LANES) * LANES, n), np.float32)
    padded[:n_rows] = rows
    return np.ascontiguousarray(padded.reshape(-1, LANES, n).transpose(0, 2, 1))


def from_lines(lines: npt.NDArray[np.generic], n_rows: int) -> npt.NDArray[np.generic]:
    """Return lines (n_panels, n, 16) as rows (n_rows, n)."""
    n = lines.shape[1]
    return lines.transpose(0, 2, 1).reshape(-1, n)[:n_rows]


def _aligned(memory: U8) -> int:
    address = int(memory.ctypes.data)
    return address + -address % LINE


def _join(parts: list[Chosen]) -> Chosen:
    if len(parts) == 1:
        return parts[0]
    grid = Scales(
        *(
            np.concatenate([getattr(part.scales, name) for part in parts])
            for name in ("scales", "minima", "units")
        )
    )
    names = ("losses", "baseline", "energy")
    losses = [np.concatenate([getattr(part, name) for part in parts]) for name in names]
    return Chosen(np.concatenate([part.codes for part in parts]), grid, *losses)


def _with_note(result: MatrixResult, note: str) -> MatrixResult:
    return MatrixResult(
        result.data, result.error, result.baseline, (*result.notes, note), result.seconds
    )


QUANTIZER: Quantizer = Gptq()
