"""The chat's history: private, bounded, and never a reason to fail."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from prompt_toolkit.history import FileHistory, InMemoryHistory

from quantcli.cli import terminal


def test_the_file_is_made_for_its_owner_alone(tmp_path: Path) -> None:
    path = terminal.private_file(tmp_path / "deep" / "history")
    assert path.read_bytes() == b""
    if sys.platform != "win32":
        path.chmod(0o644)
        terminal.private_file(path)
        assert path.stat().st_mode & 0o777 == 0o600


def test_what_is_there_stays_until_it_is_too_much(tmp_path: Path) -> None:
    path = tmp_path / "history"
    path.write_bytes(b"+old\n")
    assert terminal.private_file(path).read_bytes() == b"+old\n"
    path.write_bytes(b"x" * (terminal._MAX_HISTORY_NBYTES + 1))
    assert terminal.private_file(path).read_bytes() == b""


def test_history_is_kept_in_quantclis_folder(folders: Path) -> None:
    assert isinstance(terminal.open_history(), FileHistory)
    assert (folders / "quantcli" / "chat_history").exists()


def test_the_environment_keeps_it_in_memory(folders: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QUANTCLI_NO_HISTORY", "1")
    assert isinstance(terminal.open_history(), InMemoryHistory)
    assert not (folders / "quantcli").exists()


def test_a_folder_that_cannot_be_written_keeps_it_in_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("in the way", encoding="utf-8")
    monkeypatch.setenv("QUANTCLI_HOME", str(tmp_path / "file"))
    assert isinstance(terminal.open_history(), InMemoryHistory)
