"""The text that comes along, and texts that are refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from quantcli.errors import UsageError
from quantcli.evaluate.corpus import BUILT_IN, read_text


def test_the_built_in_text_is_the_one_its_readme_describes() -> None:
    text = read_text()
    readme = (Path(__file__).parents[2] / "quantcli" / "data" / "README.md").read_text("utf-8")
    assert text.name == BUILT_IN
    assert "public domain" in text.title
    assert text.sha256 in readme
    assert f"{len(text.content.encode()) + 1:,} bytes" in readme
    assert len(text.content.split("\n\n")) == 6


def test_one_line_feed_at_the_end_is_dropped_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes(b"\xef\xbb\xbf one\r\n\n\n")
    text = read_text(path)
    assert text.content == "\ufeff one\r\n\n"
    assert (text.name, text.title) == ("a.txt", "a.txt")


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "is empty"),
        (b"\n", "is empty"),
        (b"ok \xff\xfe", "not valid UTF-8: byte 0xff at offset 3"),
        (b"caf\xc3", "byte 0xc3 at offset 3"),
    ],
)
def test_a_bad_text_is_refused(tmp_path: Path, data: bytes, message: str) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes(data)
    with pytest.raises(UsageError, match=message) as error:
        read_text(path)
    assert str(path) in str(error.value)


def test_a_missing_text_is_an_error_of_the_system(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        read_text(tmp_path / "none.txt")
