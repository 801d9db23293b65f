"""The text to evaluate on: a file of the user's, or the one that comes with quantcli."""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import sha256
from importlib.resources import files
from pathlib import Path

from quantcli.errors import UsageError

BUILT_IN = "sotu-1990-2020.txt"
BUILT_IN_TITLE = "State of the Union addresses 1990-2020, public domain, part of quantcli"
MAX_NBYTES = 1 << 30  # stops /dev/zero


@dataclass(frozen=True, slots=True)
class Text:
    """A text and where it comes from.

    sha256  of the file's bytes
    """

    name: str
    title: str
    content: str
    sha256: str


def read_text(path: str | Path | None = None) -> Text:
    """Return the text of a UTF-8 file, by default of the one that comes with quantcli.

    One line feed at the end is dropped, as llama.cpp does. Raises UsageError for a file that is
    empty, too large or not UTF-8, OSError for one that cannot be read.
    """
    if path is None:
        data = files("quantcli").joinpath("data", BUILT_IN).read_bytes()
        return _decode(BUILT_IN, f"{BUILT_IN} ({BUILT_IN_TITLE})", data)
    path = Path(path)
    with path.open("rb") as file:
        data = file.read(MAX_NBYTES + 1)
    if len(data) > MAX_NBYTES:
        raise UsageError(
            f"{path} holds more than {MAX_NBYTES >> 20} MiB of text. Use a part of it."
        )
    return _decode(str(path), path.name, data)


def decode_utf8(name: str, data: bytes) -> str:
    """Return bytes as text. Raises UsageError that gives the first byte that is not UTF-8."""
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise UsageError(
            f"{name} is not valid UTF-8: byte 0x{data[error.start]:02x} at offset {error.start}. "
            "Convert it, for example with iconv -t utf-8."
        ) from None


def _decode(name: str, title: str, data: bytes) -> Text:
    content = decode_utf8(name, data).removesuffix("\n")
    if not content:
        raise UsageError(f"{name} is empty: there is no text to evaluate on.")
    return Text(Path(name).name, title, content, sha256(data).hexdigest())
