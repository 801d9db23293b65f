"""The command-line reference, docs/cli.md, made from the commands themselves."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

INTRODUCTION = """\
# Command line

Made by `scripts/make_cli_docs` from the commands themselves; do not edit. Option names are
llama.cpp's where one exists.

The result of a command goes to standard output and nothing else does; progress, timings and errors
go to standard error, progress and timings only if it is a terminal or with `--verbose`. An error is
one line. `--debug`, anywhere on the line, or `QUANTCLI_DEBUG=1` adds the traceback.

| exit code | meaning |
|---:|---|
| 0 | done |
| 1 | the model, the machine or the network failed |
| 2 | the command line is wrong |
| 70 | a bug in quantcli |
| 130 | interrupted by Ctrl-C |
| 141 | the reader of the output went away, as with `head` |

A prompt is UTF-8; other bytes are refused, with their offset. One line break at the end of a file
or of standard input is dropped. An answer ends in a line break, added if the model wrote none.

| environment variable | meaning |
|---|---|
| `QUANTCLI_BACKEND` | `reference` runs the slow NumPy backend |
| `QUANTCLI_CACHE_DIR` | folder for compiled kernels |
| `QUANTCLI_DEBUG` | `1` shows tracebacks |
| `QUANTCLI_HOME` | folder for models and the chat's history |
| `QUANTCLI_ISA` | instruction set, one that `quantcli doctor` lists as usable |
| `QUANTCLI_NO_HISTORY` | `1` keeps the chat's history in memory only |
| `QUANTCLI_OFFLINE` | `1` never uses the network |
| `HF_HUB_CACHE`, `HF_HOME` | folder of the Hugging Face cache, where models are kept |
"""


class Parameter(Protocol):
    """A click parameter, as far as it is shown."""

    opts: list[str]
    secondary_opts: list[str]
    metavar: str | None
    required: bool
    default: object
    param_type_name: str


def reference() -> str:
    """Return the whole page."""
    import typer

    from quantcli import catalog
    from quantcli.cli.app import build

    group = typer.main.get_command(build())
    lines = [INTRODUCTION]
    for row in catalog.COMMANDS:
        command = group.commands[row.name]  # type: ignore[attr-defined]
        lines += _command(row.name, command.help or "", command.params)
    return "\n".join(lines)


def _command(name: str, text: str, parameters: list[Parameter]) -> Iterator[str]:
    arguments = [p for p in parameters if p.param_type_name == "argument"]
    options = [p for p in parameters if p.param_type_name == "option"]
    usage = " ".join(["quantcli", name, "[OPTIONS]", *map(_placeholder, arguments)])
    yield f"## quantcli {name}\n"
    yield f"    {usage}\n"
    yield f"{text.strip()}\n"
    yield "| option | meaning |"
    yield "|---|---|"
    for parameter in [*arguments, *options]:
        yield f"| {_names(parameter)} | {_meaning(parameter)} |"
    yield ""


def _placeholder(argument: Parameter) -> str:
    name = argument.metavar or ""
    return name if argument.required or name.startswith("[") else f"[{name}]"


def _names(parameter: Parameter) -> str:
    if parameter.param_type_name == "argument":
        return f"`{parameter.metavar}`"
    names = [f"`{option}`" for option in [*parameter.opts, *parameter.secondary_opts]]
    names[-1] = f"`{names[-1].strip('`')} {parameter.metavar}`" if parameter.metavar else names[-1]
    return ", ".join(names)


def _meaning(parameter: Parameter) -> str:
    help_text = str(getattr(parameter, "help", None) or "").replace("|", "\\|")
    default = parameter.default
    shown = getattr(parameter, "show_default", True) and isinstance(default, str | int | float)
    if shown and not isinstance(default, bool) and f"[{default}]" not in help_text:
        help_text += f" [{default}]"
    return help_text
