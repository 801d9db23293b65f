"""What is printed: aligned, and without anything that a terminal would obey."""

from __future__ import annotations

import json
import math
import os

import pytest

from quantcli.cli import render


def test_columns_are_aligned() -> None:
    text = render.table(("name", "n"), [("a", "1"), ("long", "100")], right="lr")
    assert text == "name    n\na       1\nlong  100"


def test_markdown_escapes_its_own_separator() -> None:
    text = render.markdown(("a", "b"), [("x|y", "1")], right="lr")
    assert text == "| a | b |\n| :--- | ---: |\n| x\\|y | 1 |"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain \u00e9\u4e2d", "plain \u00e9\u4e2d"),
        ("\x1b]0;title\x07", "\\x1b]0;title\\x07"),
        ("a\nb\r", "a\\nb\\r"),
        ("\x9b2J", "\\x9b2J"),
        ("left\u202eright", "left\\u202eright"),
        ("no\u00a0break", "no\u00a0break"),
    ],
)
def test_control_characters_are_shown_and_not_sent(text: str, shown: str) -> None:
    assert render.printable(text) == shown
    assert render.table((text[:0],), [(text,)]).strip() == shown


def test_an_answer_keeps_its_lines_and_tabs() -> None:
    assert render.harmless("a\tb\nc\x1b[31m\u0007\r") == "a\tb\nc\\x1b[31m\\x07\\r"


def test_json_is_valid_whatever_the_numbers(capsys: pytest.CaptureFixture[str]) -> None:
    render.emit_json({"a": math.inf, "b": [math.nan, 1.5], "c": "\u4e2d", "d": (1, 2), "e": None})
    got = json.loads(capsys.readouterr().out)
    assert got == {"a": None, "b": [None, 1.5], "c": "\u4e2d", "d": [1, 2], "e": None}


def test_facts_have_units_and_words() -> None:
    text = render.facts({"x_nbytes": 1500, "y": None, "z": True, "n": 49152, "list": ["a", "b"]})
    assert text.split() == [
        "x",
        "1.50",
        "kB",
        "y",
        "none",
        "z",
        "yes",
        "n",
        "49,152",
        "list",
        "a,",
        "b",
    ]


def test_shortened_text_says_so() -> None:
    assert render.shorten("abcdef", 6) == "abcdef"
    assert render.shorten("abcdefg", 6) == "abc..."


def test_status_is_silent_without_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    status = render.StatusLine()
    status("loading", 1, 2)
    status.note("done")
    status.clear()
    assert capsys.readouterr().err == ""


def test_status_prints_each_stage_once_when_verbose(capsys: pytest.CaptureFixture[str]) -> None:
    status = render.StatusLine(verbose=True)
    status("loading", 1, 2)
    status("loading", 2, 2)
    status("compiling", 1, 0)
    status.note("done")
    assert capsys.readouterr().err == "loading\ncompiling\ndone\n"


def test_a_warning_is_shown_unless_quiet(capsys: pytest.CaptureFixture[str]) -> None:
    render.StatusLine().warn("context full")
    render.StatusLine(quiet=True).warn("not this")
    assert capsys.readouterr().err == "context full\n"


def test_status_is_rewritten_on_a_terminal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stderr.isatty", lambda: True, raising=False)
    status = render.StatusLine()
    status("compiling", 1, 4)
    status("compiling", 2, 4)  # too soon to be shown
    status("loading", 0, 0)
    status.clear()
    out = capsys.readouterr().err
    assert out.startswith("\rcompiling 25%")
    assert "50%" not in out
    assert out.endswith("\r" + " " * len("loading") + "\r")


def test_a_detail_is_shown_on_a_terminal_and_is_no_new_stage(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    verbose = render.StatusLine(verbose=True)
    verbose("measuring", 0, 4, "tg128")
    verbose("measuring", 1, 4, "pp512")
    assert capsys.readouterr().err == "measuring\n"
    monkeypatch.setattr("sys.stderr.isatty", lambda: True, raising=False)
    render.StatusLine()("measuring", 1, 4, "tg128\x1b")
    assert capsys.readouterr().err.endswith("measuring 25%: tg128\\x1b")


def test_status_is_no_wider_than_the_terminal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stderr.isatty", lambda: True, raising=False)
    monkeypatch.setattr("sys.stderr.fileno", lambda: 2, raising=False)
    monkeypatch.setattr("os.get_terminal_size", lambda _: os.terminal_size((20, 5)))
    render.StatusLine()("a stage with a long name", 0, 0)
    assert capsys.readouterr().err == "\ra stage with a l...\ra stage with a l..."
