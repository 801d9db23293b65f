"""The words of a command line: llama.cpp's spellings, and what is said about a wrong value."""

from __future__ import annotations

import pytest
import typer

from quantcli.cli import app
from quantcli.cli.arguments import separated
from quantcli.errors import UsageError

OPTIONS = {"-n": True, "-c": True, "-ctk": True, "--temp": True, "-p": True, "-v": False}
OPTIONS |= {"-q": False, "-no-cnv": False}


@pytest.mark.parametrize(
    ("words", "same"),
    [
        (["-n3"], ["-n", "3"]),
        (["-n-1"], ["-n", "-1"]),
        (["-c=256"], ["-c", "256"]),
        (["-ctk=q8_0"], ["-ctk", "q8_0"]),
        (["--temp=0", "x"], ["--temp=0", "x"]),
        (["-p", "-ngl"], ["-p", "-ngl"]),
        (["-p", "--", "-n3"], ["-p", "--", "-n", "3"]),
        (["--", "-ngl"], ["--", "-ngl"]),
        (["-vq", "-no-cnv"], ["-vq", "-no-cnv"]),
        (["-", "-n"], ["-", "-n"]),
    ],
)
def test_a_number_or_a_value_after_an_equals_sign_is_separated(
    words: list[str], same: list[str]
) -> None:
    assert separated(words, OPTIONS) == same


@pytest.mark.parametrize("word", ["-ngl", "-phi", "-nkvo", "-ub", "-vx", "-no", "-cb=1"])
def test_letters_behind_a_letter_are_not_its_value(word: str) -> None:
    with pytest.raises(UsageError, match=f"no such option: {word}"):
        separated([word], OPTIONS)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["-n", "gl"], "-n, --max-tokens, --predict, --n-predict: 'gl' must be a whole number."),
        (["-t", "0"], "-t, --threads: '0' must be 1 or more."),
        (["-t=99999"], "-t, --threads: '99999' must be 1024 or less."),
        (["--seed", "1.5"], "-s, --seed: '1.5' must be a whole number."),
        (["--temp", "warm"], "--temp, --temperature: 'warm' must be a number."),
    ],
)
def test_a_wrong_value_is_said(words: list[str], message: str) -> None:
    command = typer.main.get_command(app.build())
    with pytest.raises(UsageError) as error, command.make_context("quantcli", ["run"]) as context:
        command.commands["run"].make_context("run", ["m", *words], parent=context)  # type: ignore[attr-defined]
    code, sentence = app.explain(error.value)
    assert code == 2
    assert sentence == f"{message} See 'quantcli run --help'."
