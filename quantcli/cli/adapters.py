"""Which LoRA adapters a command line asks for: `--lora FILE[:SCALE]`, any number of them."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Sequence
from pathlib import Path

from quantcli.errors import UsageError

Progress = Callable[[str, int, int], None]
Notify = Callable[[str], None]


def split_scale(text: str) -> tuple[str, float]:
    """Return the name and the scale of FILE[:SCALE]; the scale is 1 where there is none.

    A colon belongs to the name if a file has that name, or no number follows: C:\\a.gguf is one.
    Raises UsageError for a scale that is no finite number.
    """
    name, colon, number = text.rpartition(":")
    if os.path.exists(text) or not (name and colon):
        return text, 1.0
    try:
        scale = float(number)
    except ValueError:
        if os.path.isfile(name):
            raise UsageError(
                f"--lora {text}: the scale is {number!r}; give a number such as 0.5."
            ) from None
        return text, 1.0
    if not math.isfinite(scale):
        raise UsageError(f"--lora {text}: the scale is {number}; give a finite number such as 0.5.")
    return name, scale


def resolved(
    wanted: Sequence[str] | None,
    progress: Progress | None = None,
    notify: Notify = lambda line: None,
) -> list[tuple[Path, float]]:
    """Return the path and the scale of each adapter, downloaded if need be.

    Raises UsageError for a file that is not there, a scale that is none, and one file twice, and
    what `store.resolve` raises.
    """
    from quantcli.checkpoint.store import resolve

    found: list[tuple[Path, float]] = []
    for text in wanted or ():
        name, scale = split_scale(text)
        parts = name.split(",")
        if len(parts) > 1 and all(os.path.exists(split_scale(part)[0]) for part in parts):
            raise UsageError(f"--lora {text}: give each adapter a --lora of its own.")
        path = resolve(name, progress=progress, notify=notify)
        if any(os.path.samefile(path, other) for other, _ in found):
            raise UsageError(f"--lora {name} is given twice; give it once, with one scale.")
        found.append((path, scale))
    return found


def described(adapters: Sequence[tuple[Path, float]]) -> str:
    """Return adapters on one line, for people: their names, and scales that are not 1."""
    return ", ".join(p.name + (f":{scale:g}" if scale != 1 else "") for p, scale in adapters)
