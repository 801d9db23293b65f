"""What running a model takes, known from its file alone: its plan, its context, its memory."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from quantcli.arch import Hyper, check_tensors, get
from quantcli.checkpoint import Checkpoint
from quantcli.kvcache import KVCache, create
from quantcli.plan import ENTRIES, Plan
from quantcli.runtime.adapters import adapted
from quantcli.runtime.memory import (
    MemoryPlan,
    available_memory,
    choose_context,
    kv_nbytes_per_token,
)
from quantcli.runtime.weights import is_matrix, packed_nbytes

# Rows of one step. Enough that a panel of weights, once unpacked, serves many tokens; more only
# costs memory: 128 to 512 rows measured within 3% on one AVX-512 server core.
MAX_ROWS = 256
_LOGITS_NBYTES = 16 << 20  # of logits computed at a time; more outputs go in slices
# Python, NumPy, Numba and LLVM with the kernels of one model: measured 150 to 190 MB on Linux.
_RUNTIME_NBYTES = 190 << 20


@dataclass(frozen=True, slots=True)
class Sizing:
    """A model's plan, checked against its tensors, and the memory it will take."""

    hyper: Hyper
    plan: Plan
    memory: MemoryPlan
    max_rows: int
    max_outputs: int
    n_sequences: int

    def cache(self, kind: str) -> KVCache:
        """Return the accounting of an empty KV cache of a kind in the catalog."""
        return create(kind, context=self.memory.context, n_sequences=self.n_sequences)


def size_model(
    checkpoint: Checkpoint,
    *,
    context: int | None = None,
    kv_type: str = "f16",
    n_sequences: int = 1,
) -> Sizing:
    """Build and check a model's plan, and choose its context.

    context   positions a sequence can hold; None: the model's own, cut to what memory allows

    The plan applies the adapters that the checkpoint has.

    Raises what Hyper and check_tensors raise for a model that cannot be run, ResourceError for one
    that does not fit, UsageError for an unknown KV cache type.
    """
    hyper = Hyper.from_metadata(checkpoint.metadata, checkpoint.tensors)
    plan = get(hyper.arch).build(hyper)
    plan.verify()
    plan = adapted(plan, checkpoint)
    check_tensors(plan, checkpoint.tensors)
    n_vocab = plan.logits.width
    max_outputs = max(1, min(MAX_ROWS, _LOGITS_NBYTES // (4 * n_vocab)))
    heads = [op.heads for op in plan.ops if op.heads]
    memory = choose_context(
        context,
        train_context=hyper.context,
        weights_nbytes=_weights_nbytes(checkpoint, plan),
        kv_nbytes_per_token=sum(
            kv_nbytes_per_token(1, h.n_kv_heads, h.head_dim, kv_type, h.value_dim) for h in heads
        ),
        buffers_nbytes=_buffers_nbytes(plan, max_outputs) + _RUNTIME_NBYTES,
        available=available_memory(),
        n_sequences=n_sequences,
    )
    return Sizing(hyper, plan, memory, MAX_ROWS, max_outputs, n_sequences)


def _weights_nbytes(checkpoint: Checkpoint, plan: Plan) -> int:
    """Return the bytes of the weights as they will be packed."""
    total = 0
    for name, shape in plan.weights.items():
        if is_matrix(name, shape):
            total += packed_nbytes(shape, checkpoint.tensors[name].format.name)
        else:
            total += 4 * prod(shape)
    return total


def _buffers_nbytes(plan: Plan, max_outputs: int) -> int:
    """Return about what a step's buffers take: two of each width, and the logits."""
    n_used = max((op.routing.n_used for op in plan.ops if op.routing), default=1)
    widths = {
        op.output.width * (n_used if op.output.axis in ENTRIES.values() else 1)
        for op in plan.ops
        if (op.output.axis, op.output.width) != (plan.logits.axis, plan.logits.width)
    }
    return 4 * (2 * MAX_ROWS * sum(widths) + max_outputs * plan.logits.width)
