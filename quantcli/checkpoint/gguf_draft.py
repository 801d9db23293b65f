"""A GGUF file written tensor by tensor over hours, which goes on after an interruption.

    .NAME.part        the head, then the tensors that are done
    .NAME.part.json   how many of them are safely on the disk, and which run made them

The finished file is byte for byte what `gguf_write.write_gguf` writes at once.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from time import monotonic
from types import TracebackType
from typing import TYPE_CHECKING

import numpy as np

from quantcli.checkpoint.drafts import check_target, refused_writes, replace, require_room
from quantcli.checkpoint.gguf_write import TensorSpec, WriteValue, alignment, encode_head, padding
from quantcli.checkpoint.home import begin_flush, flush, remove_partial
from quantcli.errors import ResourceError, UsageError
from quantcli.qtensor import U8, QTensor

if TYPE_CHECKING:
    from filelock import BaseFileLock

_FLUSH_EVERY = 8 << 20  # bytes, after which the system is asked to write them
_KEPT = "what is done is kept: free some space, then resume"


class GGUFDraft:
    """The draft of one file: tensors are appended in order, then `finish` puts it in place.

    tensors  all of them, in the file's order
    n_done   how many are written; more than 0 at the start if a run was resumed
    """

    def __init__(
        self,
        path: Path,
        metadata: Mapping[str, WriteValue],
        tensors: Sequence[TensorSpec],
        *,
        run: str,
        resume: bool = False,
        force: bool = False,
        safe_every_s: float = 0.0,
    ) -> None:
        """Start a draft, or with `resume` go on with the one of an interrupted run.

        run           identifies whatever decides the bytes: model, recipe, calibration
        safe_every_s  work that a kill may cost: flushing to the disk takes longer than some tensors

        Raises UsageError if the path is taken, or the draft there is of another run or held by
        another process; ResourceError if the disk is too small.
        """
        check_target(path, force=force)
        self.path, self.tensors, self._force = path, tuple(tensors), force
        self._safe_every_s, self._safe_at = safe_every_s, monotonic()
        self._begun = 0  # bytes that the system was asked to write
        self._part = path.with_name(f".{path.name}.part")
        self._journal = path.with_name(f".{path.name}.part.json")
        head = encode_head(metadata, tensors)
        self._id = {"run": run, "head": sha256(head).hexdigest()}
        self._pad_to = alignment(metadata)
        padded = [-(-spec.nbytes // self._pad_to) * self._pad_to for spec in tensors]
        self._starts = np.cumsum([len(head), *padded]).tolist()
        self._lock = _lock(path)
        try:
            with refused_writes(path):
                self.n_done = self._resumed() if resume else 0
                is_new = not (resume and self._part.exists() and self._journal.exists())
                require_room(path, self._starts[-1] - (0 if is_new else self._starts[self.n_done]))
                # Without a buffer: what a full disk refused must not be tried again by `_cut`.
                self._file = self._part.open("w+b" if is_new else "r+b", buffering=0)
                if is_new:
                    self._append(memoryview(head))
                    self._record(0)
                self._cut()
        except BaseException:
            self._unlock()
            raise

    def __enter__(self) -> GGUFDraft:
        """Return itself; leaving the block keeps an unfinished draft for another run."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def write(self, slabs: Iterable[U8]) -> None:
        """Append the next tensor and return once it is safely on the disk, or will be soon.

        slabs  its bytes in order, u8 (n,) each

        Raises ResourceError if the disk fills up, and what `slabs` raises; the tensors before this
        one are kept.
        """
        spec = self.tensors[self.n_done]
        try:
            with refused_writes(self.path, _KEPT):
                for slab in slabs:
                    self._append(slab.data)
                self._append(memoryview(bytes(padding(spec, self._pad_to))))
                stop = self._file.tell()
                assert stop == self._starts[self.n_done + 1], (spec.name, "slabs of another size")
                if monotonic() - self._safe_at >= self._safe_every_s:
                    self._record(self.n_done + 1)
        except BaseException:
            self._cut()
            raise
        self.n_done += 1

    def tensor(self, index: int) -> QTensor:
        """Return a tensor that is done, read back from the draft."""
        assert index < self.n_done, (index, self.n_done)
        spec = self.tensors[index]
        self._file.seek(self._starts[index])
        data = np.frombuffer(self._file.read(spec.nbytes), np.uint8)
        self._file.seek(0, os.SEEK_END)
        return QTensor(spec.name, spec.shape, spec.format, data)

    def finish(self) -> None:
        """Put the complete file in place."""
        assert self.n_done == len(self.tensors), (self.n_done, len(self.tensors))
        flush(self._file)
        self._file.close()
        replace(self._part, self.path, force=self._force)
        remove_partial(self._journal)
        self.close()

    def discard(self) -> None:
        """Delete the draft: nothing is left to resume."""
        self._file.close()
        remove_partial(self._part)
        remove_partial(self._journal)
        self.close()

    def close(self) -> None:
        """Let go of the draft, and keep it."""
        if not self._file.closed:
            try:
                with suppress(OSError):  # what the disk refuses is done again
                    self._record(self.n_done)
            finally:
                self._file.close()
        self._unlock()

    def _resumed(self) -> int:
        """Return how many tensors an earlier run left that can be relied on."""
        try:
            journal = json.loads(self._journal.read_text(encoding="utf-8"))
            n_done = int(journal.pop("n_done"))
            is_there = self._part.stat().st_size >= self._starts[n_done]
        except FileNotFoundError:
            return 0
        except (ValueError, TypeError, KeyError, AttributeError, IndexError):
            journal, n_done, is_there = None, 0, False
        if journal != self._id or not is_there or n_done < 0:
            raise UsageError(
                f"{self._part} is the draft of another model, recipe or calibration; start over "
                "without --resume, or repeat the command that was interrupted."
            )
        return n_done

    def _append(self, data: memoryview) -> None:
        done = 0
        while done < data.nbytes:
            done += self._file.write(data.cast("B")[done:])
        stop = self._file.tell()
        if stop - self._begun >= _FLUSH_EVERY:
            begin_flush(self._file, self._begun, stop)
            self._begun = stop

    def _record(self, n_done: int) -> None:
        """Make what is written so far survive a power cut, and say so in the journal."""
        flush(self._file)
        fresh = self._journal.with_name(f"{self._journal.name}.new")
        with fresh.open("w", encoding="utf-8") as file:
            json.dump({**self._id, "n_done": n_done}, file)
            flush(file)
        os.replace(fresh, self._journal)
        self._safe_at = monotonic()

    def _cut(self) -> None:
        """Drop what follows the last tensor that is done."""
        with refused_writes(self.path):
            self._file.truncate(self._starts[self.n_done])
            self._begun = self._file.seek(0, os.SEEK_END)

    def _unlock(self) -> None:
        if self._lock.is_locked:
            self._lock.release()
            remove_partial(Path(self._lock.lock_file))


def _lock(path: Path) -> BaseFileLock:
    """Take the lock that keeps two processes from writing one draft."""
    from filelock import FileLock, Timeout

    lock = FileLock(path.with_name(f".{path.name}.lock"))
    try:
        lock.acquire(blocking=False)
    except Timeout:
        raise UsageError(f"another process is writing {path}; wait for it to end.") from None
    except OSError as error:
        raise ResourceError(f"cannot write {path}: {error.strerror or error}.") from error
    return lock
