"""Memory for staged activations: one area for int8 and one for f32, shared by all linears."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from quantcli.kernels.activations import MAX_WORDS
from quantcli.kernels.matmul import PanelFormat, Word
from quantcli.plan import ENTRIES, Buffer
from quantcli.runtime.step import Step

# Areas are private to each thread while a step has one row: staging it then needs no barrier.
INT8, FLOAT = "int8 activations", "float activations"


Split = Buffer | tuple[int, int] | None


@dataclass(frozen=True, slots=True)
class Staged:
    """One staging of one buffer.

    name     the area it lies in
    split    by what its rows are laid out: the routes to experts, heads of a width, or None
    copies   rows that are laid out for each of the source
    words    what its readers asked for, in order
    in_head  whether it belongs to the head of the plan
    """

    name: str
    source: Buffer
    split: Split
    copies: int
    width: int
    words: tuple[Word, ...]
    in_head: bool

    @property
    def block_nbytes(self) -> int:
        """Bytes of 32 inputs of a token."""
        return 128 if self.name == FLOAT else 36 + 4 * len(self.words)

    @property
    def row_nbytes(self) -> int:
        """Bytes of a token; of f32 the width is a multiple of 16."""
        return 4 * self.width if self.name == FLOAT else self.width // 32 * self.block_nbytes


class Staging:
    """Lays stagings out in the two areas; addresses are filled in by `allocate`."""

    def __init__(self, n_threads: int, max_rows: dict[str, int], step: Step) -> None:
        """Start with nothing staged; max_rows gives the rows of each axis."""
        self._n_threads = n_threads
        self._max_rows = max_rows
        self._step = step
        self._current: dict[str, Staged] = {}
        self._pointers: list[tuple[np.void, Staged, str]] = []
        self._all: list[Staged] = []
        self._arrays: list[np.ndarray] = []

    def current(self, source: Buffer, split: Split, is_float: bool) -> Staged | None:
        """Return the staging of a buffer in a split, if its area still holds it."""
        staged = self._current.get(FLOAT if is_float else INT8)
        is_it = staged and staged.source == source and staged.split == split
        return staged if is_it else None

    def begin(
        self,
        source: Buffer,
        split: Split,
        copies: int,
        n_in: int,
        is_float: bool,
        readers: list[PanelFormat],
        in_head: bool,
    ) -> Staged:
        """Stage a buffer, with what all its readers of that kind need, padded to their blocks.

        n_in   values of a row that is laid out
        """
        mine = [panel for panel in readers if panel.is_float == is_float]
        block = max(panel.n_inputs for panel in mine)
        words: list[Word] = []
        for panel in mine:
            if _find(words, panel.words) is None:
                words.extend(panel.words)
        assert len(words) <= MAX_WORDS, words
        width = -(-n_in // block) * block
        name = FLOAT if is_float else INT8
        staged = Staged(name, source, split, copies, width, tuple(words), in_head)
        self._current[name] = staged
        self._all.append(staged)
        return staged

    def describe(self, a: np.void, staged: Staged) -> None:
        """Fill in what a stage op is told about where and what to write."""
        a["is_float"] = staged.name == FLOAT
        a["row_nbytes"] = staged.row_nbytes
        a["n_words"] = len(staged.words)
        for i, (is_float, part, factor) in enumerate(staged.words):
            a["word_is_float"][i], a["word_part"][i] = is_float, part
            a["word_factor"][i] = factor
        self._point(a, staged, "out")

    def point(self, a: np.void, staged: Staged, panel: PanelFormat) -> None:
        """Fill in what a matmul op is told about its activations."""
        a["acts_row_nbytes"] = staged.row_nbytes
        a["acts_block_nbytes"] = staged.block_nbytes
        found = _find(staged.words, panel.words)
        assert found is not None, (staged.words, panel.words)
        a["words"] = 36 + 4 * found
        self._point(a, staged, "acts")

    def allocate(self) -> None:
        """Make the areas and give every op its addresses."""
        scratch_width = max((s.width for s in self._all), default=32)
        scratch = self._array(4 * scratch_width * self._n_threads)
        for name in (INT8, FLOAT):
            mine = [s for s in self._all if s.name == name]
            if not mine:
                continue
            # While private, a step has one row, so as many entries as that has experts or heads.
            own = -(-max(s.row_nbytes * self._entries(s) for s in mine) // 128) * 128
            shared = max(s.row_nbytes * s.copies * self._max_rows[s.source.axis] for s in mine)
            area = self._array(max(shared, self._n_threads * own))
            for a, staged, field in self._pointers:
                if staged.name == name:
                    a[field] = area
                    a[f"{field}_thread_stride"] = own
                    if "scratch" in (a.dtype.names or ()):
                        a["scratch"], a["scratch_stride"] = scratch, 4 * scratch_width

    @property
    def nbytes(self) -> int:
        """Bytes of both areas and of scratch."""
        return sum(array.nbytes for array in self._arrays)

    def _entries(self, staged: Staged) -> int:
        """Return how many rows one row of a step becomes."""
        axis = staged.source.axis
        rows = next((rows for rows, entries in ENTRIES.items() if entries == axis), axis)
        return staged.copies * (self._max_rows[axis] // self._max_rows[rows])

    def _array(self, nbytes: int) -> int:
        """Make a zeroed array and return its first 128-byte boundary."""
        array = np.zeros(nbytes + 128, np.uint8)
        self._arrays.append(array)
        address = int(array.ctypes.data)
        return address + -address % 128

    def _point(self, a: np.void, staged: Staged, field: str) -> None:
        word = "private_outputs" if staged.in_head else "private_tokens"
        a["private"] = self._step.word(word)
        self._pointers.append((a, staged, field))


def _find(words: list[Word] | tuple[Word, ...], wanted: tuple[Word, ...]) -> int | None:
    """Return where a run of words starts in a list, or None; an empty run starts at 0."""
    n = len(wanted)
    return next((i for i in range(len(words) - n + 1) if tuple(words[i : i + n]) == wanted), None)
