"""Rows of logits from a model, a few at a time, and their log-probabilities."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from quantcli.errors import ModelError
from quantcli.formats import F32
from quantcli.kernels import log_softmax as kernel
from quantcli.kernels.jit import OpKernel
from quantcli.kvcache import KVCache
from quantcli.runtime.model import Batch

F64 = npt.NDArray[np.float64]
I64 = npt.NDArray[np.int64]
Step = Callable[[int], None]  # called with the tokens of each step that is done

SEQUENCE = 0


class Runnable(Protocol):
    """A model as far as evaluating needs it."""

    n_vocab: int
    context: int
    max_rows: int
    is_compiled: bool
    kv: KVCache

    def slices(self, batch: Batch) -> Iterator[F32]:
        """Yield f32 (n, n_vocab), the logits of the rows that want them, a few at a time."""
        ...

    def run_op(self, kernel: OpKernel, args: np.ndarray) -> None:
        """Run a kernel on the model's threads."""
        ...


class Sums(NamedTuple):
    """What is known of n rows: f64 (n,) log-sum-exp of the logits, i64 (n,) the likeliest token."""

    log_total: F64
    likeliest: I64


class Pair(NamedTuple):
    """What is known of n rows of a model, and of another's for the same positions.

    kl  f64 (n,)   KL divergence of the model's probabilities from the base's, in nats
    """

    base: Sums
    row: Sums
    kl: F64


def predictions(
    model: Runnable,
    tokens: Sequence[int],
    *,
    start: int = 0,
    first: int = 0,
    step: Step | None = None,
) -> Iterator[tuple[int, F32]]:
    """Run tokens and yield (row, logits) in order: f32 (n, n_vocab) of rows [row, row + n).

    start  where the tokens stand in their sequence; what was there from `start` on is forgotten
    first  the first row of `tokens` whose logits are wanted

    A slice of logits is valid until the next is asked for.
    """
    if start:
        model.kv.truncate(SEQUENCE, start)
    else:
        model.kv.free(SEQUENCE)
    for begin in range(0, len(tokens), model.max_rows):
        part = list(tokens[begin : begin + model.max_rows])
        n = len(part)
        model.kv.reserve(SEQUENCE, start + begin + n)
        positions = list(range(start + begin, start + begin + n))
        row = max(begin, first)
        wanted = list(range(row - begin, n))
        for logits in model.slices(Batch(part, positions, [SEQUENCE] * n, wanted)):
            if len(logits):
                yield row, logits
            row += len(logits)
        if step is not None:
            step(n)


def sums(model: Runnable, logits: F32) -> Sums:
    """Return what is known of rows of logits; log_total is NaN where one is NaN or +inf."""
    if not model.is_compiled:
        return _sums(kernel.reference(logits))
    out = np.zeros(len(logits), kernel.SUMS)
    _run(model, kernel.log_sum_exp, out, rows=logits)
    return _sums(out)


def compare(model: Runnable, base: F32, logits: F32) -> Pair:
    """Return what is known of rows of logits next to another model's, the base.

    base  f32 (n, n_vocab)   logits for the same positions

    KL = sum p_i (ln p_i - ln q_i) = E_p[base_i - logit_i] - (ln Z_base - ln Z); exactly 0 for
    equal rows. Roundings below 0 are taken as 0.
    """
    assert base.shape == logits.shape, (base.shape, logits.shape)
    if model.is_compiled:
        out = np.zeros(len(logits), kernel.PAIR)
        _run(model, kernel.compare, out, rows=logits, base=base)
    else:
        out = kernel.compare_reference(base, logits)
    ours, theirs = _sums(out["row"]), _sums(out["base"])
    kl = out["moment"] / out["base"]["total"] - (theirs.log_total - ours.log_total)
    return Pair(theirs, ours, np.maximum(kl, 0.0))


def target_logits(logits: F32, targets: Sequence[int]) -> F64:
    """Return f64 (n,), of each row the logit of its target."""
    result: F64 = logits[np.arange(len(logits)), np.asarray(targets)].astype(np.float64)
    return result


def check_finite(log_total: F64, name: str, where: Callable[[int], str]) -> None:
    """Raise ModelError that names the first row whose probabilities are not defined."""
    bad = np.flatnonzero(~np.isfinite(log_total))
    if bad.size:
        raise ModelError(
            f"{name}: logits {where(int(bad[0]))} are not finite. The file is damaged, or its "
            "format cannot hold its weights; try another file of the same model."
        )


def _run(model: Runnable, op: OpKernel, out: np.ndarray, **arrays: F32) -> None:
    """Run one of the kernels over rows that are contiguous each."""
    args = np.zeros(1, kernel.ARGS)
    n_rows, width = arrays["rows"].shape
    assert width >= kernel.MIN_WIDTH, width
    args["n_rows"], args["width"], args["out"] = n_rows, width, out.ctypes.data
    for name, array in arrays.items():
        assert array.strides[1] == array.itemsize, array.strides
        args[name] = array.ctypes.data
        args["stride" if name == "rows" else "base_stride"] = array.strides[0]
    model.run_op(op, args)


def _sums(record: np.ndarray) -> Sums:
    with np.errstate(divide="ignore"):
        return Sums(record["top"] + np.log(record["total"]), record["argmax"])
