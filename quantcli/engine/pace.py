"""How long steps take, measured as they go by, and how many rows fit in a given time."""

from __future__ import annotations

from bisect import bisect_left, bisect_right

# Row counts that are measured apart; a step counts for the nearest one not above it.
_ROWS = (1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16, 20, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512)
_FASTER, _SLOWER = 0.5, 0.1  # weight of a new time: what disturbs a step only ever makes it slower
_GROWTH = 0.12  # of a step's time with each row, of the time of one row, until more is known

MIN_PROMPT_ROWS = 16  # of a chunk, however long it takes: a prompt must get on


class Pace:
    """The cost curve of steps by their number of rows.

    One number, rows, stands for all: weights are read once for all rows, and what differs between
    rows of prompts and of answers is less than what a shared machine adds.
    """

    def __init__(self) -> None:
        """Start without measurements."""
        self._seconds: dict[int, float] = {}  # by a value of _ROWS

    def note(self, n_rows: int, seconds: float) -> None:
        """Take a step's time into account."""
        rows = _ROWS[bisect_right(_ROWS, n_rows) - 1]
        known = self._seconds.get(rows)
        if known is None:
            self._seconds[rows] = seconds
        else:
            weight = _FASTER if seconds < known else _SLOWER
            self._seconds[rows] = known + weight * (seconds - known)

    def seconds(self, n_rows: int) -> float | None:
        """Return what a step of so many rows is likely to take, None before the first step.

        Between row counts that were measured the line between them; beyond the last, its share
        of growth.
        """
        if not self._seconds:
            return None
        known = sorted(self._seconds)
        index = bisect_left(known, n_rows)
        if index == len(known):
            return self._extended(known, n_rows)
        above = self._seconds[known[index]]
        if index == 0:
            return above * _relative(n_rows) / _relative(known[0])
        below = self._seconds[known[index - 1]]
        share = (n_rows - known[index - 1]) / (known[index] - known[index - 1])
        return below + share * (above - below)

    def prompt_rows(self, n_others: int, target_s: float, n_most: int) -> int:
        """Return how many rows of prompts keep a step with n_others rows within a time.

        Never less than MIN_PROMPT_ROWS, nor more than n_most.
        """
        low, high = min(MIN_PROMPT_ROWS, n_most), n_most
        while low < high:  # the curve rises but for noise; a bisection ends all the same
            middle = (low + high + 1) // 2
            seconds = self.seconds(n_others + middle)
            if seconds is None or seconds <= target_s:
                low = middle
            else:
                high = middle - 1
        return low

    def _extended(self, known: list[int], n_rows: int) -> float:
        """Return the time of more rows than were ever measured."""
        last = known[-1]
        if len(known) == 1:
            return self._seconds[last] * _relative(n_rows) / _relative(last)
        first = known[0]
        slope = (self._seconds[last] - self._seconds[first]) / (last - first)
        return self._seconds[last] + max(0.0, slope) * (n_rows - last)


def _relative(n_rows: int) -> float:
    return 1 + _GROWTH * (n_rows - 1)
