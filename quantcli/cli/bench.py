"""quantcli bench: prompt and generation speed, measured the way llama-bench does."""

# No "from __future__ import annotations" here: Typer reads the annotations.

import statistics
from contextlib import ExitStack
from dataclasses import asdict, dataclass, fields, replace
from functools import partial
from typing import TYPE_CHECKING, Annotated

from typer import Argument, Option

from quantcli.cli.options import Json, LoadOptions, OutputOptions, expand

if TYPE_CHECKING:
    from pathlib import Path

    from quantcli.checkpoint import Checkpoint
    from quantcli.cli.generation import Progress
    from quantcli.cli.render import StatusLine
    from quantcli.evaluate.throughput import Throughput, Workload
    from quantcli.runtime.model import Model

FORMATS = ("md", "json", "csv")
HEADERS = ("model", "size", "params", "backend", "threads", "test", "t/s", "median")


@expand
def command(
    models: Annotated[
        list[str] | None,
        Argument(metavar="[MODEL]...", help="Models; without one, the smallest that is installed."),
    ] = None,
    *,
    named: Annotated[
        list[str] | None, Option("-m", "--model", metavar="MODEL", help="The same as MODEL.")
    ] = None,
    n_prompt: Annotated[
        str,
        Option("-p", "--n-prompt", metavar="N,...", help="Prompt tokens to process; 0 for none."),
    ] = "512",
    n_gen: Annotated[
        str, Option("-n", "--n-gen", metavar="N,...", help="Tokens to generate; 0 for none.")
    ] = "128",
    depth: Annotated[
        str,
        Option("-d", "--n-depth", metavar="N,...", help="Tokens in the context beforehand."),
    ] = "0",
    repetitions: Annotated[
        int, Option("-r", "--repetitions", min=1, max=1000, metavar="N", help="Times to repeat.")
    ] = 5,
    warmup: Annotated[
        bool, Option("--warmup/--no-warmup", help="Run once before the clock starts.")
    ] = True,
    output: Annotated[
        str, Option("-o", "--output", metavar="FORMAT", help="md, json or csv.")
    ] = "md",
    load: LoadOptions,
    said: OutputOptions,
    as_json: Json = False,
) -> None:
    """Measure prompt processing and generation speed."""
    from quantcli.cli.render import StatusLine

    load.checked()
    kind = _format("json" if as_json else output)
    workloads = _workloads(n_prompt, n_gen, depth)
    wanted = [*(models or ()), *(named or ())] or [installed_model()]
    status = StatusLine(verbose=said.verbose, quiet=said.quiet)
    results: list[Result] = []
    for name in wanted:
        results += _measure(name, workloads, repetitions, load, status, warmup=warmup)
    _show(results, kind)


def installed_model() -> str:
    """Return the smallest model on this machine. Raises UsageError if there is none."""
    from quantcli.checkpoint.store import installed
    from quantcli.errors import UsageError

    found = sorted(installed(), key=lambda model: model.nbytes)
    if not found:
        raise UsageError("no model is installed. Run 'quantcli pull smollm2', or name a GGUF file.")
    return found[0].name


def _format(name: str) -> str:
    from quantcli.errors import UnknownName

    if name not in FORMATS:
        raise UnknownName("output format", name, FORMATS)
    return name


def _workloads(n_prompt: str, n_gen: str, depth: str) -> "list[Workload]":
    """Return what to measure, depth by depth."""
    from quantcli.errors import UsageError

    tests = [("pp", n) for n in _numbers("--n-prompt", n_prompt) if n]
    tests += [("tg", n) for n in _numbers("--n-gen", n_gen) if n]
    depths = _numbers("--n-depth", depth)
    if not tests:
        raise UsageError("both --n-prompt and --n-gen are 0: there is nothing to measure.")

    from quantcli.evaluate.throughput import Workload

    return [Workload(kind, n, d) for d in depths for kind, n in tests]


def _numbers(option: str, text: str) -> list[int]:
    from quantcli.errors import UsageError

    try:
        numbers = [int(word) for word in text.split(",")]
    except ValueError:
        numbers = [-1]
    if min(numbers) < 0:
        raise UsageError(
            f"{option} {text!r} is not a list of whole numbers such as 128 or 128,512."
        )
    return numbers


@dataclass(frozen=True)
class Result:
    """One test of one model; fields that llama-bench has too bear its names and units."""

    quantcli: str  # version
    cpu_info: str
    model_filename: str
    model_type: str
    model_size: int  # bytes of all tensors
    model_n_params: int
    backends: str
    instruction_set: str
    n_threads: int
    type_k: str
    type_v: str
    cache: str
    n_prompt: int
    n_gen: int
    n_depth: int
    avg_ns: float
    stddev_ns: float
    avg_ts: float
    stddev_ts: float
    median_ts: float
    samples_ns: tuple[int, ...]
    samples_ts: tuple[float, ...]


@dataclass(frozen=True)
class _Subject:
    """A model to measure."""

    file: str
    title: str
    nbytes: int
    n_params: int
    model: "Model"
    checkpoint: "Checkpoint"

    def close(self) -> None:
        """Stop the model's threads and close its file."""
        self.model.close()
        self.checkpoint.close()


def _measure(
    name: str,
    workloads: "list[Workload]",
    repetitions: int,
    load: LoadOptions,
    status: "StatusLine",
    *,
    warmup: bool,
) -> list[Result]:
    """Load one model and run every workload on it."""
    from quantcli.checkpoint.store import resolve
    from quantcli.cli.worker import Worker
    from quantcli.evaluate.throughput import measure

    options = replace(load, ctx=load.ctx or max(w.depth + w.n_tokens for w in workloads))
    path = resolve(name, progress=status, notify=status.note)
    results = []
    with Worker() as worker:
        report = worker.checked(status)
        subject = worker.call(lambda: _load(path, options, report))
        try:
            for workload in workloads:
                run = partial(
                    measure, subject.model, workload, repetitions, warmup=warmup, progress=report
                )
                results.append(_result(subject, load, worker.call(run)))
        finally:
            status.clear()
            if worker.stop():
                worker.call(subject.close)
    return results


def _load(path: "Path", options: LoadOptions, progress: "Progress") -> _Subject:
    """Load a model without its vocabulary, which a model of random weights does not have."""
    from quantcli.checkpoint import open_checkpoint
    from quantcli.cli.generation import load_model

    with ExitStack() as undo:
        checkpoint = undo.enter_context(open_checkpoint(path))
        model = load_model(checkpoint, options, progress)
        undo.pop_all()
    file = checkpoint.paths[0].name
    title = str(checkpoint.metadata.get("general.name", file))
    return _Subject(file, title, checkpoint.nbytes, checkpoint.n_params, model, checkpoint)


def _result(subject: _Subject, load: LoadOptions, measured: "Throughput") -> Result:
    """Return one result with all that is needed to read it later."""
    from quantcli import __version__
    from quantcli.cli.machine import cpu_name
    from quantcli.kernels.isa import select

    workload, kv_type = measured.workload, load.chosen_kv_type()
    ns = tuple(round(s * 1e9) for s in measured.seconds)
    return Result(
        quantcli=__version__,
        cpu_info=cpu_name(),
        model_filename=subject.file,
        model_type=subject.title,
        model_size=subject.nbytes,
        model_n_params=subject.n_params,
        backends=load.chosen_backend(),
        instruction_set=select().name,
        n_threads=subject.model.n_threads,
        type_k=kv_type,
        type_v=kv_type,
        cache=load.cache,
        n_prompt=workload.n_tokens if workload.kind == "pp" else 0,
        n_gen=workload.n_tokens if workload.kind == "tg" else 0,
        n_depth=workload.depth,
        avg_ns=statistics.fmean(ns),
        stddev_ns=statistics.stdev(ns) if len(ns) > 1 else 0.0,
        avg_ts=measured.mean,
        stddev_ts=measured.sd,
        median_ts=measured.median,
        samples_ns=ns,
        samples_ts=measured.rates,
    )


def _show(results: list[Result], kind: str) -> None:
    """Print the results in one of FORMATS."""
    import csv
    import sys

    from quantcli.cli import render

    if kind == "json":
        render.emit_json([asdict(result) for result in results])
    elif kind == "csv":
        columns = [f.name for f in fields(Result) if not f.name.startswith("samples")]
        writer = csv.writer(sys.stdout, lineterminator="\n")
        writer.writerow(columns)
        writer.writerows([getattr(result, name) for name in columns] for result in results)
    else:
        print(render.markdown(HEADERS, map(_cells, results), right="lrrlrlrr"))


def _cells(result: Result) -> tuple[str, ...]:
    """Return a result's row under HEADERS."""
    from quantcli.runtime.memory import size

    kind, n = ("pp", result.n_prompt) if result.n_prompt else ("tg", result.n_gen)
    return (
        result.model_type,
        size(result.model_size),
        f"{result.model_n_params / 1e6:.0f} M",
        f"{result.backends} {result.instruction_set}",
        str(result.n_threads),
        f"{kind}{n}" + (f" @ d{result.n_depth}" if result.n_depth else ""),
        f"{result.avg_ts:.2f} \u00b1 {result.stddev_ts:.2f}",
        f"{result.median_ts:.2f}",
    )
