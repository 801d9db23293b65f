"""Files that appear whole or not at all, and never in place of another unless told to."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from quantcli.errors import UsageError


def check_free(path: Path, option: str, *, force: bool) -> None:
    """Raise UsageError if a file could not be written: it exists, or its folder does not.

    Called before hours of work, and once more by `draft` after them.
    """
    if path.is_dir():
        raise UsageError(f"{option} {path} is a folder. Name a file.")
    if not path.parent.is_dir():
        raise UsageError(f"{option} {path}: there is no folder {path.parent}. Make it first.")
    if path.exists() and not force:
        raise UsageError(
            f"{option} {path} exists. Name another file, or use --force to replace it."
        )


@contextmanager
def draft(path: Path, option: str, *, force: bool) -> Iterator[BinaryIO]:
    """Hold a new file beside `path`, which takes its place at the end; an error removes it."""
    check_free(path, option, force=force)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with temporary.open("xb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        check_free(path, option, force=force)
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
