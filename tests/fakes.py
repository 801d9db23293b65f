"""A model and a tokenizer for tests of the engine and the server, by the runtime's contract.

The fake model keeps what it was given in slots, as a real one keeps keys and values, and reads a
sequence back through the page table. So a token computed at a wrong place, twice, or not at all
changes what it says.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from quantcli.errors import Cancelled
from quantcli.kvcache import Copy, create
from quantcli.runtime.step import Batch

F32 = npt.NDArray[np.float32]
History = tuple[int, ...]

EMPTY = -1  # what a slot holds that was never written


class FakeModel:
    """Logits are a function of the tokens so far, given as logits or as the next token.

    say          tokens so far -> the next token, whose logit is 1 among zeros, or the whole row
    n_vocab      width of a row; may exceed the tokenizer's
    n_slots      slots of the cache in all
    before       called at the start of each forward with its batch; may raise
    """

    shares_pages = True

    def __init__(
        self,
        say: Callable[[History], int | F32] | None = None,
        *,
        n_vocab: int = 64,
        context: int = 48,
        max_rows: int = 8,
        cache: str = "paged",
        n_sequences: int = 4,
        n_slots: int | None = None,
        before: Callable[[Batch], None] | None = None,
    ) -> None:
        self.n_vocab = n_vocab
        self.context = context
        self.max_rows = max_rows
        self.n_threads = 1
        self.kv = create(cache, context=context, n_sequences=n_sequences, n_slots=n_slots)
        self.batches: list[Batch] = []
        self.is_closed = False
        self._say = say or self.hashed
        self._before = before
        self._slots = np.full(self.kv.n_pages * self.kv.page_size, EMPTY)
        self._is_cancelled = False

    def hashed(self, history: History) -> F32:
        """Return logits that any change of the history changes."""
        numbers = random.Random(repr(history))
        return np.array([numbers.gauss(0, 2) for _ in range(self.n_vocab)], np.float32)

    def forward(self, batch: Batch) -> F32:
        """Store the rows' tokens, then read each output row's history back."""
        assert 0 < len(batch.tokens) <= self.max_rows
        assert len(batch.tokens) == len(batch.positions) == len(batch.sequences)
        assert len({*zip(batch.sequences, batch.positions, strict=True)}) == len(batch.tokens)
        if self._before is not None:
            self._before(batch)
        if self._is_cancelled:
            self._is_cancelled = False
            raise Cancelled("stopped.")
        self.batches.append(batch)
        rows = zip(batch.tokens, batch.positions, batch.sequences, strict=True)
        for token, position, sequence in rows:
            assert 0 <= token < self.n_vocab
            self._slots[self._slot(sequence, position)] = token
        logits = np.zeros((len(batch.outputs), self.n_vocab), np.float32)
        for row, output in zip(logits, batch.outputs, strict=True):
            said = self._say(self._history(batch.sequences[output], batch.positions[output]))
            if isinstance(said, int):
                row[said] = 1
            else:
                row[:] = said
        return logits

    def hidden(self, batch: Batch) -> F32:
        """Return states that tell a row's token and position."""
        self.forward(batch)
        tokens = np.array(batch.tokens, np.float32)[batch.outputs]
        positions = np.array(batch.positions, np.float32)[batch.outputs]
        return np.stack([tokens, positions, np.ones_like(tokens)], axis=1)

    def copy_slots(self, copies: list[Copy]) -> None:
        """Copy slots between pages."""
        for source, target, n_slots in copies:
            pages = self._slots.reshape(self.kv.n_pages, self.kv.page_size)
            assert EMPTY not in pages[source, :n_slots], "slots are copied that were never written"
            pages[target, :n_slots] = pages[source, :n_slots]

    def cancel(self) -> None:
        """Break the forward off that is running."""
        self._is_cancelled = True

    def close(self) -> None:
        """Note that it was called."""
        self.is_closed = True

    @property
    def n_rows(self) -> list[int]:
        """Rows of each step so far."""
        return [len(batch.tokens) for batch in self.batches]

    def _slot(self, sequence: int, position: int) -> int:
        assert 0 <= position < self.context
        page, offset = divmod(position, self.kv.page_size)
        return self.kv.page_table(sequence)[page] * self.kv.page_size + offset

    def _history(self, sequence: int, position: int) -> History:
        slots = [self._slot(sequence, p) for p in range(position + 1)]
        history = tuple(int(token) for token in self._slots[slots])
        assert EMPTY not in history, "a slot is read that was never written"
        return history


class FakeTokenizer:
    """Token i stands for the i-th piece; control tokens stand for nothing."""

    drops_leading_space = False
    add_bos = False
    eos: int | None = None

    def __init__(
        self,
        pieces: Sequence[str | bytes] | None = None,
        *,
        bos: int | None = None,
        eog: Sequence[int] = (),
    ) -> None:
        """By default tokens are "<0>", "<1>", ... up to 63."""
        pieces = [f"<{i}>" for i in range(64)] if pieces is None else pieces
        self._pieces = [p.encode() if isinstance(p, str) else p for p in pieces]
        self.n_vocab = len(self._pieces)
        self.bos = bos
        self.eog = frozenset(eog)

    def token_bytes(self, token: int) -> bytes:
        """Return a token's piece."""
        return self._pieces[token]

    def is_hidden(self, token: int) -> bool:
        """Return whether it is a control token."""
        return token in self.eog or token == self.bos

    def is_control(self, token: int) -> bool:
        """Return whether it is a control token."""
        return token in self.eog or token == self.bos

    def token_text(self, token: int) -> str:
        """Return a token's spelling."""
        return self._pieces[token].decode("utf-8", "replace")


def script(*tokens: int, after: int = 0) -> Callable[[History], int]:
    """Return a function for FakeModel: say these tokens after a prompt of `after` tokens."""

    def say(history: History) -> int:
        return tokens[len(history) - after]

    return say
