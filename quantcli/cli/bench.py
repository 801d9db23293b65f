"""quantcli bench: prompt and generation speed, measured the way llama-bench does."""

# No "from __future__ import annotations" here: Typer reads the annotations.

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from typer import Argument, Option

from quantcli.cli.bench_grid import GridOptions, ResultOptions, RunOptions
from quantcli.cli.options import OutputOptions, expand

if TYPE_CHECKING:
    from quantcli.cli.bench_grid import Setting
    from quantcli.cli.bench_part import Asked, Part, Schedule
    from quantcli.cli.bench_results import Entry, Result, Row
    from quantcli.cli.render import StatusLine
    from quantcli.cli.worker import Worker
    from quantcli.evaluate.throughput import Workload

RANDOM_TITLE = "random weights, SmolLM2-135M's shape"


@expand
def command(
    models: Annotated[
        list[str] | None,
        Argument(
            metavar="[MODEL]...",
            help="Models; without one the smallest that is installed, else random weights.",
        ),
    ] = None,
    *,
    named: Annotated[
        list[str] | None, Option("-m", "--model", metavar="MODEL", help="The same as MODEL.")
    ] = None,
    grid: GridOptions,
    run: RunOptions,
    results: ResultOptions,
    said: OutputOptions,
) -> None:
    """Measure prompt processing and generation speed.

    A test is named as llama-bench names it: pp512 processes a prompt of 512 tokens, tg128 generates
    128 tokens; "@ d2048" is with 2048 tokens in the context beforehand, and "x4" is four sequences
    at once. Ctrl-C prints what there is.
    """
    from quantcli.cli.bench_compare import read_entries
    from quantcli.cli.render import StatusLine

    kind = results.kind()
    grid.workloads()
    old = read_entries(results.compare) if results.compare is not None else None
    asked = run.asked()
    status = StatusLine(verbose=said.verbose, quiet=said.quiet)
    bench = _Bench(asked, grid, status, shows_rows=kind == "md")
    try:
        with chosen([*(models or ()), *(named or ())], status) as paths:
            bench.run(paths)
    finally:  # Ctrl-C, too, leaves what was measured
        if bench.rows:
            _show(bench.results, kind, old)
            if results.save is not None:
                _save(bench.results, results.save, force=results.force)


@contextmanager
def chosen(names: list[str], status: "StatusLine") -> Iterator[list[Path]]:
    """Hold the models to measure: those named, the smallest installed, or random weights."""
    from tempfile import TemporaryDirectory

    from quantcli.checkpoint.random_model import SMOLLM2_135M, write_random_model
    from quantcli.checkpoint.sources import find
    from quantcli.checkpoint.store import installed, resolve

    if not names:
        names = [m.name for m in sorted(installed(), key=lambda model: model.nbytes)][:1]
    if names:
        yield [resolve(name, progress=status, notify=status.note) for name in names]
        return
    status.warn(
        "no model is installed, so this measures random weights of SmolLM2-135M's shape. "
        "Name a file, or run 'quantcli pull smollm2'."
    )
    with TemporaryDirectory(prefix="quantcli-bench-", ignore_cleanup_errors=True) as folder:
        path = Path(folder) / "random.gguf"
        write_random_model(path, SMOLLM2_135M, arch=find("smollm2").arch, title=RANDOM_TITLE)
        yield [path]


class _Bench:
    """Measures models one by one, and keeps what there is at any time."""

    def __init__(
        self, asked: "Asked", grid: GridOptions, status: "StatusLine", *, shows_rows: bool
    ) -> None:
        from quantcli.evaluate.peak_memory import PeakMemory
        from quantcli.runtime.threads import default_threads

        self.rows: list[Row] = []
        self._asked = asked
        self._grid = grid
        self._settings = grid.settings(default_threads)
        self._status = status
        self._shows_rows = shows_rows
        self._has_head = False
        self._memory = PeakMemory()

    @property
    def results(self) -> "list[Result]":
        """Ours, each followed by the peer's."""
        pairs = ((row.ours, row.theirs) for row in self.rows)
        return [result for pair in pairs for result in pair if result is not None]

    def run(self, paths: list[Path]) -> None:
        """Measure models, after checking that all of them can be."""
        from quantcli.cli.bench_grid import split
        from quantcli.cli.worker import Worker

        tests = [(path, self._checked(path)) for path in paths]
        with Worker() as worker:
            for path, workloads in tests:
                for setting in self._settings:
                    for some in split(workloads):
                        self._part(worker, path, setting, some)

    def _checked(self, path: Path) -> "list[Workload]":
        """Return the tests of a model. Raises an error if it has no room for one."""
        from quantcli.cli.bench_room import check
        from quantcli.runtime.adapters import open_adapted

        with open_adapted(path, self._asked.adapters) as checkpoint:
            return check(checkpoint, self._grid, self._settings, self._asked.ctx, self._status)

    def _part(
        self, worker: "Worker", path: Path, setting: "Setting", workloads: "list[Workload]"
    ) -> None:
        """Load a model under one setting and run tests that share a cache."""
        from quantcli.cli.bench_part import Schedule, duration, load
        from quantcli.cli.bench_results import plural

        status = self._status
        report = worker.checked(status)
        part = worker.call(
            partial(load, path, self._asked, setting, workloads, self._memory, report)
        )
        try:
            prompts = [w.n_tokens for w in workloads if w.kind == "pp"]
            worker.call(partial(part.prepare, max(prompts, default=0), report))
            depths = [0, *(w.depth for w in workloads)]
            costs = [part.cost_s(w, d) for w, d in zip(workloads, depths, strict=False)]
            schedule = Schedule(status, path.name, costs)
            status.note(
                f"{path.name}, {setting}: {plural(len(workloads), 'test')}, "
                f"about {duration(schedule.total_s)}"
            )
            for schedule.at, workload in enumerate(workloads):
                self._test(worker, part, workload, schedule)
        except KeyboardInterrupt:
            part.model.cancel()
            raise
        finally:
            status.clear()
            self.rows += part.finished()
            if worker.stop():
                worker.call(part.close)

    def _test(
        self, worker: "Worker", part: "Part", workload: "Workload", schedule: "Schedule"
    ) -> None:
        """Run one test; what was measured of it counts, even if it does not come to its end."""
        from quantcli.evaluate.throughput import samples

        seconds: list[list[float]] = [[] for _ in part.runners]
        limits = worker.call(part.limits)
        run = partial(
            samples,
            part.runners,
            workload,
            self._asked.repetitions,
            warmup=self._asked.warmup,
            rest_s=part.rest_s,
            progress=worker.checked(schedule),
        )
        try:
            for index, elapsed in worker.stream(run):
                seconds[index].append(elapsed)
            after = worker.call(part.limits)
            limits = limits.best(after) if limits and after else limits
        finally:
            if seconds[0]:
                part.rows.append(part.row(workload, seconds, limits))
                self._show_row(part.rows[-1])

    def _show_row(self, row: "Row") -> None:
        from quantcli.cli.bench_results import table_head, table_row

        self._status.clear()
        if self._shows_rows:
            if not self._has_head:
                print(table_head(peer=self._asked.library is not None))
                self._has_head = True
            print(table_row(row), flush=True)


def _show(results: "list[Result]", kind: str, old: "list[Entry] | None") -> None:
    """Print the results in one of FORMATS; as Markdown only what is not in the table yet."""
    from dataclasses import asdict

    from quantcli.cli import bench_compare, render
    from quantcli.cli.bench_results import as_csv, footer

    if kind == "csv":
        print(as_csv(results), end="")
        return
    changes = bench_compare.compare(results, old) if old is not None else []
    if kind == "json":
        documents = [asdict(result) for result in results]
        for document, change in zip(documents, changes, strict=False):
            document |= {"then_ts": change.then, "ratio": change.ratio}
        render.emit_json(documents)
        return
    print("", *(f"- {render.printable(line)}" for line in footer(results)), sep="\n")
    if old is not None:
        rows = [change.cells() for change in changes]
        print()
        print(render.markdown(bench_compare.HEADERS, rows, right=bench_compare.ALIGNED))
        notes = list(bench_compare.machine_notes(results, old))
        if notes:
            print("", *(f"- {render.printable(note)}" for note in notes), sep="\n")


def _save(results: "list[Result]", path: Path, *, force: bool) -> None:
    """Write the results as JSON, whole or not at all."""
    import json
    from dataclasses import asdict

    from quantcli.evaluate.output_file import draft

    text = json.dumps([asdict(result) for result in results], indent=2, ensure_ascii=False)
    with draft(path, "--save", force=force) as file:
        file.write(f"{text}\n".encode())
