"""What `quantcli quantize` does: check everything, work on a thread of its own, show what came."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Self, TypeVar

from quantcli.checkpoint import Checkpoint, open_checkpoint
from quantcli.checkpoint.drafts import check_target, require_room
from quantcli.checkpoint.quants import quant_of
from quantcli.checkpoint.store import resolve
from quantcli.cli import quantize_view as view
from quantcli.cli.worker import Worker
from quantcli.errors import QuantcliError, UsageError
from quantcli.evaluate.output_file import check_free, draft
from quantcli.evaluate.peak_memory import PeakMemory
from quantcli.quantize import estimate, verify
from quantcli.quantize.bpw import bits_to_keep, free_choices, resized
from quantcli.quantize.calibrate import Calibration
from quantcli.quantize.corpora import calibration
from quantcli.quantize.job import Job, Settings, prepare
from quantcli.quantize.method import method
from quantcli.quantize.pipeline import run
from quantcli.quantize.report import Report, page
from quantcli.quantize.results import TensorResult
from quantcli.quantize.sensitivity import Sensitivity, can_probe, measure, n_probe_tokens
from quantcli.runtime.memory import available_memory, peak_memory, size
from quantcli.runtime.threads import default_threads
from quantcli.text import from_metadata

if TYPE_CHECKING:
    from quantcli.cli.quantize import MethodOptions, RecipeOptions, WriteOptions
    from quantcli.cli.render import StatusLine

T = TypeVar("T")


class Session:
    """One quantization, from its options to what is printed; a context manager."""

    def __init__(
        self,
        model: str,
        what: RecipeOptions,
        how: MethodOptions,
        write: WriteOptions,
        status: StatusLine,
    ) -> None:
        """Remember what is asked for; entering the block opens and checks."""
        self._model = model
        self._what = what
        self._how = how
        self._write = write
        self._recipe = what.recipe()
        self._status = status
        self._stack = ExitStack()
        self._n_threads = write.threads or default_threads()
        self._backend = write.chosen_backend()
        self._report: Report | None = None
        self._job: Job
        self._path: Path
        self._worker: Worker

    def __enter__(self) -> Self:
        """Open the model and check all that can be known before any work."""
        with ExitStack() as stack:
            source = resolve(self._model, progress=self._status, notify=self._status.note)
            checkpoint = stack.enter_context(open_checkpoint(source))
            self._status.clear()
            for note in checkpoint.notes:
                self._status.warn(note)
            self._path = self._write.output or self._default_output(checkpoint)
            self._check_place(lambda: self._check_paths(checkpoint))
            self._check_source(checkpoint)
            self._worker = stack.enter_context(Worker())
            chosen = method(
                checkpoint,
                self._recipe,
                names=self._how.names,
                imatrix_path=self._how.imatrix,
                calibration=self._calibration(checkpoint),
                n_threads=self._n_threads,
                allow_requantize=self._write.allow_requantize,
            )
            for line in chosen.remarks:
                self._status.warn(line)
            nbytes = self._set_up(checkpoint, chosen.settings)
            self._check_place(lambda: require_room(self._path, nbytes))
            self._stack = stack.pop_all()
        return self

    def _default_output(self, checkpoint: Checkpoint) -> Path:
        return default_output(self._model, checkpoint, self._label)

    def _check_source(self, checkpoint: Checkpoint) -> None:
        """Refuse what cannot be quantized before anything slow, such as writing text."""
        has_statistics = self._how.text is not None or self._how.imatrix is not None
        walk = (lambda _: None) if has_statistics else None
        allowed = self._write.allow_requantize
        prepare(checkpoint, Settings(self._recipe, walk=walk, allow_requantize=allowed))  # type: ignore[arg-type]

    def _set_up(self, checkpoint: Checkpoint, settings: Settings) -> int:
        """Make ready; return the bytes that will be written."""
        self._job = self._prepared(checkpoint, settings)
        return self._job.nbytes

    def _calibration(self, checkpoint: Checkpoint) -> Calibration | None:
        """Return the text that runs through the model, None if none does."""
        source = self._how.text
        return None if source is None else self._tokens(checkpoint, source, self._how.n_tokens)

    def _tokens(self, checkpoint: Checkpoint, source: str, n_tokens: int) -> Calibration:
        tokenizer = from_metadata(checkpoint.metadata)
        self._status("tokenizing", 0, 0)
        return self._call(
            lambda progress: calibration(
                source,
                checkpoint,
                tokenizer,
                n_tokens,
                n_threads=self._n_threads,
                progress=progress,
            )
        )

    @property
    def _label(self) -> str:
        """What the user calls the result: a type, or a number of bits."""
        return f"{self._what.bpw:g}bpw" if self._what.bpw else self._recipe.mix.name

    def _prepared(self, checkpoint: Checkpoint, settings: Settings) -> Job:
        """Return the job, with the best formats of a size where that is asked for."""
        job = prepare(checkpoint, settings)
        bits = bits_to_keep(job)
        if bits is None:
            return job
        sensitivity = self._sensitivity(job)
        return self._call(
            lambda progress: resized(
                job,
                bits,
                sensitivity=sensitivity,
                n_threads=self._n_threads,
                progress=progress,
            )
        )

    def _sensitivity(self, job: Job) -> Sensitivity | None:
        """Return what matters in the model, None if it is not to be or cannot be measured."""
        checkpoint = job.checkpoint
        n_tokens = n_probe_tokens(job.n_weights, job.hyper.n_vocab)
        if not self._what.probe:
            return None
        if not can_probe(checkpoint, n_tokens):
            self._status.warn(
                "the model does not fit in memory beside a copy, so formats are chosen by what "
                "matters in other models."
            )
            return None
        text = self._tokens(checkpoint, self._how.text or "builtin", max(512, n_tokens))
        tokens = [token for chunk in text.chunks for token in chunk][:n_tokens]
        return self._call(
            lambda progress: measure(
                checkpoint,
                free_choices(job),
                tokens,
                job.settings.statistics,
                n_layers=job.hyper.n_layers,
                n_threads=self._n_threads,
                backend=self._backend,
                progress=progress,
            )
        )

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Stop the work and close the model."""
        self._stack.close()

    def show_plan(self, *, as_json: bool) -> None:
        """Print what would be done, and what it would take."""
        job = self._job
        seconds = self._call(
            lambda progress: estimate.seconds_needed(job, self._n_threads, progress)
        )
        plan = view.Plan(
            job=job,
            output=str(self._path),
            memory_nbytes=estimate.memory_needed(job, self._n_threads),
            available_nbytes=available_memory(),
            seconds=seconds,
            n_threads=self._n_threads,
        )
        view.show_plan(plan, as_json=as_json)

    def run(self) -> None:
        """Quantize, then verify what was written."""
        job = self._job
        estimate.require_memory(job, self._n_threads, available_memory())
        for line in view.remarks(job):
            self._status.warn(line)
        results, seconds, nbytes = self._timed(self._quantize)
        verify.check_file(job, self._path)
        self._finish(job.checkpoint, job.settings, results, seconds, nbytes)

    def _timed(
        self, work: Callable[[], list[TensorResult]]
    ) -> tuple[list[TensorResult], float, int | None]:
        """Return what work returns, the seconds that it took, and the most bytes it held."""
        began, peak = time.perf_counter(), PeakMemory()
        peak.restart()
        results = work()
        return results, time.perf_counter() - began, peak.nbytes()

    def _finish(
        self,
        source: Checkpoint,
        settings: Settings,
        results: list[TensorResult],
        seconds: float,
        peak_nbytes: int | None,
    ) -> None:
        """Verify what was written, and make the report of it."""
        write = self._write
        self._report = Report(
            model=_name_of(source),
            output=str(self._path),
            method=settings.method,
            type=self._label,
            calibration={
                name.removeprefix("quantcli.quantize."): str(value)
                for name, value in settings.origin.items()
                if name != "quantcli.quantize.method"
            },
            results=results,
            source_nbytes=source.nbytes,
            seconds=seconds,
            peak_nbytes=peak_nbytes,
            verification=self._verify(source) if write.verify else None,
        )
        if write.html is not None:
            with draft(write.html, "--html", force=write.force) as file:
                file.write(page(self._report).encode())

    def show_result(self, *, as_json: bool) -> None:
        """Print what was done."""
        assert self._report is not None
        view.show_report(self._report, as_json=as_json)

    def _check_place(self, check: Callable[[], None]) -> None:
        """Refuse a place that cannot take the output; a dry run only says so."""
        try:
            check()
        except QuantcliError as error:
            if not self._write.dry_run:
                raise
            self._status.warn(f"the run itself would be refused: {error}")

    def _check_paths(self, checkpoint: Checkpoint) -> None:
        write = self._write
        if any(_same_file(self._path, path) for path in checkpoint.paths):
            raise UsageError(f"{self._path} is the model itself; name another file with -o.")
        check_target(self._path, force=write.force)
        if write.html is not None:
            check_free(write.html, "--html", force=write.force)

    def _quantize(self) -> list[TensorResult]:
        write = self._write
        work = partial(
            run,
            self._job,
            self._path,
            n_threads=self._n_threads,
            resume=write.resume,
            force=write.force,
        )
        try:
            return self._call(lambda progress: work(progress=progress))
        except KeyboardInterrupt:
            self._status.warn("stopped; what is done is kept. Add --resume to go on.")
            raise

    def _verify(self, source: Checkpoint) -> verify.Verification | None:
        """Return what verification shows, None with a warning where it cannot be done."""
        path = self._path
        try:
            return self._call(partial(self._measure, source))
        except QuantcliError as error:
            self._status.warn(f"{path} is whole, but could not be measured: {error}")
            return None

    def _measure(
        self, source: Checkpoint, progress: Callable[[str, int, int], None]
    ) -> verify.Verification:
        return verify.measure(
            source,
            self._path,
            n_threads=self._n_threads,
            backend=self._backend,
            progress=progress,
        )

    def _call(self, function: Callable[[Callable[[str, int, int], None]], T]) -> T:
        """Run a function on the worker, its progress on the status line."""
        progress = self._worker.checked(Meter(self._status))
        try:
            return self._worker.call(lambda: function(progress))
        finally:
            self._status.clear()


class Meter:
    """A progress callback that adds speed and memory to the status line.

    What a walk reports between two matrices is a detail of the whole.
    """

    def __init__(self, status: StatusLine) -> None:
        """Report to a status line."""
        self._status = status
        self._stage = ""
        self._began = (0.0, 0)
        self._whole = (0, 0)  # weights done, and all of them
        self._peak = (0.0, 0)

    def __call__(self, stage: str, done: int, total: int) -> None:
        """Show a step of a stage; steps of quantizing are counted in weights."""
        if stage == "calibrating" and total:
            detail = f"calibrating {100 * done // total}%{self._memory()}"
            self._status("quantizing", *self._whole, detail=detail)
            return
        now = time.monotonic()
        if stage != self._stage:
            self._stage, self._began = stage, (now, done)
        elapsed, progressed = now - self._began[0], done - self._began[1]
        detail = ""
        if stage == "quantizing":
            self._whole = (done, total)
            if elapsed > 0 and progressed > 0:
                detail = f"{progressed / elapsed / 1e6:.3g} M weights/s{self._memory()}"
        self._status(stage, done, total, detail=detail)

    def _memory(self) -> str:
        now = time.monotonic()
        if now - self._peak[0] > 1:
            self._peak = (now, peak_memory())
        return f", peak {size(self._peak[1])}"


def default_output(model: str, checkpoint: Checkpoint, type_name: str) -> Path:
    """Return MODEL-TYPE.gguf: beside a file that was named by its path, else in this folder.

    A quantization in the source's name, such as -BF16, is left out.
    """
    stem = _name_of(checkpoint)
    tag = quant_of(f"{stem}.gguf")
    if tag and stem.upper().endswith(tag):
        stem = stem[: -len(tag)].rstrip("-._") or stem
    given = Path(model)
    folder = given.parent if given.exists() else Path()
    return folder / f"{stem}-{type_name}.gguf"


def _name_of(checkpoint: Checkpoint) -> str:
    """Return what a model is called: its file's name, or its folder's."""
    source = checkpoint.paths[0]
    return source.parent.name if source.suffix == ".safetensors" else source.stem


def _same_file(a: Path, b: Path) -> bool:
    return a.exists() and b.exists() and a.samefile(b)
