"""How results look: tables, key-value lists, JSON, and one status line on standard error.

Everything printed that may come from a file or a model goes through `printable`, so that no
metadata and no answer can send commands to the terminal.
"""

from __future__ import annotations

import json
import math
import os
import re
import sys
import time
from collections.abc import Iterable, Mapping, Sequence

JsonValue = None | bool | int | float | str | Sequence["JsonValue"] | Mapping[str, "JsonValue"]

_STATUS_INTERVAL_S = 0.1
_ESTIMATE_AFTER_S = 2.0


def printable(text: str, keep: str = "") -> str:
    """Return text with control characters, bidirectional marks too, written as escapes.

    keep   control characters to leave alone, such as line breaks
    """
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c in keep else _escape(c) for c in text)


def _escape(char: str) -> str:
    return char if char == "\u00a0" else ascii(char)[1:-1]


_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


def harmless(text: str) -> str:
    """Return text with the characters that a terminal obeys as escapes; tabs and lines stay."""
    return _CONTROL.sub(lambda match: ascii(match[0])[1:-1], text)


def emit_json(document: JsonValue) -> None:
    """Print one JSON document on standard output. Numbers that are not finite become null."""
    print(json.dumps(_finite(document), ensure_ascii=False, indent=2, allow_nan=False))


def _finite(value: JsonValue) -> JsonValue:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {key: _finite(inner) for key, inner in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [_finite(inner) for inner in value]
    return value


def table(headers: Sequence[str], rows: Iterable[Sequence[str]], right: str = "") -> str:
    """Return rows as aligned columns under their headers.

    right   one character a column: "r" aligns it right, anything else left
    """
    cells = [list(headers), *([printable(cell) for cell in row] for row in rows)]
    widths = [max(len(row[i]) for row in cells) for i in range(len(headers))]
    lines = []
    for row in cells:
        padded = [
            cell.rjust(width) if right[i : i + 1] == "r" else cell.ljust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        lines.append("  ".join(padded).rstrip())
    return "\n".join(lines)


def markdown(headers: Sequence[str], rows: Iterable[Sequence[str]], right: str = "") -> str:
    """Return rows as a Markdown table; `right` as in `table`."""
    rules = ["---:" if right[i : i + 1] == "r" else ":---" for i in range(len(headers))]
    cells = [list(headers), rules, *([printable(c).replace("|", "\\|") for c in r] for r in rows)]
    return "\n".join(f"| {' | '.join(row)} |" for row in cells)


def pairs(items: Iterable[tuple[str, str]], indent: str = "  ") -> str:
    """Return names and values, one pair a line, values aligned."""
    listed = [(name, printable(value)) for name, value in items]
    width = max((len(name) for name, _ in listed), default=0)
    return "\n".join(f"{indent}{name.ljust(width)}  {value}".rstrip() for name, value in listed)


def facts(values: Mapping[str, JsonValue]) -> str:
    """Return named values for people; a name with `nbytes` in it is a size."""
    return pairs((_label(name), _fact(name, value)) for name, value in values.items())


def _label(name: str) -> str:
    words = [word for word in name.split("_") if word != "nbytes"]
    return " ".join(words).removesuffix(" per s")


def _fact(name: str, value: JsonValue) -> str:
    from quantcli.runtime.memory import size

    if value is None:
        return "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int | float) and "nbytes" in name:
        return size(int(value)) + ("/s" if name.endswith("_per_s") else "")
    if isinstance(value, int):
        return f"{value:,}" if abs(value) >= 10000 else str(value)
    if isinstance(value, list):
        return ", ".join(map(str, value))
    return str(value)


def shorten(text: str, width: int) -> str:
    """Return text cut to a width, the cut marked."""
    return text if len(text) <= width else f"{text[: max(0, width - 3)]}..."


def _columns() -> int:
    """Return the width of the terminal that standard error is, 80 if it does not say."""
    try:
        return os.get_terminal_size(sys.stderr.fileno()).columns or 80
    except (OSError, ValueError, AttributeError):
        return 80


class StatusLine:
    """One line on standard error that says what is going on; a `progress` callback.

    Rewritten in place on a terminal. Without one it is silent, or with `verbose` prints a line
    whenever the stage changes.
    """

    def __init__(self, *, verbose: bool = False, quiet: bool = False) -> None:
        """Start with an empty line."""
        self._quiet = quiet
        self.verbose = verbose
        self._terminal = sys.stderr.isatty() and not quiet
        self._lines = verbose and not self._terminal and not quiet
        self._stage = ""
        self._width = 0
        self._shown_at = -math.inf
        self._began_at = (0.0, 0)  # when the stage began, and with how much of it done

    def __call__(self, stage: str, done: int, total: int, detail: str = "") -> None:
        """Show that `done` of `total` steps of a stage are done; a total of 0 is unknown.

        detail   what of the stage is at hand, for a terminal
        """
        changed = stage != self._stage
        now = time.monotonic()
        if changed:
            self._stage, self._began_at = stage, (now, done)
        if self._lines and changed:
            print(printable(stage), file=sys.stderr, flush=True)
        if not self._terminal or not (changed or now - self._shown_at >= _STATUS_INTERVAL_S):
            return
        self._shown_at = now
        share = f" {100 * done // total}%{self._left(now, done, total)}" if total > 0 else ""
        more = f": {printable(detail)}" if detail else ""
        self._write(f"{printable(stage)}{share}{more}")

    def _left(self, now: float, done: int, total: int) -> str:
        """Return the time left, once two seconds give an idea of it."""
        began, done_before = self._began_at
        elapsed, progressed = now - began, done - done_before
        if elapsed < _ESTIMATE_AFTER_S or progressed <= 0:
            return ""
        left = elapsed * (total - done) / progressed
        return f", {left / 60:.0f} min left" if left > 90 else f", {left:.0f} s left"

    def clear(self) -> None:
        """Take the line away, for other output to take its place."""
        if self._terminal and self._width:
            self._write("")
        self._stage = ""

    def note(self, text: str) -> None:
        """Print a line that stays."""
        if self._terminal or self._lines:
            self.clear()
            print(printable(text, keep="\n"), file=sys.stderr, flush=True)

    def warn(self, text: str) -> None:
        """Print a line that stays, terminal or not, unless the user asked for quiet."""
        if not self._quiet:
            self.clear()
            print(printable(text), file=sys.stderr, flush=True)

    def _write(self, text: str) -> None:
        text = shorten(text, min(78, _columns() - 1))  # a line that wraps cannot be rewritten
        print(f"\r{text.ljust(self._width)}\r{text}", end="", file=sys.stderr, flush=True)
        self._width = len(text)
