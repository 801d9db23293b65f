"""Reading a prompt: one source, UTF-8, no line break that an editor added."""

from __future__ import annotations

import io
import os
from pathlib import Path

import pytest

from quantcli.cli.prompt import MAX_NBYTES, read_prompt
from quantcli.errors import UsageError


class Piped(io.TextIOWrapper):
    """Standard input from a pipe."""

    def __init__(self, data: bytes) -> None:
        super().__init__(io.BytesIO(data), encoding="utf-8")


def test_an_option_is_taken_as_it_is() -> None:
    assert read_prompt("a\n\u4e2d\n", None) == "a\n\u4e2d\n"


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b"a", "a"),
        (b"a\n", "a"),
        (b"a\r\n", "a"),
        (b"a\n\n", "a\n"),
        (b"\xef\xbb\xbfa", "a"),
        (b"\na\nb", "\na\nb"),
        ("\u4e2d\u6587\U0001f600".encode(), "\u4e2d\u6587\U0001f600"),
        (b"nul \x00 stays", "nul \x00 stays"),
    ],
)
def test_a_file_and_a_pipe_give_the_same_text(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, data: bytes, text: str
) -> None:
    path = tmp_path / "prompt.txt"
    path.write_bytes(data)
    assert read_prompt(None, str(path)) == text
    monkeypatch.setattr("sys.stdin", Piped(data))
    assert read_prompt(None, None) == text


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "the prompt is empty"),
        (b"\n", "the prompt is empty"),
        (b"\xef\xbb\xbf", "the prompt is empty"),
        (b"abc\xff", "byte 0xff at offset 3"),
        (b"\xc3", "byte 0xc3 at offset 0"),
        (b"a\xed\xa0\x80", "byte 0xed at offset 1"),
        (b"a" * (MAX_NBYTES + 1), "more than 64 MiB"),
    ],
)
def test_what_is_no_text_is_refused_with_the_place(
    monkeypatch: pytest.MonkeyPatch, data: bytes, message: str
) -> None:
    monkeypatch.setattr("sys.stdin", Piped(data))
    with pytest.raises(UsageError, match=message):
        read_prompt(None, None)


def test_an_argument_that_the_system_could_not_decode_is_refused() -> None:
    argument = os.fsdecode(b"ab\xff") if os.name != "nt" else "ab\udcff"
    with pytest.raises(UsageError, match="not valid UTF-8 at character 2"):
        read_prompt(argument, None)


def test_two_prompts_are_refused() -> None:
    with pytest.raises(UsageError, match="two prompts"):
        read_prompt("a", "b")


def test_a_missing_file_is_the_systems_error() -> None:
    with pytest.raises(FileNotFoundError):
        read_prompt(None, "no such file")


def test_without_standard_input_there_is_no_prompt(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", None)
    assert read_prompt(None, None) is None


def test_a_dash_is_standard_input(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", Piped(b"piped\n"))
    assert read_prompt(None, "-") == "piped"
