"""quantcli convert: a Hugging Face folder as one GGUF file."""

# No "from __future__ import annotations" here: Typer reads the annotations.

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from typer import Argument, Option

from quantcli.cli.options import Json, OutputOptions, expand

if TYPE_CHECKING:
    from quantcli.cli.render import JsonValue, StatusLine
    from quantcli.huggingface.convert import Converted
    from quantcli.huggingface.folder import FolderCheckpoint


FolderArgument = Annotated[
    str,
    Argument(
        metavar="MODEL",
        help="A Hugging Face folder (config.json, safetensors), or org/repo of the hub.",
        show_default=False,
    ),
]


@expand
def command(
    model: FolderArgument,
    *,
    output: Annotated[
        Path | None,
        Option(
            "-o",
            "--output",
            metavar="FILE",
            help="The file to write; by default FOLDER-TYPE.gguf in the current folder.",
            show_default=False,
        ),
    ] = None,
    type_name: Annotated[
        str,
        Option(
            "-t",
            "--type",
            metavar="TYPE",
            help="bf16, f16, f32, q8_0, or auto: the model's own 16-bit type.",
        ),
    ] = "auto",
    pre: Annotated[
        str | None,
        Option(
            "--pre",
            metavar="NAME",
            help="How a byte-level vocabulary splits words, where that is not recognised.",
            show_default=False,
        ),
    ] = None,
    force: Annotated[bool, Option("--force", help="Replace a file that exists.")] = False,
    json: Json = False,
    said: OutputOptions,
) -> None:
    """Convert a Hugging Face folder to a GGUF file.

    Its keys and tensors are those that llama.cpp's converter writes.
    """
    from quantcli.checkpoint.store import resolve_folder
    from quantcli.cli.render import StatusLine, emit_json, printable
    from quantcli.huggingface.convert import plan_conversion
    from quantcli.huggingface.folder import open_model

    status = StatusLine(verbose=said.verbose, quiet=said.quiet)
    try:
        folder = resolve_folder(model, progress=status, notify=status.warn)
        with open_model(folder, pre=pre) as checkpoint:
            plan = plan_conversion(checkpoint, output, type_name)
            seconds = _convert(checkpoint, plan, status, force=force)
    finally:
        status.clear()
    if json:
        emit_json(_document(plan, seconds))
    else:
        print(printable(str(plan.path)))


def _convert(
    checkpoint: "FolderCheckpoint", plan: "Converted", status: "StatusLine", *, force: bool
) -> float:
    """Write the file and return how long it took."""
    from time import monotonic

    from quantcli.huggingface.convert import convert
    from quantcli.runtime.memory import size

    began = monotonic()

    def progress(done: int, total: int) -> None:
        rate = done / max(monotonic() - began, 1e-3)
        status("Converting", done, total, f"{size(done)} of {size(total)}, {size(int(rate))}/s")

    convert(checkpoint, plan, force=force, progress=progress)
    return monotonic() - began


def _document(plan: "Converted", seconds: float) -> "dict[str, JsonValue]":
    """Return what was written, for --json."""
    from math import prod

    counts: dict[str, int] = {}
    for tensor in plan.tensors:
        counts[tensor.format.name] = counts.get(tensor.format.name, 0) + 1
    return {
        "path": str(plan.path),
        "type": plan.type,
        "architecture": str(plan.metadata["general.architecture"]),
        "n_params": sum(prod(tensor.shape) for tensor in plan.tensors),
        "n_tensors": len(plan.tensors),
        "tensors": dict(sorted(counts.items())),
        "nbytes": plan.nbytes,
        "seconds": round(seconds, 3),
    }
