"""The chat on a real (pseudo-)terminal: keys, paste, Ctrl-C, Ctrl-D, history, restored settings."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

if sys.platform == "win32":
    pytest.skip("no pseudo-terminals", allow_module_level=True)

import pty
import termios

CHILD = Path(__file__).with_name("chat_child.py")
PASTE_BEGIN, PASTE_END = "\x1b[200~", "\x1b[201~"
CTRL_C, CTRL_D, ALT_ENTER, UP = "\x03", "\x04", "\x1b\r", "\x1b[A"
READY = "\x1b[?2004h"  # bracketed paste is switched on whenever a line is to be edited
DEADLINE_S = 120.0  # only for what hangs


class Terminal:
    """A chat on a pseudo-terminal."""

    def __init__(self, answers: list[list[str] | None], home: Path) -> None:
        self.master, slave = pty.openpty()
        self.before = termios.tcgetattr(slave)
        environment = {
            **os.environ,
            "PROMPT_TOOLKIT_NO_CPR": "1",
            "QUANTCLI_HOME": str(home),
            "PYTHONPATH": os.pathsep.join(p for p in (str(CHILD.parents[1]), *sys.path) if p),
            "TERM": "xterm",
        }
        self.child = subprocess.Popen(
            [sys.executable, str(CHILD), json.dumps(answers)],
            stdin=slave,
            stdout=slave,
            stderr=slave,
            env=environment,
            start_new_session=True,
        )
        self.slave = slave
        self.seen = ""

    def type(self, text: str) -> None:
        os.write(self.master, text.encode())

    def wait_for(self, text: str) -> str:
        """Read until a text appears; return what came before it since the last time."""
        end = time.monotonic() + DEADLINE_S
        os.set_blocking(self.master, False)
        while text not in self.seen:
            assert time.monotonic() < end, f"{text!r} never came, but {self.seen!r}"
            try:
                self.seen += os.read(self.master, 65536).decode("utf-8", "replace")
            except BlockingIOError:
                time.sleep(0.01)
        before, _, self.seen = self.seen.partition(text)
        return before

    def ended(self) -> tuple[list[str], int]:
        """Wait for the end; return what the model was asked and how many answers were stopped."""
        self.wait_for("asked ")
        line = self.wait_for("\n")
        asked, _, cancelled = line.rpartition(" cancelled ")
        assert self.child.wait(DEADLINE_S) == 0
        return json.loads(asked), int(cancelled)

    def is_restored(self) -> bool:
        return termios.tcgetattr(self.slave) == self.before

    def close(self) -> None:
        if self.child.poll() is None:
            self.child.kill()
            self.child.wait()
        os.close(self.master)
        os.close(self.slave)


@pytest.fixture
def opened(tmp_path: Path) -> Iterator[list[Terminal]]:
    """Close the terminals a test opened."""
    terminals: list[Terminal] = []
    yield terminals
    for each in terminals:
        each.close()


def start(opened: list[Terminal], home: Path, answers: list[list[str] | None]) -> Terminal:
    chat = Terminal(answers, home)
    opened.append(chat)
    chat.wait_for(READY)
    return chat


def test_a_turn_and_ctrl_d(opened: list[Terminal], tmp_path: Path) -> None:
    chat = start(opened, tmp_path, [["hel", "lo there"]])
    chat.type("hi\r")
    chat.wait_for("hello there")
    chat.wait_for(READY)
    chat.type(CTRL_D)
    assert chat.ended() == (["user:hi|"], 0)
    assert chat.is_restored()


def test_ctrl_c_stops_the_answer_and_not_the_program(
    opened: list[Terminal], tmp_path: Path
) -> None:
    chat = start(opened, tmp_path, [None, ["second"]])
    chat.type("go\r")
    chat.wait_for("xxxxx")
    chat.type(CTRL_C)
    chat.wait_for(READY)
    chat.type("again\r")
    chat.wait_for("second")
    chat.wait_for(READY)
    chat.type("/exit\r")
    asked, n_cancelled = chat.ended()
    assert n_cancelled == 1
    assert asked[1].startswith("user:go|assistant:xxxxx")  # what there was is kept
    assert asked[1].endswith("|user:again|")
    assert chat.is_restored()


def test_ctrl_c_at_the_prompt_empties_the_line(opened: list[Terminal], tmp_path: Path) -> None:
    chat = start(opened, tmp_path, [["x"]])
    chat.type("never sent" + CTRL_C)
    chat.wait_for(READY)
    chat.type("sent\r")
    chat.wait_for(READY)
    chat.type(CTRL_D)
    assert chat.ended()[0] == ["user:sent|"]


def test_pasted_lines_are_one_message(opened: list[Terminal], tmp_path: Path) -> None:
    chat = start(opened, tmp_path, [["x"]])
    chat.type(f"{PASTE_BEGIN}one\r\ntwo\r\n\tthree{PASTE_END}")
    chat.type("\r")
    chat.wait_for(READY)
    chat.type(CTRL_D)
    assert chat.ended()[0] == ["user:one\ntwo\n\tthree|"]


@pytest.mark.parametrize("key", [ALT_ENTER, "\\\r"], ids=["alt-enter", "backslash"])
def test_a_message_can_have_lines(opened: list[Terminal], tmp_path: Path, key: str) -> None:
    chat = start(opened, tmp_path, [["x"]])
    chat.type(f"one{key}two\r")
    chat.wait_for(READY)
    chat.type(CTRL_D)
    assert chat.ended()[0] == ["user:one\ntwo|"]


def test_history_outlives_the_chat_and_is_private(opened: list[Terminal], tmp_path: Path) -> None:
    chat = start(opened, tmp_path, [["x"]])
    chat.type("remember me\r")
    chat.wait_for(READY)
    chat.type(CTRL_D)
    chat.ended()
    history = tmp_path / "chat_history"
    assert "remember me" in history.read_text(encoding="utf-8")
    assert history.stat().st_mode & 0o777 == 0o600
    later = start(opened, tmp_path, [["y"]])
    later.type(UP + "\r")
    later.wait_for(READY)
    later.type(CTRL_D)
    assert later.ended()[0] == ["user:remember me|"]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
@pytest.mark.parametrize("answering", [False, True])
def test_the_terminal_is_restored_when_the_process_is_told_to_end(
    opened: list[Terminal], tmp_path: Path, number: int, answering: bool
) -> None:
    chat = start(opened, tmp_path, [None])
    if answering:
        chat.type("go\r")
        chat.wait_for("xxx")
    assert answering or not chat.is_restored()  # line editing has its own settings
    chat.child.send_signal(number)
    assert chat.child.wait(DEADLINE_S) == 128 + number
    assert chat.is_restored()
