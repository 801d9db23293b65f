"""quantcli rm: asks, deletes what was downloaded, and nothing else."""

from __future__ import annotations

import io
import sys
from pathlib import Path

import pytest

from quantcli.checkpoint import hub_cache
from quantcli.checkpoint.inventory import installed
from quantcli.cli.app import main

REPO = "org/Tiny-GGUF"


class Keyboard(io.StringIO):
    """Standard input that says it is a terminal."""

    def isatty(self) -> bool:
        """Return that it is one."""
        return True


@pytest.fixture(autouse=True)
def two_models() -> None:
    for quant, data in (("Q4_0", b"4444"), ("Q8_0", b"88888888")):
        path = hub_cache.snapshot_path(REPO, "c" * 40, f"tiny-{quant}.gguf")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)


def left() -> list[str]:
    return [model.name for model in installed()]


def test_yes_deletes_without_asking(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["rm", f"{REPO}:Q8_0", "--yes"]) == 0
    assert capsys.readouterr() == (f"removed {REPO}:Q8_0: 8 bytes\n", "")
    assert left() == [f"{REPO}:Q4_0"]


def test_several_names_may_overlap(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["rm", "-y", REPO, f"{REPO}:Q4_0"]) == 0
    assert capsys.readouterr().out == f"removed {REPO}:Q4_0, {REPO}:Q8_0: 12 bytes\n"
    assert left() == []


@pytest.mark.parametrize(
    ("answer", "code", "n_left"),
    [("y\n", 0, 1), ("YES\n", 0, 1), ("n\n", 1, 2), ("\n", 1, 2), ("", 1, 2), ("yy\n", 1, 2)],
)
def test_on_a_terminal_only_yes_is_yes(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    answer: str,
    code: int,
    n_left: int,
) -> None:
    monkeypatch.setattr(sys, "stdin", Keyboard(answer))
    assert main(["rm", f"{REPO}:Q4_0"]) == code
    assert f"Remove {REPO}:Q4_0 (4 bytes, hub cache)? [y/N]" in capsys.readouterr().err
    assert len(left()) == n_left


def test_without_a_terminal_nothing_is_deleted_unasked(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO("y\n"))
    assert main(["rm", REPO]) == 2
    assert "Add --yes" in capsys.readouterr().err
    assert len(left()) == 2


def test_one_wrong_name_deletes_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["rm", "-y", f"{REPO}:Q4_0", "org/other"]) == 2
    assert "unknown downloaded model 'org/other'" in capsys.readouterr().err
    assert len(left()) == 2


def test_a_users_own_file_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "mine.gguf"
    path.write_bytes(b"GGUF")
    assert main(["rm", "-y", str(path)]) == 2
    assert "is your own file" in capsys.readouterr().err
    assert path.exists()
