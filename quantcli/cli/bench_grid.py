"""What `bench` measures: the tests, and the settings to run them under, from the options."""

# No "from __future__ import annotations" here: Typer reads the annotations.

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from typer import Option

from quantcli.cli.options import BACKENDS, BackendName, CacheKind, ContextLength, Json, Lora

if TYPE_CHECKING:
    from collections.abc import Callable

    from quantcli.cli.bench_part import Asked
    from quantcli.evaluate.throughput import Workload

FULL_DEPTHS = (0, 2048, 8192)
FULL_BATCHES = (1, 2, 4, 8, 16)
_MAX = {"--threads": 1024, "--batch": 1 << 16}
_MAX_TOKENS = (1 << 31) - 1


@dataclass(frozen=True, slots=True)
class Setting:
    """How a model is loaded for a part of the tests."""

    n_threads: int
    kv_type: str

    def __str__(self) -> str:
        from quantcli.cli.bench_results import plural

        return f"{plural(self.n_threads, 'thread')}, kv {self.kv_type}"


@dataclass(frozen=True, slots=True)
class GridOptions:
    """The options that take lists; every test runs under every setting."""

    n_prompt: Annotated[
        str,
        Option("-p", "--n-prompt", metavar="N,...", help="Prompt tokens to process; 0 for none."),
    ] = "512"
    n_gen: Annotated[
        str, Option("-n", "--n-gen", metavar="N,...", help="Tokens to generate; 0 for none.")
    ] = "128"
    depth: Annotated[
        str | None,
        Option(
            "-d",
            "--depth",
            "--n-depth",
            metavar="N,...",
            help="Tokens in the context beforehand. [0]",
            show_default=False,
        ),
    ] = None
    batch: Annotated[
        str | None,
        Option(
            "-b",
            "--batch",
            metavar="N,...",
            help="Sequences that generate at once; the speed is that of all together. [1]",
            show_default=False,
        ),
    ] = None
    threads: Annotated[
        str | None,
        Option(
            "-t",
            "--threads",
            metavar="N,...",
            help="Threads; by default the physical cores this process may use.",
            show_default=False,
        ),
    ] = None
    kv_type: Annotated[
        str,
        Option("--kv-type", "-ctk", metavar="TYPE,...", help="KV cache types: f16, q8_0."),
    ] = "f16"
    full: Annotated[
        bool,
        Option(
            "--full",
            help="Add depths 2048 and 8192, as far as the context goes, and batches up to 16.",
        ),
    ] = False

    def workloads(self) -> "list[Workload]":
        """Return the tests, depth by depth. Raises UsageError for lists that make no sense."""
        from quantcli.errors import UsageError
        from quantcli.evaluate.throughput import Workload

        prompts = [n for n in numbers("--n-prompt", self.n_prompt) if n]
        lengths = [n for n in numbers("--n-gen", self.n_gen) if n]
        depths = numbers("--depth", self._depths())
        batches = numbers("--batch", self._batches(), least=1)
        if not prompts and not lengths:
            raise UsageError("both --n-prompt and --n-gen are 0: there is nothing to measure.")
        tests = []
        for depth in depths:
            tests += [Workload("pp", n, depth) for n in prompts]
            for n in lengths:
                chosen = batches if depth == 0 or self.batch is not None else [1]
                tests += [Workload("tg", n, depth, batch) for batch in chosen]
        return tests

    def settings(self, default_threads: "Callable[[], int]") -> list[Setting]:
        """Return the settings. Raises UsageError for threads, UnknownName for KV cache types."""
        from quantcli import catalog

        kv_types = [
            catalog.lookup("KV cache type", word.strip()).name for word in self.kv_type.split(",")
        ]
        if self.threads is None:
            threads = [default_threads()]
        else:
            threads = numbers("--threads", self.threads, least=1)
        return [Setting(n, kv_type) for kv_type in dict.fromkeys(kv_types) for n in threads]

    def _depths(self) -> str:
        default = FULL_DEPTHS if self.full else (0,)
        return self.depth if self.depth is not None else ",".join(map(str, default))

    def _batches(self) -> str:
        default = FULL_BATCHES if self.full else (1,)
        return self.batch if self.batch is not None else ",".join(map(str, default))


@dataclass(frozen=True, slots=True)
class RunOptions:
    """The options that hold for every test."""

    repetitions: Annotated[
        int, Option("-r", "--repetitions", min=1, max=1000, metavar="N", help="Times to repeat.")
    ] = 5
    warmup: Annotated[
        bool, Option("--warmup/--no-warmup", help="Run once before the clock starts.")
    ] = True
    ctx: ContextLength = None
    cache: CacheKind = "contiguous"
    backend: BackendName = None
    lora: Lora = None
    peer: Annotated[
        str | None,
        Option(
            "--peer",
            metavar="PROGRAM",
            help="Take turns with another program, if it is installed: llama-cpp-python.",
            show_default=False,
        ),
    ] = None

    def asked(self) -> "Asked":
        """Return them checked, the peer loaded.

        Raises UnknownName for a name that is none, UsageError for a peer that is not installed.
        """
        from quantcli import catalog
        from quantcli.cli.adapters import resolved
        from quantcli.cli.bench_part import Asked
        from quantcli.errors import UnknownName
        from quantcli.evaluate.peer import load_library

        backend = self.backend or BACKENDS[0]
        if backend not in BACKENDS:
            raise UnknownName("backend", backend, BACKENDS)
        cache = catalog.lookup("cache", self.cache).name
        library = load_library(self.peer) if self.peer is not None else None
        ctx = self.ctx or None
        adapters = tuple(resolved(self.lora))
        return Asked(self.repetitions, self.warmup, ctx, cache, backend, library, adapters)


@dataclass(frozen=True, slots=True)
class ResultOptions:
    """What becomes of the results."""

    output: Annotated[str, Option("-o", "--output", metavar="FORMAT", help="md, json or csv.")] = (
        "md"
    )
    compare: Annotated[
        Path | None,
        Option(
            "--compare",
            metavar="FILE",
            help="Show the ratio to earlier results, of --save or of llama-bench -o json.",
            show_default=False,
        ),
    ] = None
    save: Annotated[
        Path | None,
        Option("--save", metavar="FILE", help="Write the results as JSON.", show_default=False),
    ] = None
    force: Annotated[bool, Option("--force", help="Let --save replace a file.")] = False
    as_json: Json = False

    def kind(self) -> str:
        """Return the output format. Raises UnknownName, and UsageError if --save cannot be."""
        from quantcli.cli.bench_results import FORMATS
        from quantcli.errors import UnknownName
        from quantcli.evaluate.output_file import check_free

        if self.output not in FORMATS:
            raise UnknownName("output format", self.output, FORMATS)
        if self.save is not None:
            check_free(self.save, "--save", force=self.force)
        return "json" if self.as_json else self.output


def numbers(option: str, text: str, least: int = 0) -> list[int]:
    """Return the numbers of a list such as "128,512", each once, in their order.

    Raises UsageError for anything else, and for numbers below `least` or beyond all sense.
    """
    from quantcli.errors import UsageError

    try:
        found = [int(word) for word in text.split(",")]
    except ValueError:
        raise UsageError(
            f"{option} {text!r} is not a list of whole numbers such as 128 or 128,512."
        ) from None
    most = _MAX.get(option, _MAX_TOKENS)
    for number in found:
        if not least <= number <= most:
            raise UsageError(f"{option} {number}: give whole numbers from {least} to {most}.")
    return list(dict.fromkeys(found))


def split(workloads: "list[Workload]") -> "list[list[Workload]]":
    """Return the tests of one sequence and those of several, which need caches of their own."""
    single = [w for w in workloads if w.n_sequences == 1]
    several = [w for w in workloads if w.n_sequences > 1]
    return [part for part in (single, several) if part]


def within(workloads: "list[Workload]", context: int) -> "list[Workload]":
    """Return the tests that a context has room for."""
    return [w for w in workloads if w.n_positions <= context]
