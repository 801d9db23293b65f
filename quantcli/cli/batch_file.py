"""Prompts and answers as JSON lines: what is asked, what is answered, and what is left to do.

While answers come they are appended to FILE.part, each as it is finished, behind a first line that
says what they answer. When all are there they go to FILE, in the order of the prompts. A run that
was broken off goes on from FILE.part, provided it is asked for the same.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import BinaryIO

from quantcli.errors import ResourceError, UsageError

MAX_LINE_NBYTES = 16 << 20
# What a line may say besides its prompt, and the parameter it sets.
PARAMS = {
    "max_tokens": "max_tokens",
    "temperature": "temperature",
    "top_k": "top_k",
    "top_p": "top_p",
    "min_p": "min_p",
    "repeat_penalty": "repeat_penalty",
    "presence_penalty": "presence_penalty",
    "frequency_penalty": "frequency_penalty",
    "seed": "seed",
    "stop": "stop",
}
_KEYS = {"id", "prompt", "messages", "system", *PARAMS}
Document = dict[str, object]


@dataclass(frozen=True, slots=True)
class Prompt:
    """One line of the file of prompts.

    line       its number, from 1
    id         what the user calls it, or None
    text       the prompt, or None if there are messages
    messages   of a chat
    params     sampling parameters of its own
    """

    line: int
    id: str | int | None
    text: str | None
    messages: tuple[Mapping[str, str], ...]
    params: Mapping[str, object]


def read_prompts(path: Path) -> tuple[list[Prompt], str]:
    """Return the prompts of a file, and a hash of it.

    Raises UsageError naming the first line that is wrong.
    """
    digest = sha256()
    prompts = []
    with path.open("rb") as stream:
        for number, line in enumerate(_lines(stream, path), 1):
            digest.update(line)
            if line.strip():
                prompts.append(_prompt(number, line, f"{path}, line {number}"))
    if not prompts:
        raise UsageError(f"{path} has no prompts. Write one JSON object a line, with a prompt.")
    return prompts, digest.hexdigest()


def _lines(stream: BinaryIO, path: Path) -> Iterator[bytes]:
    while line := stream.readline(MAX_LINE_NBYTES + 1):
        if len(line) > MAX_LINE_NBYTES:
            raise UsageError(f"{path} has a line of more than {MAX_LINE_NBYTES >> 20} MiB.")
        yield line


def _prompt(number: int, line: bytes, where: str) -> Prompt:
    try:
        value = json.loads(line.decode("utf-8-sig"))
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{where} is no JSON: {error}.") from None
    if isinstance(value, str):
        value = {"prompt": value}
    if not isinstance(value, dict):
        raise UsageError(f'{where} is no JSON object. Write {{"prompt": TEXT}}.')
    if unknown := sorted(set(value) - _KEYS):
        raise UsageError(f"{where}: unknown key {unknown[0]!r}. Known: {', '.join(sorted(_KEYS))}.")
    name = value.get("id")
    if name is not None and not isinstance(name, str | int):
        raise UsageError(f"{where}: id is {name!r}; it must be a string or a whole number.")
    text, messages = value.get("prompt"), value.get("messages")
    if (text is None) == (messages is None):
        raise UsageError(f"{where} must have either a prompt or messages.")
    if text is not None and (not isinstance(text, str) or not text):
        raise UsageError(f"{where}: the prompt must be text.")
    if messages is not None:
        _check_messages(messages, where)
    params = {PARAMS[key]: value[key] for key in PARAMS if value.get(key) is not None}
    if isinstance(params.get("stop"), str | list):
        stop = params["stop"]
        params["stop"] = (stop,) if isinstance(stop, str) else tuple(stop)
    return Prompt(number, name, text, tuple(messages or ()), params)


def _check_messages(messages: object, where: str) -> None:
    if not isinstance(messages, list) or not messages:
        raise UsageError(f"{where}: messages must be a list of at least one message.")
    for message in messages:
        is_message = isinstance(message, dict) and all(
            isinstance(message.get(key), str) for key in ("role", "content")
        )
        if not is_message:
            raise UsageError(f"{where}: a message has a role and a content, both text.")


class Answers:
    """The answers of a run, on disk as they come. A context manager."""

    def __init__(self, path: Path, asked: Document, *, force: bool) -> None:
        """Open the file of answers that are finished, or begin it.

        path    where all of them go in the end
        asked   what they answer; the same for a run that goes on
        force   write over what is there

        Raises UsageError if the file exists, or if the answers begun there are of something else.
        """
        self.path = path
        self.part = path.with_name(path.name + ".part")
        self.done: dict[int, Document] = {}
        if path.exists() and not force:
            raise UsageError(f"{path} exists. Use another -o, or --force to write over it.")
        if force:
            self.part.unlink(missing_ok=True)
        if self.part.exists():
            self.asked, n_whole = self._read(asked)
            os.truncate(self.part, n_whole)  # a last line that was torn
        else:
            self.asked = asked
            self._write([asked])

    @property
    def seed(self) -> int:
        """The seed that the seeds of the answers are counted from."""
        return int(str(self.asked["seed"]))

    def add(self, document: Document) -> None:
        """Write an answer behind those that are there."""
        self.done[int(str(document["line"]))] = document
        self._write([document])

    def finish(self) -> None:
        """Put all answers where they belong, in the order of their prompts."""
        lines = [_dump(self.done[line]) for line in sorted(self.done)]
        partial = self.path.with_name(self.path.name + ".new")
        partial.write_bytes(b"".join(lines))
        os.replace(partial, self.path)
        self.part.unlink()

    def _write(self, documents: list[Document]) -> None:
        try:
            with self.part.open("ab") as stream:
                stream.write(b"".join(map(_dump, documents)))
        except OSError as error:
            raise ResourceError(f"{self.part} cannot be written: {error.strerror}.") from error

    def _read(self, asked: Document) -> tuple[Document, int]:
        """Return what the answers begun are of, and the bytes of their whole lines."""
        n_whole = 0
        first: Document | None = None
        with self.part.open("rb") as stream:
            for line in _lines(stream, self.part):
                if not line.endswith(b"\n"):
                    break
                document = self._document(line)
                if first is None:
                    first = document
                else:
                    self.done[int(str(document["line"]))] = document
                n_whole += len(line)
        if first is None:
            raise UsageError(f"{self.part} is damaged. Remove it, or use --force to begin anew.")
        # Without a seed asked for, a run that goes on keeps the one that was drawn.
        kept = {**first, "seed": asked["seed"]} if not asked["is_seeded"] else first
        if kept != json.loads(_dump(asked)):
            differing = sorted(key for key in asked if kept.get(key) != asked[key])
            raise UsageError(
                f"{self.part} holds answers to something else ({', '.join(differing) or 'older'} "
                "differs). Ask for the same to go on, or use --force to begin anew."
            )
        return first, n_whole

    def _document(self, line: bytes) -> Document:
        try:
            document = json.loads(line)
            if isinstance(document, dict):
                return document
        except ValueError:
            pass
        raise UsageError(f"{self.part} is damaged. Remove it, or use --force to begin anew.")


def _dump(document: Document) -> bytes:
    return (json.dumps(document, ensure_ascii=False) + "\n").encode("utf-8", "surrogatepass")
