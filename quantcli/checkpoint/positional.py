"""A file read by position, by any number of threads, into buffers that the caller owns.

Weights are never mapped: reading a mapped file that someone truncates kills the process with
SIGBUS, while a read of it merely comes back short.
"""

from __future__ import annotations

import os
import stat
import threading
from pathlib import Path
from types import TracebackType

from quantcli.errors import CheckpointError

# One call reads at most this much, below the 2 GiB that Linux and macOS cap a read at.
_MAX_CALL_NBYTES = 1 << 30


class PositionalFile:
    """An open regular file.

    path    as the caller gave it
    nbytes  its size when it was opened
    """

    def __init__(self, path: Path, *, seek: bool = not hasattr(os, "preadv")) -> None:
        """Open a file; `seek` reads under a lock, for systems without positional reads.

        Raises CheckpointError if the path is missing, unreadable or not a regular file.
        """
        self.path = path
        _require_regular(path, _stat(path))
        try:
            self._file = open(path, "rb", buffering=0, opener=_opener)  # noqa: SIM115
        except OSError as error:
            raise CheckpointError(f"{path}: cannot be opened: {error.strerror}.") from error
        try:
            info = os.fstat(self._file.fileno())
            _require_regular(path, info)  # it may have been replaced since
        except BaseException:
            self._file.close()
            raise
        self.nbytes = info.st_size
        self._lock = threading.Lock() if seek else None

    def __enter__(self) -> PositionalFile:
        """Return itself; leaving the block closes the file."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the file. No read may be under way in another thread."""
        self._file.close()

    def read_into(self, buffer: memoryview, offset: int) -> None:
        """Fill `buffer`, bytes without gaps, from `offset` of the file. Threads may read at once.

        Raises CheckpointError if the file ends before the buffer is full, or cannot be read.
        """
        done = 0
        while done < len(buffer):
            part = buffer[done : done + _MAX_CALL_NBYTES]
            try:
                n = self._read_some(part, offset + done)
            except OSError as error:
                raise CheckpointError(
                    f"{self.path}: byte {offset + done} cannot be read: {error.strerror}."
                ) from error
            if n == 0:
                raise CheckpointError(
                    f"{self.path}: ends at byte {offset + done}, but had {self.nbytes} bytes when "
                    f"it was opened; it was cut short since, so fetch it again."
                )
            done += n

    def read(self, nbytes: int, offset: int) -> bytes:
        """Return `nbytes` bytes from `offset`; raises as `read_into`."""
        data = bytearray(nbytes)
        self.read_into(memoryview(data), offset)
        return bytes(data)

    def _read_some(self, part: memoryview, offset: int) -> int:
        if self._lock is None:
            return os.preadv(self._file.fileno(), [part], offset)
        with self._lock:
            self._file.seek(offset)
            return self._file.readinto(part)


def _opener(path: str, flags: int) -> int:
    # A FIFO put in the file's place between stat and open would block without O_NONBLOCK.
    return os.open(path, flags | getattr(os, "O_NONBLOCK", 0))


def _stat(path: Path) -> os.stat_result:
    try:
        return path.stat()
    except FileNotFoundError as error:
        raise CheckpointError(f"{path}: no such file; give the path of a model file.") from error
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be opened: {error.strerror}.") from error
    except ValueError as error:  # a NUL or a lone surrogate in the path
        raise CheckpointError(f"{str(path)!r}: is not a path: {error}.") from error


_KINDS = (
    (stat.S_ISFIFO, "a pipe"),
    (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"),
    (stat.S_ISSOCK, "a socket"),
)


def _require_regular(path: Path, info: os.stat_result) -> None:
    if stat.S_ISREG(info.st_mode):
        return
    if stat.S_ISDIR(info.st_mode):
        if (path / "config.json").is_file():
            raise CheckpointError(
                f"{path}: is a model's folder without weights in .safetensors files; fetch those "
                "of the model, or a GGUF file."
            )
        raise CheckpointError(f"{path}: is a directory; give a model file{_example(path)}.")
    kind = next((name for test, name in _KINDS if test(info.st_mode)), "not a regular file")
    raise CheckpointError(f"{path}: is {kind}; give the path of a model file.")


def _example(directory: Path) -> str:
    try:
        names = sorted(entry.name for entry in directory.iterdir())
    except OSError:
        return ""
    first = next((name for name in names if name.endswith(".gguf")), None)
    return f", such as {directory / first}" if first else ""
