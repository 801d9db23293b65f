"""quantcli imatrix: which inputs of a model's matrices matter."""

# No "from __future__ import annotations" here: Typer reads the annotations.

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from typer import Option

from quantcli.cli.options import Json, ModelArgument, ModelOptions, OutputOptions, Threads, expand
from quantcli.errors import UsageError

if TYPE_CHECKING:
    from quantcli.checkpoint import Checkpoint
    from quantcli.cli.render import JsonValue, StatusLine
    from quantcli.quantize.imatrix import Imatrix

SUFFIX = ".imatrix.gguf"
DEFAULT_TOKENS = 65536


@dataclass(frozen=True, slots=True)
class TextOptions:
    """What runs through the model, and what comes of it; names are llama-imatrix's."""

    calib: Annotated[
        str,
        Option(
            "--calib",
            "-f",
            "--file",
            metavar="TEXT",
            help="Text to run through the model: a file, builtin, or self for what it writes.",
        ),
    ] = "builtin"
    calib_tokens: Annotated[
        int,
        Option("--calib-tokens", min=1, metavar="N", help="Tokens of that text to use."),
    ] = DEFAULT_TOKENS
    process_output: Annotated[
        bool,
        Option("--process-output", help="Measure the output matrix as well."),
    ] = False
    in_file: Annotated[
        list[Path] | None,
        Option(
            "--in-file",
            metavar="FILE",
            help="Add the counts of this importance matrix. Repeatable.",
            show_default=False,
        ),
    ] = None
    output: Annotated[
        Path | None,
        Option(
            "-o",
            "--output",
            metavar="FILE",
            help=f"File to write; by default MODEL{SUFFIX} in the current folder.",
            show_default=False,
        ),
    ] = None
    force: Annotated[bool, Option("--force", help="Replace a file that exists.")] = False
    threads: Threads = None


@expand
def command(
    model: ModelArgument = None,
    *,
    named: ModelOptions,
    given: TextOptions,
    said: OutputOptions,
    as_json: Json = False,
) -> None:
    """Measure which inputs of a model's matrices matter, for quantizing.

    The file is what llama-imatrix writes; 'quantcli quantize --imatrix' and llama-quantize read it.
    """
    from quantcli.checkpoint import open_checkpoint
    from quantcli.checkpoint.drafts import check_target
    from quantcli.checkpoint.store import resolve
    from quantcli.cli.render import StatusLine, emit_json, printable
    from quantcli.quantize.imatrix import merge, read_imatrix, write_imatrix

    status = StatusLine(verbose=said.verbose, quiet=said.quiet)
    before = [read_imatrix(path) for path in given.in_file or ()]
    try:
        path = resolve(named.choose(model), progress=status, notify=status.note)
        with open_checkpoint(path) as checkpoint:
            output = given.output or Path(f"{checkpoint.paths[0].stem}{SUFFIX}")
            check_target(output, force=given.force)
            found = merge([*before, _measured(checkpoint, given, status)])
        write_imatrix(output, found, force=given.force)
    finally:
        status.clear()
    for line in _unseen(found):
        status.warn(line)
    if as_json:
        emit_json(_document(output, found))
    else:
        print(printable(str(output)))


def _measured(checkpoint: "Checkpoint", given: TextOptions, status: "StatusLine") -> "Imatrix":
    """Run the text through the model, on a thread of its own."""
    from quantcli.arch import Hyper, get
    from quantcli.cli.worker import Worker
    from quantcli.quantize.calibrate import collect
    from quantcli.quantize.corpora import calibration
    from quantcli.text import from_metadata

    tokenizer = from_metadata(checkpoint.metadata)
    hyper = Hyper.from_metadata(checkpoint.metadata, checkpoint.tensors)
    plan = get(hyper.arch).build(hyper)
    if given.process_output and "output.weight" not in plan.weights:
        raise UsageError(
            "--process-output: this model's output matrix is its embedding, which has no entry. "
            "Leave the option out."
        )
    with Worker() as worker:
        progress = worker.checked(status)
        text = worker.call(
            lambda: calibration(
                given.calib,
                checkpoint,
                tokenizer,
                given.calib_tokens,
                n_threads=given.threads,
                progress=progress,
            )
        )
        return worker.call(
            lambda: collect(
                checkpoint,
                text,
                with_output=given.process_output,
                n_threads=given.threads,
                progress=progress,
            )
        )


def _unseen(found: "Imatrix") -> list[str]:
    """Return a warning for each stack of experts of which some saw no token."""
    return [
        f"{n} of {of} experts of {name} saw no token. Use a longer text."
        for name, (n, of) in found.unseen().items()
    ]


def _document(path: Path, found: "Imatrix") -> "dict[str, JsonValue]":
    """Return what was written, for --json."""
    entries: list[JsonValue] = [
        {
            "name": name,
            "n_in": int(entry.sums.shape[1]),
            "n_tokens": int(entry.counts.max()),
            "n_matrices": len(entry.counts),
            "n_unseen": entry.n_unseen,
        }
        for name, entry in sorted(found.entries.items())
    ]
    datasets: list[JsonValue] = list(found.datasets)
    return {
        "path": str(path),
        "datasets": datasets,
        "chunks": found.n_chunks,
        "chunk_size": found.chunk_size,
        "entries": entries,
    }
