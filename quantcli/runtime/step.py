"""What changes from step to step: a batch's rows as the kernels read them, at fixed addresses."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from quantcli.kernels.attention import CHUNK_KEYS

MAX_TILE_ROWS = 8  # rows of one sequence whose attention is computed together


@dataclass(frozen=True, slots=True)
class Batch:
    """The rows of one step, one entry a row.

    tokens      token ids
    positions   where each row stands in its sequence; rows of a sequence are in order
    sequences   the sequence of each row
    outputs     indices of the rows whose logits are wanted
    """

    tokens: list[int]
    positions: list[int]
    sequences: list[int]
    outputs: list[int]


WORDS = np.dtype(
    [
        ("n_tokens", "i8"),
        ("n_outputs", "i8"),
        ("private_tokens", "i8"),  # nonzero while each thread stages activations for itself
        ("private_outputs", "i8"),
        ("n_tiles", "i8"),
        ("max_chunks", "i8"),
    ]
)


class Step:
    """The arrays of a step. Their addresses never change, so a lowered plan can point at them."""

    def __init__(self, max_rows: int, max_outputs: int) -> None:
        """Make room for a step's rows."""
        self.words = np.zeros(1, WORDS)
        self.tokens = np.zeros(max_rows, np.int64)
        self.positions = np.zeros(max_rows, np.int64)
        self.tables = np.zeros(max_rows, np.int64)
        self.outputs = np.zeros(max_outputs, np.int64)
        self.tile_starts = np.zeros(max_rows, np.int64)
        self.tile_rows = np.zeros(max_rows, np.int64)

    def word(self, name: str) -> int:
        """Return the address of one of WORDS."""
        return int(self.words.ctypes.data) + WORDS.fields[name][1]  # type: ignore[index]

    def set_rows(self, batch: Batch, table_addresses: list[int]) -> None:
        """Take over a batch's rows and divide them into attention's tiles."""
        n = len(batch.tokens)
        self.tokens[:n] = batch.tokens
        self.positions[:n] = batch.positions
        self.tables[:n] = table_addresses
        words = self.words[0]
        words["n_tokens"] = n
        words["private_tokens"] = n == 1
        n_tiles = 0
        start = 0
        for row in range(1, n + 1):
            follows = (
                row < n
                and batch.sequences[row] == batch.sequences[start]
                and batch.positions[row] == batch.positions[row - 1] + 1
            )
            if follows and row - start < MAX_TILE_ROWS:
                continue
            self.tile_starts[n_tiles] = start
            self.tile_rows[n_tiles] = row - start
            n_tiles += 1
            start = row
        words["n_tiles"] = n_tiles
        # Threads may share a row's chunks only where a tile is one row.
        longest = max(batch.positions) // CHUNK_KEYS + 1
        words["max_chunks"] = longest if n_tiles == n else 1

    def set_outputs(self, rows: list[int]) -> None:
        """Choose the rows that the head of the plan computes logits for."""
        n = len(rows)
        self.outputs[:n] = rows
        self.words[0]["n_outputs"] = n
        self.words[0]["private_outputs"] = n == 1
