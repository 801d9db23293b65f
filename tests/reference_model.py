"""Opening a file with the NumPy executor, for tests and for the scripts that make goldens."""

from __future__ import annotations

from pathlib import Path

from quantcli.arch import Hyper, check_tensors, get
from quantcli.checkpoint import open_checkpoint
from quantcli.formats import F32
from quantcli.qtensor import QTensor
from quantcli.runtime.reference import ReferenceExecutor


def load(path: Path, *, context: int = 0, **options: object) -> ReferenceExecutor:
    """Return an executor of a GGUF file, all of which is read at once."""
    with open_checkpoint(path) as checkpoint:
        hyper = Hyper.from_metadata(checkpoint.metadata, checkpoint.tensors)
        plan = get(hyper.arch).build(hyper)
        check_tensors(plan, checkpoint.tensors)
        tensors: dict[str, QTensor | F32] = {name: checkpoint.tensor(name) for name in plan.weights}
    return ReferenceExecutor(
        plan,
        tensors.__getitem__,
        context=context or hyper.context,
        **options,  # type: ignore[arg-type]
    )


def logits(executor: ReferenceExecutor, tokens: list[int], rows: list[int] | None = None) -> F32:
    """Run a prompt as sequence 0 from position 0; return the logits of some rows, or of all."""
    n = len(tokens)
    return executor.forward(tokens, range(n), [0] * n, range(n) if rows is None else rows)
