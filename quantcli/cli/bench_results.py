"""What `bench` found: one record a test, and how records are shown, kept and read again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from quantcli.cli.render import JsonValue

Entry = Mapping[str, "JsonValue"]

FORMATS = ("md", "json", "csv")
HEADERS = ("model", "size", "params", "backend", "threads", "test", "t/s", "median", "of limit")
ALIGNED = "lrrlrlrrl"
PEER_HEADERS = ("peer t/s", "ratio")


@dataclass(frozen=True)
class Result:
    """One test of one model; fields that llama-bench has too bear its names and units.

    kernels_s          compiling kernels, or fetching them from the disk; load_s: reading weights
    first_token_s      the wait for the first token of a prompt of `first_token_prompt` tokens
    read_share         of the plain-read speed, that generating reaches; dot_share: of the integer
                       dots' speed, that a prompt reaches
    """

    quantcli: str  # version
    program: str
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
    n_sequences: int
    avg_ns: float
    stddev_ns: float
    avg_ts: float
    stddev_ts: float
    median_ts: float
    samples_ns: tuple[int, ...]
    samples_ts: tuple[float, ...]
    kernels_s: float | None = None
    load_s: float | None = None
    first_token_s: float | None = None
    first_token_prompt: int = 0
    peak_memory_nbytes: int | None = None
    read_nbytes_per_s: float | None = None
    dot_macs_per_s: float | None = None
    read_share: float | None = None
    dot_share: float | None = None


@dataclass(frozen=True)
class Row:
    """A test as it is shown: ours, and the peer's if there is one."""

    ours: Result
    theirs: Result | None = None

    @property
    def ratio(self) -> float | None:
        """Our median over theirs."""
        return None if self.theirs is None else self.ours.median_ts / self.theirs.median_ts

    def cells(self) -> tuple[str, ...]:
        """Return the row under HEADERS, and under PEER_HEADERS with a peer."""
        from quantcli.runtime.memory import size

        ours = self.ours
        kv = "" if ours.type_k == "f16" else f", kv {ours.type_k}"
        cells = (
            ours.model_type,
            size(ours.model_size),
            f"{ours.model_n_params / 1e6:.0f} M",
            f"{ours.backends} {ours.instruction_set}{kv}",
            str(ours.n_threads),
            workload_name(asdict(ours)),
            f"{ours.avg_ts:.2f} \u00b1 {ours.stddev_ts:.2f}",
            f"{ours.median_ts:.2f}",
            _share(ours),
        )
        if self.theirs is None:
            return cells
        return (*cells, f"{self.theirs.median_ts:.2f}", f"{self.ratio:.2f}")


def _share(result: Result) -> str:
    """Return how close a test came to what the machine can do."""
    if result.read_share is not None:
        return f"{100 * result.read_share:.0f}% of reads"
    return "-" if result.dot_share is None else f"{100 * result.dot_share:.0f}% of dots"


def workload_name(entry: Entry) -> str:
    """Return llama-bench's short name of a test, from its own JSON too."""
    n_prompt, n_gen = entry.get("n_prompt"), entry.get("n_gen")
    parts = [f"{kind}{n}" for kind, n in (("pp", n_prompt), ("tg", n_gen)) if n]
    n_sequences, depth = entry.get("n_sequences"), entry.get("n_depth")
    several = f" x{n_sequences}" if isinstance(n_sequences, int) and n_sequences > 1 else ""
    return "+".join(parts) + several + (f" @ d{depth}" if depth else "")


def table_head(*, peer: bool) -> str:
    """Return the first two lines of the Markdown table."""
    from quantcli.cli import render

    headers = (*HEADERS, *PEER_HEADERS) if peer else HEADERS
    return render.markdown(headers, (), right=ALIGNED + "rr" * peer)


def table_row(row: Row) -> str:
    """Return a line of the Markdown table."""
    from quantcli.cli import render

    return render.markdown(row.cells(), ()).splitlines()[0]


def footer(results: Sequence[Result]) -> list[str]:
    """Return what holds for all tests of a model, and of the machine, one line each."""
    models = dict.fromkeys(map(_model_line, results))
    machines: dict[tuple[str, str, int], list[Result]] = {}
    for result in results:
        if result.read_nbytes_per_s is not None:
            key = (result.cpu_info, result.instruction_set, result.n_threads)
            machines.setdefault(key, []).append(result)
    lines = [line for line in models if line]
    return lines + [_machine_line(*key, found) for key, found in machines.items()]


def _model_line(result: Result) -> str:
    from quantcli.runtime.memory import size

    facts = []
    if result.kernels_s is not None and result.load_s is not None:
        facts.append(f"kernels ready in {result.kernels_s:.2f} s, loaded in {result.load_s:.2f} s")
    if result.first_token_s is not None:
        n = result.first_token_prompt
        facts.append(f"first token of a {n}-token prompt after {result.first_token_s:.3f} s")
    if result.peak_memory_nbytes is not None:
        facts.append(f"peak memory {size(result.peak_memory_nbytes)}")
    if not facts or result.n_sequences > 1:
        return ""
    setting = f"{plural(result.n_threads, 'thread')}, kv {result.type_k}"
    return f"{result.model_type} in {result.program}, {setting}: {', '.join(facts)}"


def plural(n: int, what: str) -> str:
    """Return a count and what is counted: 1 test, 2 tests."""
    return f"{n} {what}" if n == 1 else f"{n} {what}s"


def _machine_line(cpu: str, isa: str, n_threads: int, results: Sequence[Result]) -> str:
    """Return the most that was measured of a machine."""
    from quantcli.runtime.memory import size

    read = max(result.read_nbytes_per_s or 0 for result in results)
    dots = max(result.dot_macs_per_s or 0 for result in results)
    return (
        f"{cpu}, {isa}, {plural(n_threads, 'thread')}: plain reads {size(int(read))}/s, "
        f"integer dots {dots / 1e9:.0f} G multiply-adds/s"
    )


def as_csv(results: Sequence[Result]) -> str:
    """Return the results as CSV, without the single samples."""
    import csv
    import io

    columns = [f.name for f in fields(Result) if not f.name.startswith("samples")]
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows([getattr(result, name) for name in columns] for result in results)
    return text.getvalue()
