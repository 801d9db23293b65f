"""A model loaded under one setting for a part of `bench`'s tests, and what is measured of it."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from quantcli.cli.bench_results import Result, Row

if TYPE_CHECKING:
    from types import ModuleType

    from quantcli.checkpoint import Checkpoint
    from quantcli.cli.bench_grid import Setting
    from quantcli.cli.render import StatusLine
    from quantcli.evaluate.machine import Demand, Limits, Peaks
    from quantcli.evaluate.peak_memory import PeakMemory
    from quantcli.evaluate.peer import Peer
    from quantcli.evaluate.throughput import Runner, Throughput, Workload
    from quantcli.runtime.model import Model

Progress = Callable[[str, int, int], None]

_REST_S = 0.05  # between our run and the peer's, for threads that wait busily to go to sleep
_MAX_FIRST_TOKENS = 3  # runs of the wait for the first token
_PER_SEQUENCE = 0.1  # about what another sequence adds to a step


@dataclass(frozen=True, slots=True)
class Asked:
    """What is the same for every model and setting."""

    repetitions: int
    warmup: bool
    ctx: int | None
    cache: str
    backend: str
    library: ModuleType | None = None  # the peer's
    adapters: tuple[tuple[Path, float], ...] = ()


@dataclass
class Part:
    """A loaded model, and the peer's, ready to be measured. Lives on the worker."""

    asked: Asked
    setting: Setting
    checkpoint: Checkpoint
    model: Model
    load_s: tuple[float, float]  # kernels, then weights
    memory: PeakMemory
    peer: Peer | None = None
    runners: list[Runner] = field(default_factory=list)
    step_s: tuple[float, float] = (0.0, 0.0)  # a prompt's token, a step of generation
    first_token: tuple[float | None, int] = (None, 0)  # seconds, tokens of the prompt
    rows: list[Row] = field(default_factory=list)
    _demand: Demand | None = None
    _peaks: Peaks | None = None
    _memory_before: int | None = None

    @property
    def title(self) -> str:
        """What the file calls the model, and its adapters."""
        name = str(self.checkpoint.metadata.get("general.name", self.checkpoint.paths[0].name))
        return " + ".join([name, *(adapter.path.stem for adapter in self.checkpoint.adapters)])

    @property
    def rest_s(self) -> float:
        """The pause between runs."""
        return _REST_S if self.peer else 0.0

    def prepare(self, n_prompt: int, progress: Progress) -> None:
        """Measure what is needed before the tests: their cost, the first token, the machine.

        n_prompt   tokens of the prompt whose first token is waited for; 0 for none
        """
        from quantcli.evaluate.throughput import Runner, estimate

        progress("measuring briefly how long it will take", 0, 0)
        self.runners = [Runner(self.model)]
        if self.peer is not None:
            self.runners.append(Runner(self.peer))
        self.step_s = estimate(self.runners[0])
        if n_prompt:
            self.first_token = (self._first_token_s(n_prompt), n_prompt)
        self._memory_before = self.memory.nbytes()
        if self.model.is_compiled:
            self._measure_machine()

    def limits(self) -> Limits | None:
        """Return what the machine does at most right now, None without compiled kernels."""
        return self._peaks.sample() if self._peaks is not None else None

    def cost_s(self, workload: Workload, depth_before: int) -> tuple[float, float]:
        """Return about how long it takes to fill the context, and to run a test."""
        token_s, step_s = self.step_s
        fill_s = max(0, workload.depth - depth_before) * workload.n_sequences * token_s
        if workload.kind == "pp":
            run_s = workload.n_tokens * token_s
        else:
            run_s = workload.n_tokens * step_s * (1 + _PER_SEQUENCE * (workload.n_sequences - 1))
        n_runs = (self.asked.repetitions + self.asked.warmup) * len(self.runners)
        return fill_s * len(self.runners), run_s * n_runs

    def row(
        self, workload: Workload, seconds: Sequence[Sequence[float]], limits: Limits | None
    ) -> Row:
        """Return what a test showed; a peer that was not reached has no result."""
        from quantcli.evaluate.throughput import Throughput

        ours = self._result(Throughput(workload, tuple(seconds[0])))
        if limits is not None and self._demand is not None:
            ours = _with_shares(ours, workload, limits, self._demand)
        theirs = None
        if self.peer is not None and seconds[1]:
            theirs = replace(
                self._result(Throughput(workload, tuple(seconds[1]))),
                program=self.peer.name,
                backends="CPU",
                instruction_set="",
                kernels_s=None,
                load_s=None,
                first_token_s=None,
                first_token_prompt=0,
            )
        return Row(ours, theirs)

    def finished(self) -> list[Row]:
        """Return the rows so far, with the peak of memory, which comes last."""
        peak = self._peak_nbytes()
        return [replace(r, ours=replace(r.ours, peak_memory_nbytes=peak)) for r in self.rows]

    def close(self) -> None:
        """Give everything back."""
        self._peaks = None
        if self.peer is not None:
            self.peer.close()
        self.model.close()
        self.checkpoint.close()

    def _first_token_s(self, n_prompt: int) -> float:
        from quantcli.evaluate.latency import first_token_s

        sampler = "compiled" if self.model.is_compiled else "reference"
        n_runs = min(_MAX_FIRST_TOKENS, self.asked.repetitions)
        return statistics.median(
            first_token_s(self.model, n_prompt, sampler=sampler) for _ in range(n_runs)
        )

    def _measure_machine(self) -> None:
        from quantcli.evaluate.machine import Demand, Peaks

        formats = {name: info.format.name for name, info in self.checkpoint.tensors.items()}
        self._demand = Demand.of(self.model.plan, formats, self.setting.kv_type)
        self._peaks = Peaks(self.model.run_op, self.model.n_threads)

    def _peak_nbytes(self) -> int | None:
        """Return the peak of the model's own memory: the buffers of the peaks are not its own."""
        now = self.memory.nbytes()
        if now is None or self.peer is not None:
            return None
        buffers = self._peaks.nbytes if self._peaks is not None else 0
        return max(self._memory_before or 0, now - buffers)

    def _result(self, measured: Throughput) -> Result:
        """Return one result with all that is needed to read it later."""
        from quantcli import __version__
        from quantcli.cli.machine import cpu_name
        from quantcli.kernels.isa import select

        workload, checkpoint = measured.workload, self.checkpoint
        ns = tuple(round(s * 1e9) for s in measured.seconds)
        return Result(
            quantcli=__version__,
            program=f"quantcli {__version__}",
            cpu_info=cpu_name(),
            model_filename=checkpoint.paths[0].name,
            model_type=self.title,
            model_size=checkpoint.nbytes,
            model_n_params=checkpoint.n_params,
            backends=self.asked.backend,
            instruction_set=select().name,
            n_threads=self.setting.n_threads,
            type_k=self.setting.kv_type,
            type_v=self.setting.kv_type,
            cache=self.asked.cache,
            n_prompt=workload.n_tokens if workload.kind == "pp" else 0,
            n_gen=workload.n_tokens if workload.kind == "tg" else 0,
            n_depth=workload.depth,
            n_sequences=workload.n_sequences,
            avg_ns=statistics.fmean(ns),
            stddev_ns=statistics.stdev(ns) if len(ns) > 1 else 0.0,
            avg_ts=measured.mean,
            stddev_ts=measured.sd,
            median_ts=measured.median,
            samples_ns=ns,
            samples_ts=measured.rates,
            kernels_s=self.load_s[0],
            load_s=self.load_s[1],
            first_token_s=self.first_token[0],
            first_token_prompt=self.first_token[1],
        )


def _with_shares(result: Result, workload: Workload, limits: Limits, demand: Demand) -> Result:
    """Return a result with what the machine can do, and how much of it that is."""
    read_share = dot_share = None
    if workload.kind == "pp":
        dot_share = demand.dot_share(limits, result.median_ts)
    else:
        steps_per_s = result.median_ts / workload.n_sequences
        n_keys = workload.depth + (workload.n_tokens + 1) / 2
        read_share = demand.read_share(limits, steps_per_s, workload.n_sequences, n_keys)
    return replace(
        result,
        read_nbytes_per_s=limits.read_nbytes_per_s,
        dot_macs_per_s=limits.dot_macs_per_s,
        read_share=read_share,
        dot_share=dot_share,
    )


def load(
    path: Path,
    asked: Asked,
    setting: Setting,
    workloads: Sequence[Workload],
    memory: PeakMemory,
    progress: Progress,
) -> Part:
    """Load a model, and the peer's, with room for the tests. Runs on the worker.

    The file's vocabulary is not read: a model of random weights does not have one.
    """
    from quantcli.runtime.adapters import open_adapted
    from quantcli.runtime.model import Model

    memory.restart()
    context = asked.ctx or max(w.n_positions for w in workloads)
    n_sequences = max(w.n_sequences for w in workloads)
    with ExitStack() as undo:
        laps = _Laps(progress)
        checkpoint = undo.enter_context(open_adapted(path, asked.adapters))
        model = Model.load(
            checkpoint,
            context=context,
            n_threads=setting.n_threads,
            kv_type=setting.kv_type,
            cache=asked.cache,
            n_sequences=n_sequences,
            backend=asked.backend,
            progress=laps,
        )
        undo.callback(model.close)
        part = Part(asked, setting, checkpoint, model, laps.seconds(), memory)
        if asked.library is not None:
            from quantcli.evaluate.peer import Peer

            progress("loading the peer", 0, 0)
            part.peer = Peer(
                asked.library,
                path,
                context=context,
                n_threads=setting.n_threads,
                kv_type=setting.kv_type,
                n_sequences=n_sequences,
                adapters=asked.adapters,
            )
        undo.pop_all()
    return part


class _Laps:
    """Passes progress on, and times how long a load prepared kernels before it read weights."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._began = time.perf_counter()
        self._reading: float | None = None

    def __call__(self, stage: str, done: int, total: int) -> None:
        if self._reading is None and stage == "loading":
            self._reading = time.perf_counter()
        self._progress(stage, done, total)

    def seconds(self) -> tuple[float, float]:
        """Return the seconds of both, up to now."""
        reading = self._began if self._reading is None else self._reading
        return reading - self._began, time.perf_counter() - reading


@dataclass
class Schedule:
    """How far a part's tests are, in seconds as estimated; a progress callback for `samples`."""

    status: StatusLine
    title: str
    costs: list[tuple[float, float]]  # of each test: filling the context, running it
    at: int = 0

    @property
    def total_s(self) -> float:
        """About how long all tests take."""
        return sum(map(sum, self.costs))

    def __call__(self, stage: str, done: int, total: int) -> None:
        """Show where the test at hand is."""
        past = sum(map(sum, self.costs[: self.at]))
        fill_s, run_s = self.costs[self.at]
        share = done / max(1, total)
        past += fill_s * share if stage.startswith("filling") else fill_s + run_s * share
        milli = [round(1000 * s) for s in (past, self.total_s)]
        self.status(self.title, milli[0], max(1, milli[1]), stage)


def duration(seconds: float) -> str:
    """Return about how long something takes, for people."""
    return f"{seconds / 60:.0f} min" if seconds > 90 else f"{max(1, seconds):.0f} s"
