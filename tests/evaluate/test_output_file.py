"""Files appear whole or not at all, and never in place of another by accident."""

from __future__ import annotations

from pathlib import Path

import pytest

from quantcli.errors import UsageError
from quantcli.evaluate.output_file import check_free, draft


def test_a_file_appears_at_the_end_only(tmp_path: Path) -> None:
    path = tmp_path / "a"
    with draft(path, "--html", force=False) as file:
        file.write(b"text")
        assert not path.exists()
    assert path.read_bytes() == b"text"
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_an_error_leaves_nothing_behind(tmp_path: Path, error: type[BaseException]) -> None:
    with pytest.raises(error), draft(tmp_path / "a", "--html", force=False):
        raise error
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_exists_stays_unless_forced(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_bytes(b"old")
    with pytest.raises(UsageError, match=r"--html .*a exists.*--force"):
        check_free(path, "--html", force=False)
    with draft(path, "--html", force=True) as file:
        file.write(b"new")
    assert path.read_bytes() == b"new"


def test_a_file_that_came_meanwhile_stays(tmp_path: Path) -> None:
    path = tmp_path / "a"

    def write_late() -> None:
        with draft(path, "--html", force=False) as file:
            file.write(b"ours")
            path.write_bytes(b"theirs")

    with pytest.raises(UsageError, match="exists"):
        write_late()
    assert path.read_bytes() == b"theirs"
    assert list(tmp_path.iterdir()) == [path]


def test_folders_are_checked_before_the_work(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="is a folder"):
        check_free(tmp_path, "--html", force=True)
    with pytest.raises(UsageError, match="there is no folder"):
        check_free(tmp_path / "none" / "a", "--html", force=True)
