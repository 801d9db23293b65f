"""The chat of `quantcli run` on a terminal: turns, slash commands, Ctrl-C for the answer only."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from quantcli.cli import generation, terminal
from quantcli.cli.prompt import checked_text
from quantcli.errors import QuantcliError, UsageError

if TYPE_CHECKING:
    from quantcli.cli.generation import Loaded, Message
    from quantcli.cli.options import PromptOptions, SamplingOptions
    from quantcli.cli.render import StatusLine
    from quantcli.cli.worker import Worker
    from quantcli.engine.request import SamplingParams

SESSION = 1  # the engine keeps the cache of a session between turns

HELP = """\
/help           show this
/clear          forget the conversation, keep the system message
/system TEXT    set the system message and forget the conversation; without TEXT remove it
/regen          answer the last message again
/save FILE      write the conversation to a file as JSON
/exit           leave; so does Ctrl-D
Ctrl-C          stop the answer, or empty the line
Alt-Enter       a new line; pasted text keeps its lines
//TEXT          a message that begins with a slash"""


class Leave(Exception):
    """The user wants to leave the chat."""


class Reader(Protocol):
    """Where messages come from: a terminal, or a script in tests."""

    def message(self) -> str:
        """Return the next message. Raises EOFError at the end, KeyboardInterrupt for Ctrl-C."""
        ...

    def confirm(self, question: str) -> bool:
        """Return whether the user says yes; Ctrl-C and Ctrl-D say no."""
        ...


@dataclass
class Chat:
    """A conversation and what may be done with it."""

    loaded: Loaded
    worker: Worker
    status: StatusLine
    sampling: SamplingOptions
    params: SamplingParams
    reader: Reader
    templated: bool
    system: str | None = None
    messages: list[Message] = field(default_factory=list)

    def loop(self) -> None:
        """Take messages until the user leaves. Ctrl-C at the prompt empties the line."""
        n_interrupts = 0
        while True:
            try:
                line = self.reader.message()
                n_interrupts = 0
                self.handle(line)
            except (EOFError, Leave):
                return
            except KeyboardInterrupt:
                n_interrupts += 1
                if n_interrupts == 2:
                    self.status.warn("Ctrl-D or /exit leaves.")
            except (QuantcliError, OSError) as error:
                self.status.warn(f"error: {_sentence(error)}")

    def handle(self, line: str) -> None:
        """Carry out a slash command, or answer a message."""
        text = checked_text(line, "the message").strip()
        if text.startswith("//"):
            self.answer(text[1:])
        elif text.startswith("/"):
            name, _, rest = text[1:].partition(" ")
            command = COMMANDS.get(name)
            if command is None:
                known = ", ".join(f"/{known}" for known in COMMANDS)
                raise UsageError(f"unknown command /{name}. Known: {known}. Use // for a slash.")
            command(self, rest.strip())
        elif text:
            self.answer(line)

    def answer(self, text: str) -> None:
        """Answer a message and keep both; if there is no answer, keep neither."""
        messages = [*self.messages, {"role": "user", "content": text}]
        answer = generation.Answer(
            self.loaded.engine,
            generation.request(self._tokens(messages), self.sampling, self.params, SESSION),
            self.worker,
        )
        generation.collect(answer, generation.write)
        generation.write("" if answer.text.endswith("\n") else "\n")
        self.messages = [*messages, {"role": "assistant", "content": answer.text}]
        generation.note_finish(answer, self.loaded, self.status)
        if answer.stats is not None and self.status.verbose:
            self.status.note(generation.timings(self.loaded, answer.stats))

    def _tokens(self, messages: list[Message]) -> tuple[int, ...]:
        """Return the prompt of a conversation. Raises UsageError if the context is too short."""
        system: list[Message] = [{"role": "system", "content": self.system}] if self.system else []
        if not self.templated:
            text = "".join(f"{message['content']}\n" for message in [*system, *messages])
            return tuple(self.loaded.tokenizer.encode(text))
        tokens = self.loaded.chat_tokens([*system, *messages])
        context = self.loaded.model.context
        if len(tokens) >= context and not self.sampling.context_shift:
            raise UsageError(
                f"the conversation is {len(tokens)} tokens and the context {context}. "
                "/clear starts anew; a larger --ctx, or --context-shift, lets it go on."
            )
        return tokens

    def show_help(self, _: str) -> None:
        """Show the commands."""
        print(HELP)

    def clear(self, _: str) -> None:
        """Forget the conversation."""
        self.messages = []

    def set_system(self, text: str) -> None:
        """Set or remove the system message; what was said under another one is forgotten."""
        self.system = text or None
        self.messages = []

    def regenerate(self, _: str) -> None:
        """Answer the last message again."""
        if len(self.messages) < 2:
            raise UsageError("there is nothing to answer again yet.")
        *earlier, question, _answer = self.messages
        kept, self.messages = self.messages, list(earlier)
        try:
            self.answer(question["content"])
        except BaseException:
            self.messages = kept
            raise

    def save(self, name: str) -> None:
        """Write the conversation to a file; ask before one that exists is overwritten."""
        import json

        if not name:
            raise UsageError("/save needs the name of a file.")
        path = _path(name)
        if path.exists() and not self.reader.confirm(f"{path} exists. Overwrite it?"):
            print("not saved")
            return
        system = [{"role": "system", "content": self.system}] if self.system else []
        document = {"model": self.loaded.name, "messages": [*system, *self.messages]}
        _write_whole(path, json.dumps(document, ensure_ascii=False, indent=2) + "\n")
        print(f"saved {len(self.messages)} messages to {path}")

    def leave(self, _: str) -> None:
        """Leave the chat."""
        raise Leave


COMMANDS: dict[str, Callable[[Chat, str], None]] = {
    "help": Chat.show_help,
    "clear": Chat.clear,
    "system": Chat.set_system,
    "regen": Chat.regenerate,
    "save": Chat.save,
    "exit": Chat.leave,
    "quit": Chat.leave,
    "bye": Chat.leave,
}


def converse(
    loaded: Loaded,
    worker: Worker,
    status: StatusLine,
    given: PromptOptions,
    sampling: SamplingOptions,
) -> None:
    """Chat on this terminal until the user leaves."""
    params = sampling.params(loaded.metadata)
    templated = loaded.uses_chat(given.chat)
    with terminal.restored():
        reader = terminal.TerminalReader(COMMANDS)
        status.warn(f"{loaded.name}, context {loaded.model.context}. /help shows the commands.")
        if not templated:
            status.warn("Without a chat template the model continues the text it is given.")
        system = given.system
        Chat(loaded, worker, status, sampling, params, reader, templated, system).loop()


def _path(name: str) -> Path:
    """Return a path, `~` resolved. Raises UsageError for one that no file can have."""
    try:
        path = Path(name).expanduser()
    except RuntimeError:  # no such user, or no home
        raise UsageError(f"{name} is in a home folder that is not known. Give the path.") from None
    if "\0" in name:
        raise UsageError("a file's name cannot hold a NUL character. Give another.")
    return path


def _write_whole(path: Path, text: str) -> None:
    """Write a file, or leave what was there if the disk is full."""
    if path.exists() and not path.is_file():  # a device or a pipe
        path.write_text(text, encoding="utf-8")
        return
    path = path.resolve()  # a link stays one
    draft = path.with_name(f"{path.name}.partial")
    try:
        draft.write_text(text, encoding="utf-8")
        if path.exists():
            draft.chmod(path.stat().st_mode & 0o7777)
        draft.replace(path)
    except OSError as error:
        draft.unlink(missing_ok=True)
        error.filename = str(path)
        raise


def _sentence(error: Exception) -> str:
    if isinstance(error, OSError):
        place = f": {error.filename}" if error.filename else ""
        return f"{error.strerror or error}{place}"
    return str(error)
