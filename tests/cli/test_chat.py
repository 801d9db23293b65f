"""The chat's turns and commands, with a scripted user and a scripted engine."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from fake_runtime import FakeEngine, FakeModel, fake_loaded, full

from quantcli.cli.chat import COMMANDS, HELP, SESSION, Chat
from quantcli.cli.options import SamplingOptions
from quantcli.cli.render import StatusLine
from quantcli.cli.worker import Worker
from quantcli.engine.request import SamplingParams
from quantcli.errors import QuantcliError


class Script:
    """A user who types what is written down; an exception is raised in a message's place."""

    def __init__(self, lines: list[str | BaseException], *, says_yes: bool = False) -> None:
        self.lines: Iterator[str | BaseException] = iter(lines)
        self.says_yes = says_yes
        self.questions: list[str] = []

    def message(self) -> str:
        for line in self.lines:
            if isinstance(line, BaseException):
                raise line
            return line
        raise EOFError

    def confirm(self, question: str) -> bool:
        self.questions.append(question)
        return self.says_yes


def chat(
    lines: list[str | BaseException],
    answers: list[list[str] | QuantcliError | None],
    *,
    says_yes: bool = False,
    system: str | None = None,
    templated: bool = True,
    context: int = 64,
) -> tuple[Chat, FakeEngine]:
    """Hold a chat to its end."""
    engine = FakeEngine(answers)
    loaded = fake_loaded(engine, FakeModel(context=context), chat=templated)
    reader = Script(lines, says_yes=says_yes)
    with Worker() as worker:
        held = Chat(
            loaded,
            worker,
            StatusLine(),
            SamplingOptions(),
            SamplingParams(),
            reader,
            templated,
            system,
        )
        held.loop()
    return held, engine


def prompts(engine: FakeEngine) -> list[str]:
    return ["".join(map(chr, request.tokens)) for request in engine.requests]


def test_every_turn_holds_the_whole_conversation(capsys: pytest.CaptureFixture[str]) -> None:
    held, engine = chat(["hi", "more"], [["he", "llo"], ["yes"]], system="be")
    assert prompts(engine) == [
        "system:be|user:hi|",
        "system:be|user:hi|assistant:hello|user:more|",
    ]
    assert {request.session for request in engine.requests} == {SESSION}
    assert capsys.readouterr().out == "hello\nyes\n"
    assert len(held.messages) == 4


def test_an_empty_line_is_no_message() -> None:
    _, engine = chat(["", "  \n"], [])
    assert engine.requests == []


def test_lines_of_a_message_reach_the_model_as_they_are() -> None:
    _, engine = chat(["  a\n\tb "], [["x"]])
    assert prompts(engine) == ["user:  a\n\tb |"]


def test_two_slashes_are_one() -> None:
    _, engine = chat(["//help me"], [["x"]])
    assert prompts(engine) == ["user:/help me|"]


def test_clear_forgets_but_keeps_the_system_message() -> None:
    _, engine = chat(["a", "/clear", "b"], [["x"], ["y"]], system="be")
    assert prompts(engine)[1] == "system:be|user:b|"


def test_system_sets_replaces_and_removes() -> None:
    _, engine = chat(["/system one two", "a", "/system", "b"], [["x"], ["y"]])
    assert prompts(engine) == ["system:one two|user:a|", "user:b|"]


def test_regen_asks_the_last_question_again() -> None:
    held, engine = chat(["a", "/regen"], [["x"], ["y"]])
    assert prompts(engine) == ["user:a|", "user:a|"]
    assert held.messages[-1] == {"role": "assistant", "content": "y"}


def test_regen_keeps_the_old_answer_if_there_is_no_new_one() -> None:
    held, _ = chat(["a", "/regen"], [["x"], full(99, 64)])
    assert held.messages[-1] == {"role": "assistant", "content": "x"}


def test_regen_without_a_question_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    chat(["/regen"], [])
    assert "nothing to answer again" in capsys.readouterr().err


def test_help_names_every_command_once(capsys: pytest.CaptureFixture[str]) -> None:
    chat(["/help"], [])
    assert capsys.readouterr().out == HELP + "\n"
    for name in set(COMMANDS) - {"quit", "bye"}:
        assert f"/{name}" in HELP


@pytest.mark.parametrize("word", ["/exit", "/quit", "/bye", "/exit now"])
def test_exit_leaves(word: str) -> None:
    _, engine = chat([word, "a"], [["x"]])
    assert engine.requests == []


def test_an_unknown_command_is_an_error_and_the_chat_goes_on(
    capsys: pytest.CaptureFixture[str],
) -> None:
    _, engine = chat(["/hlep", "a"], [["x"]])
    assert "unknown command /hlep" in capsys.readouterr().err
    assert len(engine.requests) == 1


def test_ctrl_c_at_the_prompt_does_not_leave() -> None:
    _, engine = chat([KeyboardInterrupt(), "a"], [["x"]])
    assert len(engine.requests) == 1


def test_a_second_ctrl_c_at_the_prompt_says_how_to_leave(
    capsys: pytest.CaptureFixture[str],
) -> None:
    chat([KeyboardInterrupt(), "", KeyboardInterrupt()], [])
    assert capsys.readouterr().err == ""
    chat([KeyboardInterrupt(), KeyboardInterrupt(), KeyboardInterrupt()], [])
    assert capsys.readouterr().err == "Ctrl-D or /exit leaves.\n"


def test_a_failed_turn_leaves_the_conversation_as_it_was(
    capsys: pytest.CaptureFixture[str],
) -> None:
    held, engine = chat(["a", "b", "c"], [["x"], full(99, 64), ["z"]])
    assert prompts(engine)[2] == "user:a|assistant:x|user:c|"
    assert "error: the prompt is 99 tokens" in capsys.readouterr().err
    assert len(held.messages) == 4


def test_a_full_context_says_how_to_go_on(capsys: pytest.CaptureFixture[str]) -> None:
    held, engine = chat(["a" * 70], [])
    assert engine.requests == []
    assert held.messages == []
    error = capsys.readouterr().err
    assert "the conversation is 76 tokens and the context 64" in error
    assert "/clear" in error


def test_save_writes_json_and_asks_before_it_overwrites(tmp_path: Path) -> None:
    path = tmp_path / "my chat.json"
    chat(["a", f"/save {path}"], [["\u4e2d"]], system="be")
    saved = json.loads(path.read_text(encoding="utf-8"))
    assert saved["messages"] == [
        {"role": "system", "content": "be"},
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": "\u4e2d"},
    ]
    before = path.read_bytes()
    held, _ = chat(["b", f"/save {path}"], [["x"]])
    assert held.reader.questions == [f"{path} exists. Overwrite it?"]  # type: ignore[attr-defined]
    assert path.read_bytes() == before
    chat(["b", f"/save {path}"], [["x"]], says_yes=True)
    assert path.read_bytes() != before


def test_save_into_a_folder_that_is_not_there_is_an_error_and_the_chat_goes_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _, engine = chat([f"/save {tmp_path / 'no' / 'x'}", "/save", "a"], [["x"]])
    errors = capsys.readouterr().err
    assert "No such file or directory" in errors
    assert "/save needs the name of a file" in errors
    assert len(engine.requests) == 1


def test_without_a_template_the_text_is_continued() -> None:
    _, engine = chat(["once", "more"], [["upon"], ["x"]], templated=False)
    assert prompts(engine) == ["once\n", "once\nupon\nmore\n"]


def test_save_that_fails_leaves_the_file_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "chat.json"
    path.write_text("before", encoding="utf-8")

    def full_disk(draft: Path, text: str, encoding: str) -> None:
        draft.write_bytes(text.encode(encoding)[:3])
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(Path, "write_text", full_disk)
    chat(["a", f"/save {path}"], [["x"]], says_yes=True)
    assert str(path) in capsys.readouterr().err
    assert path.read_bytes() == b"before"
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize(
    "line", ["\udcffa", "/system \udcff", "/save ~no-such-user/x", "/save a\0b"]
)
def test_what_cannot_be_a_message_or_a_file_is_an_error_and_the_chat_goes_on(
    line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    held, engine = chat([line, "a"], [["x"]])
    assert capsys.readouterr().err.count("error: ") == 1
    assert prompts(engine) == ["user:a|"]
    assert held.system is None
