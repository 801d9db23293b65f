"""quantcli rm: delete downloaded models; a file that the user put somewhere is never touched."""

# No "from __future__ import annotations" here: Typer reads the annotations.

from typing import Annotated

from typer import Argument, Exit, Option

from quantcli.errors import UsageError


def command(
    names: Annotated[
        list[str],
        Argument(metavar="MODEL...", help="Names from 'quantcli list', or org/repo for all of it."),
    ],
    yes: Annotated[bool, Option("--yes", "-y", help="Do not ask.")] = False,
) -> None:
    """Remove a downloaded model."""
    from quantcli.checkpoint.quants import size_text
    from quantcli.checkpoint.store import delete, matching
    from quantcli.cli.render import printable

    models = {model.paths: model for name in names for model in matching(name)}.values()
    if not yes:
        question = ", ".join(f"{m.name} ({size_text(m.nbytes)}, {m.where})" for m in models)
        if not confirmed(printable(f"Remove {question}?")):
            raise Exit(1)
    freed = delete(models)
    print(printable(f"removed {', '.join(model.name for model in models)}: {size_text(freed)}"))


def confirmed(question: str) -> bool:
    """Return whether the user agrees; nothing but "y" or "yes" does.

    Raises UsageError where nobody can be asked.
    """
    import sys

    if sys.stdin is None or not sys.stdin.isatty():
        raise UsageError("nobody can be asked, as the input is no terminal. Add --yes to remove.")
    print(f"{question} [y/N] ", end="", file=sys.stderr, flush=True)
    return sys.stdin.readline().strip().lower() in ("y", "yes")
