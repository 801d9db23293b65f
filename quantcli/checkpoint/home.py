"""quantcli's own folder: where the models from wheels lie, and how files get there whole.

    models/SHA256/FILE.gguf      one model, complete and verified
    models/SHA256/model.json     its name, its size, its licence, where it came from
    staging/SHA256/              a download under way; may be deleted at any time
    locks/                       one lock file per download

A model is written to staging, verified, flushed, and moved into place in one step: whatever
stops a download, nothing under `models/` is ever half a file.
"""

from __future__ import annotations

import errno
import json
import os
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO

from quantcli.checkpoint.quants import size_text
from quantcli.errors import DownloadError, ResourceError

Notify = Callable[[str], None]  # receives one line for the user
Progress = Callable[[str, int, int], None]  # receives (what, bytes done, bytes in all)

_FULL = (errno.ENOSPC, getattr(errno, "EDQUOT", errno.ENOSPC))
_INFO = "model.json"
_SLACK = 16 << 20  # bytes a disk should keep beyond what a download needs


@dataclass(frozen=True, slots=True)
class StoredModel:
    """A model in quantcli's own folder."""

    name: str
    file: str
    nbytes: int
    sha256: str
    licence: str
    source: str

    @property
    def folder(self) -> Path:
        """Return the folder that holds the model and nothing else."""
        return home() / "models" / self.sha256

    @property
    def path(self) -> Path:
        """Return the model file."""
        return self.folder / self.file


def home() -> Path:
    """Return quantcli's data folder: QUANTCLI_HOME, or the platform's place for such things."""
    if configured := os.environ.get("QUANTCLI_HOME"):
        return Path(configured).expanduser()
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData/Local") / "quantcli"
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Application Support" / "quantcli"
    return Path(os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share") / "quantcli"


def staging(sha256: str) -> Path:
    """Return the folder in which a download of a model is put together."""
    return home() / "staging" / sha256


def staged() -> list[Path]:
    """Return the folders of downloads that are under way or were interrupted."""
    return sorted(path for path in (home() / "staging").glob("*") if path.is_dir())


def size_of(path: Path) -> int:
    """Return the bytes of a file, or of all files in a folder."""
    files = [path] if path.is_file() else path.rglob("*")
    return sum(file.stat().st_size for file in files if file.is_file())


def stored() -> list[StoredModel]:
    """Return the models in quantcli's own folder; what is incomplete or unreadable is not one."""
    found = [_read(info) for info in sorted((home() / "models").glob(f"*/{_INFO}"))]
    return [model for model in found if model is not None]


def stored_model(sha256: str) -> StoredModel | None:
    """Return the model with a hash, or None if it is not here."""
    return _read(home() / "models" / sha256 / _INFO)


def publish(model: StoredModel, verified: Path) -> Path:
    """Move a complete, verified file into place and return where it is.

    The file must lie on the same disk, which staging does. A process that dies between the two
    steps leaves a folder without a model.json, which does not count and is overwritten.
    """
    model.folder.mkdir(parents=True, exist_ok=True)
    os.replace(verified, model.path)
    draft = model.folder / f"{_INFO}.part"
    with draft.open("w", encoding="utf-8") as file:
        json.dump(asdict(model), file, indent=1)
        flush(file)
    os.replace(draft, model.folder / _INFO)
    return model.path


def mark_used(model: StoredModel) -> None:
    """Remember that a model was used now; a read-only folder is no reason to fail."""
    with suppress(OSError):
        os.utime(model.folder / _INFO)


def last_used(model: StoredModel) -> float:
    """Return when a model was pulled or last used, in seconds since the epoch."""
    return (model.folder / _INFO).stat().st_mtime


def discard(sha256: str) -> None:
    """Delete what a download left in staging."""
    shutil.rmtree(staging(sha256), ignore_errors=True)


def delete(model: StoredModel) -> int:
    """Delete a model and return the bytes freed. Raises ResourceError where that is refused."""
    try:
        # The description goes first: a model without one does not count as there.
        (model.folder / _INFO).unlink(missing_ok=True)
        shutil.rmtree(model.folder)
    except OSError as error:
        raise ResourceError(f"cannot delete {error.filename}: {error.strerror}.") from error
    return model.nbytes


@contextmanager
def locked(path: Path, notify: Notify) -> Iterator[None]:
    """Hold a lock file that other processes respect; say so once when it has to be waited for."""
    from filelock import FileLock, Timeout

    path.parent.mkdir(parents=True, exist_ok=True)
    lock = FileLock(path)
    try:
        lock.acquire(blocking=False)
    except Timeout:
        notify("Another process is downloading this model; waiting for it.")
        lock.acquire()
    try:
        yield
    finally:
        lock.release()


def require_space(folder: Path, nbytes: int, what: str) -> None:
    """Raise ResourceError unless the disk that will hold a folder has room for so many bytes."""
    existing = folder
    while not existing.exists() and existing != existing.parent:
        existing = existing.parent
    free = shutil.disk_usage(existing).free
    if free < nbytes + _SLACK:
        raise ResourceError(
            f"not enough disk space for {what}: it needs {size_text(nbytes)} and {folder} has "
            f"{size_text(free)} free. Free some space, or set QUANTCLI_HOME or HF_HOME to a folder "
            "on another disk."
        )


@contextmanager
def write_errors(folder: Path, *partial: Path) -> Iterator[None]:
    """Turn a refused write into one sentence; on a full disk delete the partial files first."""
    try:
        yield
    except OSError as error:
        if error.errno in _FULL:
            for path in partial:
                remove_partial(path)
            raise disk_full(folder) from error
        raise ResourceError(
            f"cannot write {error.filename or folder}: {error.strerror or error}. "
            "Set QUANTCLI_HOME or HF_HOME to a folder that you can write to."
        ) from error


def disk_full(folder: Path) -> ResourceError:
    """Return the error for a disk that filled up during a download."""
    return ResourceError(
        f"the disk of {folder} is full; what was downloaded is deleted. "
        "Free some space and pull again."
    )


def remove_partial(path: Path) -> None:
    """Delete a partial file or folder, whatever it is."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        with suppress(OSError):
            path.unlink(missing_ok=True)


def flush(file: IO[bytes] | IO[str]) -> None:
    """Write a file through to the disk, so that a rename cannot overtake its contents."""
    file.flush()
    try:
        os.fsync(file.fileno())
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):  # some file systems have no fsync
            raise


def begin_flush(file: IO[bytes], start: int, stop: int) -> None:
    """Let the system begin to write some bytes to the disk, where it can be asked to.

    What then is left to `flush` takes a tenth of the time. On Linux this advice writes what has
    not been written and keeps it in the cache, since only pages that are clean leave it.
    """
    if sys.platform == "linux":
        with suppress(OSError):
            os.posix_fadvise(file.fileno(), start, stop - start, os.POSIX_FADV_DONTNEED)


def mismatch(what: str, expected: str, actual: str) -> DownloadError:
    """Return the error for a file that is not the one it should be."""
    found = "its size is wrong" if actual == expected else f"its digest is {actual[:16]}..."
    return DownloadError(
        f"{what} does not verify: {found}, the digest should be {expected[:16]}.... "
        "The download is deleted; pull again."
    )


def _read(info: Path) -> StoredModel | None:
    """Return the model that a model.json describes, or None unless its file is there and whole."""
    try:
        model = StoredModel(**json.loads(info.read_text(encoding="utf-8")))
        is_whole = model.path.stat().st_size == model.nbytes
        is_inside = (model.sha256, Path(model.file).name) == (info.parent.name, model.file)
    except (OSError, ValueError, TypeError):
        return None
    return model if is_whole and is_inside else None
