"""The catalog and the files agree: each row has its module, each such module its row."""

from __future__ import annotations

import ast
from importlib import import_module
from pathlib import Path

import pytest

import quantcli
from quantcli import catalog
from quantcli.catalog import Row
from quantcli.errors import UnknownName

# kind -> the name that a module of that kind defines; None where several rows share one module
DEFINES = {
    "format": "FORMAT",
    "architecture": "ARCH",
    "container": "open_model",
    "cache": "create",
    "KV cache type": None,
    "command": "command",
    "quantizer": "QUANTIZER",
}

ROWS = [
    pytest.param(kind, row, id=f"{kind.replace(' ', '_')}-{row.name}")
    for kind, rows in catalog._KINDS.items()
    for row in rows
]
OWN_FILES = [kind for kind, name in DEFINES.items() if name is not None]


def folder(kind: str) -> Path:
    """Return the folder in which the modules of a kind lie."""
    packages = {catalog.lookup(kind, n).module.rsplit(".", 1)[0] for n in catalog.names(kind)}
    (package,) = packages
    return Path(quantcli.__file__).parent.joinpath(*package.split(".")[1:])


def top_level_names(path: Path) -> set[str]:
    """Return the names that a source file binds at its top level, imports left out."""
    names = set()
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.Assign):
            names |= {target.id for target in node.targets if isinstance(target, ast.Name)}
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            names.add(node.target.id)
    return names


def test_this_test_knows_every_kind() -> None:
    assert set(DEFINES) == set(catalog._KINDS)


@pytest.mark.parametrize("kind", DEFINES)
def test_names_are_sorted_and_each_is_there_once(kind: str) -> None:
    names = catalog.names(kind)
    assert list(names) == sorted(set(names))


@pytest.mark.parametrize(("kind", "row"), ROWS)
def test_row_imports_and_its_module_defines_what_the_kind_needs(kind: str, row: Row) -> None:
    module = catalog.load(kind, row.name)
    assert module is import_module(row.module)
    defined = DEFINES[kind]
    if defined is not None:
        thing = getattr(module, defined)
        assert callable(thing) or thing.name == row.name


@pytest.mark.parametrize(("kind", "row"), ROWS)
def test_name_is_spelled_like_its_file(kind: str, row: Row) -> None:
    assert row.name == row.name.lower()
    if DEFINES[kind] is not None:
        assert row.module.rsplit(".", 1)[1] == row.name.replace("-", "_")


@pytest.mark.parametrize("kind", OWN_FILES)
def test_every_file_that_should_have_a_row_has_one(kind: str) -> None:
    defining = {p.stem for p in folder(kind).glob("*.py") if DEFINES[kind] in top_level_names(p)}
    names = {name.replace("-", "_") for name in catalog.names(kind)}
    assert defining - {"__init__"} == names


@pytest.mark.parametrize(("kind", "row"), ROWS)
def test_summary_is_one_short_line(kind: str, row: Row) -> None:
    assert row.summary == " ".join(row.summary.split())
    assert 0 < len(row.summary) <= 80
    assert row.summary.endswith(".") == (kind == "command")


@pytest.mark.parametrize(("kind", "row"), ROWS)
def test_a_slip_in_a_name_is_answered_with_the_right_one(kind: str, row: Row) -> None:
    slip = row.name + "_"
    with pytest.raises(UnknownName) as caught:
        catalog.load(kind, slip)
    assert caught.value.closest == row.name
    assert str(caught.value).startswith(f"unknown {kind} {slip!r}. Did you mean {row.name}?")
    assert ", ".join(catalog.names(kind)) in str(caught.value)
