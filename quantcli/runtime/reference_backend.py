"""The reference backend: the same plan in NumPy, for bug reports and comparisons."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from quantcli.checkpoint import Checkpoint
from quantcli.formats import F32
from quantcli.kernels.jit import OpKernel
from quantcli.kvcache import Copy
from quantcli.runtime.hidden import final_norm
from quantcli.runtime.reference import ReferenceExecutor
from quantcli.runtime.sizing import Sizing
from quantcli.runtime.step import Batch


class ReferenceBackend:
    """Runs a plan with the NumPy reference; slow, and needs the checkpoint open."""

    def __init__(self, checkpoint: Checkpoint, sizing: Sizing, kv_type: str) -> None:
        """Prepare; weights are decoded when first needed."""
        self._executor = ReferenceExecutor(
            sizing.plan, checkpoint.tensor, context=sizing.memory.context, kv_type=kv_type
        )

    def forward(self, batch: Batch) -> F32:
        """Return f32 (len(batch.outputs), n_vocab)."""
        return self._executor.forward(batch.tokens, batch.positions, batch.sequences, batch.outputs)

    def slices(self, batch: Batch) -> Iterator[F32]:
        """Yield the logits of all rows at once."""
        yield self.forward(batch)

    def copy_slots(self, copies: list[Copy]) -> None:
        """Refuse: keys and values lie by sequence here, not by page."""
        raise AssertionError(f"{copies} need a compiled model")

    def hidden(self, batch: Batch) -> F32:
        """Return f32 (len(batch.outputs), width), the states after the final norm."""
        return self._executor.forward(
            batch.tokens,
            batch.positions,
            batch.sequences,
            batch.outputs,
            until=final_norm(self._executor.plan).output,
        )

    def run_op(self, kernel: OpKernel, args: np.ndarray) -> None:
        """Refuse: nothing compiled runs here."""
        raise AssertionError(f"{kernel.name} needs a compiled model")

    def cancel(self) -> None:
        """Do nothing: a reference step cannot be cut short."""

    def close(self) -> None:
        """Do nothing: there are no threads."""
