"""The text a user gives: from an option, a file or standard input, checked to be UTF-8."""

from __future__ import annotations

import sys
from typing import BinaryIO

from quantcli.errors import UsageError

MAX_NBYTES = 64 << 20  # far above any context; stops /dev/zero


def read_prompt(prompt: str | None, file: str | None) -> str | None:
    """Return the prompt given with -p or -f, else what is piped in; None on a terminal.

    One line break at the end of a file or of standard input is dropped, because editors and
    `echo` add it. The file "-" is standard input. Raises UsageError if the text is empty, given
    twice or not UTF-8.
    """
    if prompt is not None and file is not None:
        raise UsageError("two prompts are given, -p and -f. Give one.")
    if prompt is not None:
        text = checked_text(prompt, "the prompt")
    elif file is not None and file != "-":
        text = read_text(file)
    elif sys.stdin is None or (file is None and sys.stdin.isatty()):
        return None
    else:
        text = _decode(sys.stdin.buffer, "standard input")
    if not text:
        raise UsageError("the prompt is empty. Give some text with -p, -f or standard input.")
    return text


def read_text(file: str) -> str:
    """Return the text of a file without its last line break. Raises UsageError unless UTF-8."""
    with open(file, "rb") as stream:
        return _decode(stream, file)


def checked_text(text: str, name: str) -> str:
    """Return text from an argument or a terminal. Raises UsageError if it was not UTF-8.

    name   what the text is, for the error
    """
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise UsageError(
            f"{name} is not valid UTF-8 at character {error.start}. Give it as UTF-8 text."
        ) from None
    return text


def _decode(stream: BinaryIO, name: str) -> str:
    """Return the text of a stream. Raises UsageError naming the first byte that is not UTF-8."""
    data = stream.read(MAX_NBYTES + 1)
    if len(data) > MAX_NBYTES:
        raise UsageError(f"{name} holds more than {MAX_NBYTES >> 20} MiB, too long for a prompt.")
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        byte = data[error.start]
        raise UsageError(
            f"{name} is not valid UTF-8: byte 0x{byte:02x} at offset {error.start}. "
            "Convert it, for example with iconv -t utf-8."
        ) from None
    text = text.removeprefix("\ufeff")
    if text.endswith("\r\n"):
        return text[:-2]
    return text.removesuffix("\n")
