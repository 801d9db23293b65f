"""Every command of the catalog: help, lazy imports, bad input, documentation."""

from __future__ import annotations

import inspect

import pytest
import typer
from source_tree import ROOT

from quantcli import catalog
from quantcli.catalog import Row
from quantcli.cli.app import build, main
from quantcli.cli.reference import reference

ROWS = [pytest.param(row, id=row.name) for row in catalog.COMMANDS]
GROUP = typer.main.get_command(build())


@pytest.mark.parametrize("row", ROWS)
def test_help_begins_with_the_catalogs_summary(
    row: Row, capsys: pytest.CaptureFixture[str]
) -> None:
    doc = inspect.getdoc(catalog.load("command", row.name).command)
    assert doc is not None
    assert doc.splitlines()[0] == row.summary
    assert main(["--help"]) == 0
    assert row.summary in capsys.readouterr().out


@pytest.mark.parametrize("row", ROWS)
def test_help_is_plain_text_on_standard_output(
    row: Row, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([row.name, "--help"]) == 0
    captured = capsys.readouterr()
    assert captured.err == ""
    assert captured.out.startswith(f"Usage: quantcli {row.name}")
    assert row.summary in " ".join(captured.out.split())
    assert "\x1b" not in captured.out


@pytest.mark.parametrize("row", ROWS)
def test_an_unknown_option_is_one_line_and_exit_code_2(
    row: Row, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([row.name, "--no-such-option"]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("error: No such option: --no-such-option")
    assert f"See 'quantcli {row.name} --help'." in captured.err
    assert captured.err.count("\n") == 1


@pytest.mark.parametrize("row", ROWS)
def test_every_option_has_help_and_no_name_is_used_twice(row: Row) -> None:
    command = GROUP.commands[row.name]  # type: ignore[attr-defined]
    names = [name for p in command.params for name in (*p.opts, *p.secondary_opts)]
    assert len(names) == len(set(names))
    for parameter in command.params:
        assert parameter.help, parameter.name
        assert parameter.help.endswith((".", "]")), parameter.help


def test_the_reference_is_current() -> None:
    text = (ROOT / "docs" / "cli.md").read_text(encoding="utf-8")
    assert text == reference(), "run scripts/make_cli_docs"


@pytest.mark.parametrize("row", ROWS)
def test_the_reference_names_every_option(row: Row) -> None:
    section = reference().split(f"## quantcli {row.name}\n")[1].split("\n## ")[0]
    for parameter in GROUP.commands[row.name].params:  # type: ignore[attr-defined]
        if parameter.param_type_name == "option":
            assert all(f"`{name}" in section for name in parameter.opts)
