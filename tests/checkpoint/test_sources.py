"""The rows of models/: every one is well formed, and a malformed one is refused."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from source_tree import ROOT

from quantcli import catalog
from quantcli.checkpoint.names import HubName, parse
from quantcli.checkpoint.quants import is_model
from quantcli.checkpoint.sources import ModelRow, find, models_folder, read_row, rows
from quantcli.errors import UnknownName


def test_the_source_trees_rows_are_found() -> None:
    assert models_folder().resolve() == ROOT / "models"
    assert {path.stem for path in (ROOT / "models").glob("*.toml")} == set(rows())


@pytest.mark.parametrize("row", rows().values(), ids=lambda row: row.name)
def test_every_row_is_well_formed(row: ModelRow) -> None:
    assert row.arch in catalog.names("architecture")
    assert row.title
    assert row.licence
    assert row.name == row.name.lower()
    if row.folder:
        assert (models_folder() / row.folder / "config.json").is_file()
    else:
        assert is_model(row.file)
        assert parse(f"{row.hub.repo}/{row.file}") == HubName(row.hub.repo, file=row.file)
    assert row.licence in row.licence_line
    assert "\n" not in row.licence_line
    if not row.folder and "apache" not in row.licence.lower():
        assert row.licence_url.startswith("https://")


@pytest.mark.parametrize("row", rows().values(), ids=lambda row: row.name)
def test_every_name_and_alias_leads_to_its_row(row: ModelRow) -> None:
    for name in (row.name, *row.aliases, row.name.upper()):
        assert find(name) is row


def test_no_name_is_used_twice() -> None:
    names = Counter(name for row in rows().values() for name in (row.name, *row.aliases))
    assert [name for name, n in names.items() if n > 1] == []


def test_the_two_models_of_the_tests_have_a_mirror() -> None:
    for name, n_wheels in (("smollm2", 1), ("gemma3-270m", 4)):
        row = find(name)
        assert len(row.wheels) == n_wheels
        assert row.sha256
        # A wheel compresses; it never holds more than it says.
        assert sum(wheel.nbytes for wheel in row.wheels) <= row.nbytes


def test_an_unknown_name_says_what_is_known() -> None:
    with pytest.raises(UnknownName, match=r"Did you mean gemma3-270m\?.*smollm2"):
        find("gemma3-270")


GOOD = """
title = "Tiny"
arch = "llama"
licence = "MIT"
file = "tiny.gguf"
[hub]
repo = "org/repo"
"""
WHEEL = '\n[[wheels]]\npackage = "p"\nversion = "1"\nmember = "m"\nnbytes = 1\n'


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (f'sha265 = "{"0" * 64}"' + GOOD, "sha265"),
        ('sha256 = "abc"' + GOOD, "sha256 is not 64"),
        (GOOD.replace('licence = "MIT"', ""), "licence"),
        (GOOD.replace("[hub]\n", ""), "hub"),
        (GOOD + 'colour = "red"', "colour"),
        (GOOD + WHEEL, "needs sha256 and nbytes"),
        (GOOD + WHEEL.replace("member", "members"), "members"),
    ],
)
def test_a_malformed_row_is_refused(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "tiny.toml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(ValueError, match=rf"tiny\.toml: .*{message}"):
        read_row(path)


def test_a_row_may_leave_out_what_is_not_known(tmp_path: Path) -> None:
    path = tmp_path / "tiny.toml"
    path.write_text(GOOD, encoding="utf-8")
    row = read_row(path)
    assert (row.name, row.sha256, row.nbytes, row.wheels) == ("tiny", "", 0, ())
