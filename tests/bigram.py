"""A model whose prediction depends on the last token only, for evaluations of known outcome."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from quantcli.formats import F32
from quantcli.kernels.jit import OpKernel
from quantcli.kvcache import KVCache, create
from quantcli.runtime.model import Batch

F64 = npt.NDArray[np.float64]


class BigramModel:
    """Token t is followed by logits `table[t]`, f32 (n_vocab, n_vocab). Writes down its batches."""

    def __init__(
        self, table: F32, *, max_rows: int = 8, slice_rows: int = 3, context: int = 64
    ) -> None:
        self.table = table
        self.n_vocab = len(table)
        self.context = context
        self.max_rows = max_rows
        self.is_compiled = False
        self.kv: KVCache = create("contiguous", context=context, n_sequences=1)
        self.batches: list[Batch] = []
        self.n_cancelled = 0
        self._slice_rows = slice_rows
        self._buffer = np.empty((slice_rows, self.n_vocab), np.float32)

    def slices(self, batch: Batch) -> Iterator[F32]:
        """Yield logits in one buffer that is used again, as the compiled model does."""
        assert len(batch.tokens) <= self.max_rows
        assert max(batch.positions) < self.context
        assert len(self.kv.page_table(0)) * self.kv.page_size > max(batch.positions)
        self.batches.append(batch)
        tokens = np.array(batch.tokens)[batch.outputs]
        for start in range(0, len(tokens), self._slice_rows):
            part = tokens[start : start + self._slice_rows]
            self._buffer[:] = np.nan
            self._buffer[: len(part)] = self.table[part]
            yield self._buffer[: len(part)]

    def run_op(self, kernel: OpKernel, args: np.ndarray) -> None:
        """Refuse."""
        raise AssertionError(kernel.name)

    def cancel(self) -> None:
        """Count the calls."""
        self.n_cancelled += 1

    def close(self) -> None:
        """Do nothing."""

    @property
    def log_p(self) -> F64:
        """Log-probabilities of the next token after each, f64 (n_vocab, n_vocab)."""
        table = self.table.astype(np.float64)
        shifted: F64 = table - table.max(axis=1, keepdims=True)
        result: F64 = shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))
        return result


def bigram(n_vocab: int = 40, seed: int = 0, spread: float = 3.0, **options: int) -> BigramModel:
    """Return a random model."""
    random = np.random.default_rng(seed)
    table = (random.standard_normal((n_vocab, n_vocab)) * spread).astype(np.float32)
    return BigramModel(table, **options)


def near(model: BigramModel, seed: int = 1, spread: float = 0.3) -> BigramModel:
    """Return a model whose logits are a little off."""
    noise = np.random.default_rng(seed).standard_normal(model.table.shape) * spread
    return BigramModel((model.table + noise).astype(np.float32), max_rows=model.max_rows)


def text(n_tokens: int, n_vocab: int = 40, seed: int = 2) -> list[int]:
    """Return random tokens."""
    return np.random.default_rng(seed).integers(0, n_vocab, n_tokens).tolist()
