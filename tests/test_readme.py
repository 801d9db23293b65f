"""README.md shows commands, options and files that exist, and CI runs what it shows."""

from __future__ import annotations

import re

import pytest
from source_tree import ROOT

from quantcli import catalog

TEXT = (ROOT / "README.md").read_text(encoding="utf-8")
CODE = [line.strip() for line in TEXT.splitlines() if line.startswith("    ")]
COMMANDS = [
    part.split(" #")[0].strip()
    for line in CODE
    for part in line.split("&&")
    if part.strip().startswith("quantcli ")
]


@pytest.mark.parametrize("command", COMMANDS)
def test_command_exists(command: str) -> None:
    assert command.split()[1] in catalog.names("command")


@pytest.mark.parametrize("command", COMMANDS)
def test_options_are_documented(command: str) -> None:
    document = (ROOT / "docs" / "cli.md").read_text(encoding="utf-8")
    options = [word for word in command.split() if re.fullmatch(r"--?[a-z][\w-]*", word)]
    assert [o for o in options if not re.search(rf"(?<![\w-]){o}(?![\w-])", document)] == []


def test_every_command_is_shown() -> None:
    unseen = [name for name in catalog.names("command") if not re.search(rf"\b{name}\b", TEXT)]
    assert unseen == []


@pytest.mark.parametrize("target", re.findall(r"\]\(([^)#:]+)\)", TEXT))
def test_link_leads_somewhere(target: str) -> None:
    assert (ROOT / target).exists()


def test_every_architecture_and_format_is_listed() -> None:
    found = re.findall(r"[\w.]+", TEXT) + re.findall(r"[\w-]+", TEXT)
    words = {word.lower() for word in found}
    assert {*catalog.names("architecture"), *catalog.names("format")} <= words


def test_continuous_integration_runs_the_test_command_as_shown() -> None:
    (command,) = [line for line in CODE if "pytest" in line]
    assert command in (ROOT / ".ci" / "run").read_text(encoding="utf-8").splitlines()


def test_continuous_integration_runs_the_first_command_as_shown() -> None:
    (command,) = [line for line in CODE if line.startswith("python -m pip install . ")]
    workflow = (ROOT / ".github" / "workflows" / "ci.yml").read_text(encoding="utf-8")
    assert all(f"- run: {part.strip()}\n" in workflow for part in command.split("&&"))
