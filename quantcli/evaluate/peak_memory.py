"""The most memory that a part of this process's work has held at once."""

from __future__ import annotations

from pathlib import Path

from quantcli.runtime.memory import peak_memory

_STATUS = Path("/proc/self/status")
_CLEAR = Path("/proc/self/clear_refs")


class PeakMemory:
    """Tells the peak since `restart`.

    Linux can forget a peak; elsewhere only the first part of a process's work has one to tell.
    """

    def __init__(self, status: Path = _STATUS, clear: Path = _CLEAR) -> None:
        """Start anew; `status` and `clear` stand in for Linux's files in tests."""
        self._status = status
        self._clear = clear
        self._n_restarts = 0
        self._is_known = True

    def restart(self) -> None:
        """Forget what was before, where the system can."""
        try:
            self._clear.write_text("5", encoding="ascii")
            self._is_known = True
        except OSError:
            self._is_known = self._n_restarts == 0
        self._n_restarts += 1

    def nbytes(self) -> int | None:
        """Return the peak in bytes, None if it cannot be told."""
        if not self._is_known:
            return None
        return peak_memory(self._status)
