"""ARCHITECTURE.md names what exists: every path and dotted name in backticks resolves."""

from __future__ import annotations

import re
from importlib import import_module
from importlib.util import find_spec

import pytest
from source_tree import PACKAGE, ROOT
from test_layers import LAYERS

from quantcli import catalog

TEXT = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
QUOTED = sorted(set(re.findall(r"`([^`\n]+)`", TEXT)))
IS_PATH = re.compile(r"[\w.-]+(/[\w.-]*)+|[\w-]+\.(md|py|toml)")
IS_DOTTED_NAME = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)+")

PATHS = [quoted for quoted in QUOTED if IS_PATH.fullmatch(quoted)]
NAMES = [quoted for quoted in QUOTED if quoted not in PATHS and IS_DOTTED_NAME.fullmatch(quoted)]


def resolves(name: str) -> bool:
    """Return whether a dotted name is a module, or something in a module, of quantcli or at all."""
    return any(_lookup(full) for full in (f"quantcli.{name}", name))


def _lookup(name: str) -> bool:
    parts = name.split(".")
    if find_spec(parts[0]) is None:
        return False
    found: object = import_module(parts[0])
    for n in range(1, len(parts)):
        module = ".".join(parts[: n + 1])
        if not hasattr(found, parts[n]):
            if not hasattr(found, "__path__") or find_spec(module) is None:
                return False
            found = import_module(module)
        else:
            found = getattr(found, parts[n])
    return True


@pytest.mark.parametrize("path", PATHS)
def test_path_exists(path: str) -> None:
    assert (ROOT / path).exists() or (PACKAGE / path).exists()


@pytest.mark.parametrize("name", NAMES)
def test_name_resolves(name: str) -> None:
    assert resolves(name)


def test_the_check_refuses_what_does_not_exist() -> None:
    assert resolves("plan.Plan.verify")
    assert not resolves("plan.Plan.execute")
    assert not resolves("plan.nothing")
    assert not resolves("nothing.at_all")


def test_every_layer_that_exists_is_drawn() -> None:
    drawn = TEXT.split("## Layers")[1].split("## ")[0]
    exists = [n for row in LAYERS for n in row if find_spec(f"quantcli.{n}") and n != "__main__"]
    assert [name for name in exists if not re.search(rf"\b{name}\b", drawn)] == []


def test_the_document_stays_short() -> None:
    assert len(TEXT.splitlines()) <= 130


def test_every_kind_of_row_has_a_line_in_the_table() -> None:
    tables = {n for n in vars(catalog) if n.isupper() and not n.startswith("_")}
    assert {f"catalog.{table}" for table in tables} <= set(QUOTED)
