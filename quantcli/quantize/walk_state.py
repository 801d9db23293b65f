"""The state of a walk in a file, so that a resumed run need not run through what is done."""

from __future__ import annotations

import time
import zipfile
from contextlib import suppress
from pathlib import Path

import numpy as np

from quantcli.checkpoint.drafts import refused_writes
from quantcli.quantize import LayerWalk, State

_EVERY_S = 30.0  # writing it takes a second or two for a large model
_POSITION = "position"


class WalkState:
    """What flows into a layer, written now and then; the newest alone is kept.

    It saves time and decides nothing: without it, layers that are done are run through again.
    """

    def __init__(self, path: Path, *, resume: bool, every_s: float = _EVERY_S) -> None:
        """Start without a state, or with `resume` from the one that is there."""
        self._path = path
        self._every_s = every_s
        self._saved_at = time.monotonic()
        if not resume:
            self.remove()

    def restore(self, walk: LayerWalk) -> int:
        """Let a walk begin where the state says; return the number of its first layer."""
        try:
            with self._path.open("rb") as raw, np.load(raw, allow_pickle=False) as file:
                state: State = {name: file[name] for name in file.files}
            position = int(state.pop(_POSITION))
        except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile):
            return 0
        walk.restore(state, position)
        return position

    def save(self, walk: LayerWalk, position: int) -> None:
        """Write the state that enters layer `position`, unless one was written a moment ago."""
        if time.monotonic() - self._saved_at < self._every_s:
            return
        draft = self._path.with_name(f"{self._path.name}.new")
        state = {**walk.state(), _POSITION: np.array(position)}
        with refused_writes(self._path):
            with draft.open("wb") as file:
                np.savez(file, allow_pickle=False, **state)
            draft.replace(self._path)
        self._saved_at = time.monotonic()

    def remove(self) -> None:
        """Delete the file."""
        with suppress(OSError):
            self._path.unlink(missing_ok=True)
