"""quantcli list: the models on this machine, and those that can be pulled by name."""

# No "from __future__ import annotations" here: Typer reads the annotations.

from datetime import datetime
from typing import TYPE_CHECKING, Annotated

from typer import Option

from quantcli.cli.options import Json

if TYPE_CHECKING:
    from quantcli.checkpoint.store import InstalledModel
    from quantcli.cli.render import JsonValue

HEADERS = ("name", "size", "format", "where", "last used")


def command(
    everything: Annotated[
        bool, Option("--all", "-a", help="Also list the models that can be pulled by name.")
    ] = False,
    as_json: Json = False,
) -> None:
    """List the models on this machine."""
    import sys

    from quantcli.checkpoint.store import installed, partial
    from quantcli.cli import render

    models = [facts(model) for model in (*installed(), *partial())]
    names = {model["name"] for model in models}
    if everything:
        models += [known for known in known_facts() if known["name"] not in names]
    if as_json:
        render.emit_json(models)
    elif models:
        print(render.table(HEADERS, [cells(model) for model in models], right="lr"))
    else:
        print("No model is here. Run 'quantcli pull smollm2', or see --all.", file=sys.stderr)


def facts(model: "InstalledModel") -> "dict[str, JsonValue]":
    """Return what is known about a downloaded model, or a partial one."""
    used = datetime.fromtimestamp(model.last_used).astimezone()
    return {
        "name": model.name,
        "nbytes": model.nbytes,
        "format": model.format(),
        "where": model.where,
        "last_used": used.isoformat(timespec="seconds"),
        "paths": [str(path) for path in model.paths],
    }


def known_facts() -> "list[dict[str, JsonValue]]":
    """Return what is known about the models that have a name; a size of 0 is not stated."""
    from quantcli.checkpoint.quants import quant_of
    from quantcli.checkpoint.sources import models_folder, rows
    from quantcli.cli.machine import folder_nbytes

    found: list[dict[str, JsonValue]] = []
    for row in rows().values():
        folder = models_folder() / row.folder if row.folder else None
        found.append(
            {
                "name": row.name,
                "nbytes": row.nbytes if folder is None else folder_nbytes(folder),
                "format": (quant_of(row.file) or "").lower() if folder is None else "safetensors",
                "where": "not here" if folder is None else "in quantcli",
                "last_used": None,
                "paths": [] if folder is None else [str(folder)],
                "licence": row.licence,
            }
        )
    return found


def cells(model: "dict[str, JsonValue]") -> tuple[str, ...]:
    """Return a model's row of the table."""
    from quantcli.checkpoint.quants import size_text

    used = str(model["last_used"] or "")[:16].replace("T", " ")
    nbytes = int(str(model["nbytes"]))
    size = size_text(nbytes) if nbytes else ""
    return (str(model["name"]), size, str(model["format"]), str(model["where"]), used)
