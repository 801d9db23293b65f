"""Output that appears whole or not at all, and never in place of something unless told to.

A draft lies beside its target, hidden, so that the last step is a rename on one disk. Whatever
goes wrong removes it.
"""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from quantcli.checkpoint.home import flush, remove_partial
from quantcli.checkpoint.quants import size_text
from quantcli.errors import ResourceError, UsageError

FULL = (errno.ENOSPC, getattr(errno, "EDQUOT", errno.ENOSPC))
_SLACK = 4 << 20  # bytes a disk should keep beyond what is written


def check_target(path: Path, *, force: bool, folder: bool = False) -> None:
    """Raise UsageError if `path` cannot become a new file, or a new folder.

    Called before hours of work, and once more before the rename after them.
    """
    kind = "folder" if folder else "file"
    if path.exists() and path.is_dir() != folder:
        is_what = "a folder" if path.is_dir() else "a file"
        raise UsageError(f"{path} is {is_what}; name a {kind} for the output.")
    if not path.parent.is_dir():
        raise UsageError(f"{path}: there is no folder {path.parent}; make it first.")
    is_empty_folder = folder and path.is_dir() and not any(path.iterdir())
    if path.exists() and not force and not is_empty_folder:
        raise UsageError(f"{path} exists; name another {kind}, or use --force to replace it.")


def require_room(path: Path, nbytes: int) -> None:
    """Raise ResourceError unless the disk that `path` will lie on has room for so many bytes."""
    free = shutil.disk_usage(path.parent).free
    if free < nbytes + _SLACK:
        raise ResourceError(
            f"not enough disk space for {path}: it takes {size_text(nbytes)} and "
            f"{size_text(free)} are free; free some space, or write to another disk."
        )


def draft_path(path: Path) -> Path:
    """Return the hidden place beside `path` where this process writes its draft."""
    return path.with_name(f".{path.name}.{os.getpid()}.tmp")


@contextmanager
def file_draft(path: Path, *, force: bool, nbytes: int = 0) -> Iterator[BinaryIO]:
    """Hold a new file that takes the place of `path` at the end.

    nbytes  how large it will be; checked against the free space

    Raises UsageError if `path` is taken, ResourceError if the disk is too small or fills up.
    """
    check_target(path, force=force)
    require_room(path, nbytes)
    temporary = draft_path(path)
    try:
        with refused_writes(path), temporary.open("xb") as file:
            yield file
            flush(file)
        replace(temporary, path, force=force)
    except BaseException:
        remove_partial(temporary)
        raise


@contextmanager
def folder_draft(path: Path, *, force: bool, nbytes: int = 0) -> Iterator[Path]:
    """Hold a new folder that takes the place of `path` at the end; otherwise as `file_draft`."""
    check_target(path, force=force, folder=True)
    require_room(path, nbytes)
    temporary, old = draft_path(path), path.with_name(f".{path.name}.{os.getpid()}.old")
    try:
        with refused_writes(path):
            temporary.mkdir()
            yield temporary
            check_target(path, force=force, folder=True)
            if path.exists():  # a folder cannot be renamed onto another
                os.replace(path, old)
            os.replace(temporary, path)
        remove_partial(old)
    except BaseException:
        if old.exists() and not path.exists():
            with suppress(OSError):
                os.replace(old, path)
        remove_partial(temporary)
        raise


def replace(temporary: Path, path: Path, *, force: bool) -> None:
    """Move a finished draft into place in one step; raises as `file_draft`."""
    check_target(path, force=force)
    with refused_writes(path):
        os.replace(temporary, path)


@contextmanager
def refused_writes(path: Path, advice: str = "free some space, then try again") -> Iterator[None]:
    """Turn a refused write into ResourceError, one sentence that names the target."""
    try:
        yield
    except OSError as error:
        if error.errno in FULL:
            raise ResourceError(
                f"the disk filled up while {path} was written; {advice}."
            ) from error
        raise ResourceError(f"cannot write {path}: {error.strerror or error}.") from error
