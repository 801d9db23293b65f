"""The terminal of a chat: line editing with history, and its settings given back on every exit."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from prompt_toolkit.history import History
    from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent

Settings = list[int | list[bytes | int]]

PROMPT = ">>> "
CONTINUATION = "... "
_MAX_HISTORY_NBYTES = 4 << 20


@contextmanager
def restored() -> Iterator[None]:
    """Give the terminal back as it was, also when the process is told to end.

    SIGTERM and SIGHUP become SystemExit, so that line editing can clean up behind itself.
    """
    before = _settings()
    handlers = {}

    def leave(number: int, _: FrameType | None) -> None:
        raise SystemExit(128 + number)

    for name in ("SIGTERM", "SIGHUP"):
        number = getattr(signal, name, None)
        if number is not None:
            handlers[number] = signal.signal(number, leave)
    try:
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
        _restore(before)


def _settings() -> Settings | None:
    """Return the terminal's settings, None where there are none to give back."""
    if sys.platform == "win32":
        return None  # prompt_toolkit sets and resets the console mode around each line
    import termios

    try:
        return termios.tcgetattr(sys.stdin)
    except (termios.error, ValueError, OSError):
        return None


def _restore(settings: Settings | None) -> None:
    if settings is None or sys.platform == "win32":
        return
    import termios

    try:
        termios.tcsetattr(sys.stdin, termios.TCSADRAIN, settings)
    except (termios.error, ValueError, OSError):
        return  # the terminal is gone


class TerminalReader:
    """Reads messages with line editing, history, completion of commands and bracketed paste."""

    def __init__(self, commands: Iterable[str]) -> None:
        """Open the history; `commands` complete after a slash."""
        from prompt_toolkit import PromptSession
        from prompt_toolkit.completion import WordCompleter

        words = WordCompleter([f"/{name}" for name in commands], sentence=True)
        self._session = PromptSession(
            PROMPT,
            history=open_history(),
            multiline=True,
            prompt_continuation=CONTINUATION,
            key_bindings=_keys(),
            completer=words,
            complete_while_typing=False,
        )

    def message(self) -> str:
        """Return the next message. Raises EOFError for Ctrl-D, KeyboardInterrupt for Ctrl-C."""
        return str(self._session.prompt())

    def confirm(self, question: str) -> bool:
        """Return whether the user says yes; anything else is no."""
        try:
            return input(f"{question} [y/N] ").strip().lower() in ("y", "yes")
        except (EOFError, KeyboardInterrupt):
            print()
            return False


def _keys() -> KeyBindings:
    """Return the keys of a chat: Enter sends, Alt-Enter or a backslash before Enter goes on."""
    from prompt_toolkit.key_binding import KeyBindings

    keys = KeyBindings()

    def send(event: KeyPressEvent) -> None:
        buffer = event.current_buffer
        if buffer.document.text_before_cursor.endswith("\\"):
            buffer.delete_before_cursor()
            buffer.insert_text("\n")
        else:
            buffer.validate_and_handle()

    def newline(event: KeyPressEvent) -> None:
        event.current_buffer.insert_text("\n")

    keys.add("enter")(send)
    keys.add("escape", "enter")(newline)
    return keys


def open_history() -> History:
    """Return the history of messages, in a file that only its owner can read.

    In memory alone if QUANTCLI_NO_HISTORY is set or the file cannot be written. A file that has
    grown beyond 4 MiB starts anew.
    """
    from prompt_toolkit.history import FileHistory, InMemoryHistory

    if os.environ.get("QUANTCLI_NO_HISTORY", "") not in ("", "0"):
        return InMemoryHistory()
    try:
        return FileHistory(str(private_file(history_path())))
    except OSError:
        return InMemoryHistory()


def history_path() -> Path:
    """Return where the history of messages is kept."""
    from quantcli.checkpoint.home import home

    return home() / "chat_history"


def private_file(path: Path) -> Path:
    """Make sure a file exists, is writable, and is readable by its owner alone."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.exists() and path.stat().st_size > _MAX_HISTORY_NBYTES:
        path.unlink()
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    try:
        if hasattr(os, "fchmod"):
            os.fchmod(descriptor, 0o600)
    finally:
        os.close(descriptor)
    return path
