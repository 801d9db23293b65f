"""Where the experts of a step's rows are written down, for the ops between `route` and `mix`."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from quantcli.kernels import experts
from quantcli.plan import Op, Routing

_SCORES = {
    "softmax": experts.SOFTMAX,
    "sigmoid": experts.SIGMOID,
    "softmax_of_chosen": experts.SOFTMAX_OF_CHOSEN,
}
_ALIGNMENT = 128  # bytes between the threads' scratch


class Routes:
    """The arrays of one axis; every layer's routing writes over that of the layer before.

    name     what ops that read or write them name in the list of calls
    entries  most entries of a step
    """

    def __init__(self, name: str, routings: Sequence[Routing], max_rows: int, n_threads: int):
        """Make room for the rows of a step, whichever of the routings sorts them."""
        n_used = max(routing.n_used for routing in routings)
        n_experts = max(routing.n_experts for routing in routings)
        self.name = f"routes of {name}"
        self.entries = max_rows * n_used
        self._ids = np.zeros((max_rows, n_used), np.int64)
        self._weights = np.zeros((max_rows, n_used), np.float32)
        self._places = np.zeros((max_rows, n_used), np.int64)
        self._rows = np.zeros(self.entries, np.int64)
        self._runs = np.zeros((min(n_experts, self.entries), 3), np.int64)
        self._next = np.zeros(n_experts, np.int64)
        self._words = np.zeros(3, np.int64)  # runs, entries, rows that are through
        padded = -(-n_experts // 16) * 16
        self._own = -(-8 * padded // _ALIGNMENT) * _ALIGNMENT
        self._scratch = np.zeros(self._own * n_threads, np.uint8)

    @property
    def n_entries(self) -> int:
        """Address of the number of entries."""
        return int(self._words.ctypes.data) + 8

    @property
    def ids(self) -> np.ndarray:
        """i64 (max_rows, n_used): the experts that each row goes to, best first."""
        return self._ids

    @property
    def places(self) -> np.ndarray:
        """i64 (max_rows, n_used): which entry each of them has made of the row."""
        return self._places

    def write(self, a: np.void, op: Op) -> None:
        """Tell a route op how to choose, and where to write what it chooses."""
        routing = op.routing
        assert routing is not None
        a["n_experts"], a["n_used"] = routing.n_experts, routing.n_used
        a["score"], a["normalize"] = _SCORES[routing.score], routing.normalize
        a["scale"] = routing.scale
        a["ids"], a["weights"] = self._ids.ctypes.data, self._weights.ctypes.data
        a["rows"], a["places"] = self._rows.ctypes.data, self._places.ctypes.data
        a["runs"], a["next"] = self._runs.ctypes.data, self._next.ctypes.data
        words = int(self._words.ctypes.data)
        a["n_runs"], a["n_entries"], a["done"] = words, words + 8, words + 16
        a["scratch"], a["scratch_stride"] = self._scratch.ctypes.data, self._own

    def sort(self, a: np.void) -> None:
        """Tell an op that reads or writes entries in which runs they lie."""
        a["runs"], a["n_runs"] = self._runs.ctypes.data, self._words.ctypes.data

    def gather(self, a: np.void) -> None:
        """Tell a stage op that reads rows which of them each entry takes."""
        a["rows"] = self._rows.ctypes.data

    def add_up(self, a: np.void, op: Op) -> None:
        """Tell a mix op where each row's entries lie, and what they weigh."""
        assert op.routing is not None
        a["n_used"] = op.routing.n_used
        a["places"], a["weights"] = self._places.ctypes.data, self._weights.ctypes.data
