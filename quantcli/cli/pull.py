"""quantcli pull: download a model, or verify the one that is here."""

# No "from __future__ import annotations" here: Typer reads the annotations.

from typing import Annotated

from typer import Argument, Option

from quantcli.cli.options import OutputOptions, expand


@expand
def command(
    model: Annotated[
        str,
        Argument(
            metavar="MODEL",
            help="A name from 'quantcli list --all', org/repo:QUANT or org/repo/file.gguf.",
            show_default=False,
        ),
    ],
    *,
    offline: Annotated[
        bool, Option("--offline", help="Only say where the model is; do not use the network.")
    ] = False,
    said: OutputOptions,
) -> None:
    """Download a model."""
    from quantcli.checkpoint.store import pull
    from quantcli.cli.render import StatusLine, printable

    status = StatusLine(verbose=said.verbose, quiet=said.quiet)
    try:
        path = pull(model, progress=status, notify=status.warn, offline=offline)
    finally:
        status.clear()
    print(printable(str(path)))
