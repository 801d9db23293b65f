"""A loaded model: it turns a batch of rows into logits."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Protocol

import numpy as np

from quantcli import catalog
from quantcli.checkpoint import Checkpoint
from quantcli.errors import UsageError
from quantcli.formats import F32
from quantcli.kernels.jit import OpKernel
from quantcli.kvcache import Copy, KVCache
from quantcli.plan import Plan
from quantcli.runtime.memory import MemoryPlan
from quantcli.runtime.sizing import Sizing, size_model
from quantcli.runtime.step import Batch
from quantcli.runtime.threads import default_threads

__all__ = ["BACKENDS", "Batch", "Model"]

Progress = Callable[[str, int, int], None]
BACKENDS = ("compiled", "reference")


class Backend(Protocol):
    """What runs a plan."""

    def forward(self, batch: Batch) -> F32:
        """Return f32 (len(batch.outputs), n_vocab), valid until the next call."""
        ...

    def slices(self, batch: Batch) -> Iterator[F32]:
        """Yield the same logits a few rows at a time, each valid until the next is asked for."""
        ...

    def copy_slots(self, copies: list[Copy]) -> None:
        """Copy slots between pages of the KV cache."""
        ...

    def hidden(self, batch: Batch) -> F32:
        """Return f32 (len(batch.outputs), width), the states after the final norm."""
        ...

    def run_op(self, kernel: OpKernel, args: np.ndarray) -> None:
        """Run a kernel on the threads that compute the model."""
        ...

    def cancel(self) -> None:
        """Make a forward that is running end soon with Cancelled."""
        ...

    def close(self) -> None:
        """Stop threads and give memory back."""
        ...


class Model:
    """A model in memory, with its KV cache. One thread at a time may call `forward`.

    plan      the forward pass
    memory    what it takes
    kv        who holds which slots; reserve a sequence's positions before its rows are computed
    max_rows  most rows of one batch
    shares_pages  whether sequences may share pages of the cache
    """

    def __init__(
        self,
        sizing: Sizing,
        cache: KVCache,
        backend: Backend,
        n_threads: int,
        *,
        is_compiled: bool = True,
    ) -> None:
        """Put the parts together; `load` makes them."""
        self.is_compiled = is_compiled
        self.shares_pages = is_compiled  # the reference keeps keys and values by sequence
        self.plan: Plan = sizing.plan
        self.memory: MemoryPlan = sizing.memory
        self.kv = cache
        self.context = sizing.memory.context
        self.n_vocab = sizing.plan.logits.width
        self.max_rows = sizing.max_rows
        self.n_threads = n_threads
        self._backend = backend

    @classmethod
    def load(
        cls,
        checkpoint: Checkpoint,
        *,
        context: int | None = None,
        n_threads: int | None = None,
        kv_type: str = "f16",
        cache: str = "contiguous",
        n_sequences: int = 1,
        backend: str = "compiled",
        progress: Progress | None = None,
        beside: Model | None = None,
    ) -> Model:
        """Check a checkpoint, read its weights and make room for its KV cache.

        context      positions a sequence can hold; None: the model's own, cut to what fits
        n_threads    None: what this machine is best run with
        n_sequences  sequences that can be open at once, each with a whole context
        progress     called with what is being done, how much is done and of how much
        beside       a model to compute in turns with, on its threads; it is to be closed last

        Raises what `size_model` raises, and UsageError for an unknown cache, KV type or backend.
        """
        catalog.lookup("cache", cache)
        catalog.lookup("KV cache type", kv_type)
        if backend not in BACKENDS:
            raise UsageError(f"unknown backend {backend!r}. Known: {', '.join(BACKENDS)}.")
        if n_threads is not None and not 1 <= n_threads <= 1024:
            raise UsageError(f"{n_threads} threads: give a number from 1 to 1024.")
        sizing = size_model(checkpoint, context=context, kv_type=kv_type, n_sequences=n_sequences)
        accounting = sizing.cache(cache)
        threads = n_threads or default_threads()
        if backend == "reference":
            from quantcli.runtime.reference_backend import ReferenceBackend

            runner: Backend = ReferenceBackend(checkpoint, sizing, kv_type)
        else:
            from quantcli.runtime.compiled import CompiledBackend

            executor = None
            if beside is not None and isinstance(beside._backend, CompiledBackend):
                executor, threads = beside._backend.executor, beside.n_threads
            runner = CompiledBackend(
                checkpoint, sizing, accounting, threads, kv_type, progress, executor
            )
        return cls(sizing, accounting, runner, threads, is_compiled=backend == "compiled")

    def forward(self, batch: Batch) -> F32:
        """Compute a step and return the logits of its output rows.

        return   f32 (len(batch.outputs), n_vocab), valid until the next call

        The rows' slots must be reserved in `kv`. Raises UsageError for a token id outside the
        vocabulary, Cancelled if `cancel` was called meanwhile.
        """
        self._check(batch)
        return self._backend.forward(batch)

    def slices(self, batch: Batch) -> Iterator[F32]:
        """Compute a step as `forward` does and yield its logits, some rows at a time, in order.

        Takes the memory of a slice, where many rows of a large vocabulary would take hundreds of
        megabytes. A slice is valid until the next one is asked for or computed otherwise.
        """
        self._check(batch)
        return self._backend.slices(batch)

    def copy_slots(self, copies: list[Copy]) -> None:
        """Copy slots between pages of the cache, in order; what `kv.open` asks for.

        Only for a model whose sequences share pages.
        """
        self._backend.copy_slots(copies)

    def hidden(self, batch: Batch) -> F32:
        """Compute a step and return its output rows' last hidden states, after the final norm.

        return   f32 (len(batch.outputs), width)

        Raises what `forward` raises, and UnsupportedModel for a model that does not end in a norm
        and an output matrix.
        """
        self._check(batch)
        return self._backend.hidden(batch)

    def run_op(self, kernel: OpKernel, args: np.ndarray) -> None:
        """Run a kernel on the model's threads, which would get in the way of any others.

        args   one record of the kernel's ARGS, without `counter`

        Only for a compiled model. Raises Cancelled if `cancel` was called meanwhile.
        """
        self._backend.run_op(kernel, args)

    def _check(self, batch: Batch) -> None:
        n = len(batch.tokens)
        assert 0 < n <= self.max_rows, (n, self.max_rows)
        assert n == len(batch.positions) == len(batch.sequences), batch
        assert all(0 <= row < n for row in batch.outputs), batch.outputs
        self._check_tokens(batch)
        for sequence in set(batch.sequences):
            last = max(
                p for p, s in zip(batch.positions, batch.sequences, strict=True) if s == sequence
            )
            n_slots = len(self.kv.page_table(sequence)) * self.kv.page_size
            assert last < min(n_slots, self.context), (sequence, last, n_slots)
        assert min(batch.positions) >= 0, batch.positions

    def cancel(self) -> None:
        """Make the forward that is running, if one is, end soon. Any thread may call this."""
        self._backend.cancel()

    def close(self) -> None:
        """Stop threads and give memory back; the model is of no use afterwards."""
        self._backend.close()

    def _check_tokens(self, batch: Batch) -> None:
        if min(batch.tokens) < 0 or max(batch.tokens) >= self.n_vocab:
            bad = next(t for t in batch.tokens if not 0 <= t < self.n_vocab)
            raise UsageError(f"token id {bad} is not in the vocabulary of {self.n_vocab}.")
