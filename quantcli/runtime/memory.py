"""How much memory there is, what a model needs of it, and the longest context that fits."""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass
from pathlib import Path

from quantcli.errors import ResourceError, UsageError
from quantcli.runtime import cgroup

MIN_CONTEXT = 512  # a default below this is of no use; less must be asked for
_CONTEXT_STEP = 256  # a context cut to what fits is a multiple of this, and so of the KV page
_STATUS = Path("/proc/self/status")
_KV_BLOCKS = {"f16": (1, 2), "q8_0": (32, 34)}  # values a block, bytes a block


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """What a model takes of the memory that is available. All sizes in bytes."""

    context: int  # positions a sequence can hold
    n_sequences: int
    weights_nbytes: int
    kv_nbytes_per_token: int
    buffers_nbytes: int
    available: int

    @property
    def kv_nbytes(self) -> int:
        """Return the size of the KV cache with every sequence at its full context."""
        return self.kv_nbytes_per_token * self.context * self.n_sequences

    @property
    def total(self) -> int:
        """Return the sum of weights, KV cache and buffers."""
        return self.weights_nbytes + self.kv_nbytes + self.buffers_nbytes

    @property
    def fits(self) -> bool:
        """Return whether the total is within the memory available."""
        return self.total <= self.available


def kv_nbytes_per_token(
    n_layers: int, n_kv_heads: int, head_dim: int, kv_type: str, value_dim: int = 0
) -> int:
    """Return the bytes one token takes in the KV cache: keys and values of every layer.

    2 x layers x kv heads x head_dim x bytes a value: 2 for f16, 34/32 for q8_0, whose heads are
    whole blocks of 32. Values may be narrower than keys. Raises UsageError for an unknown type.
    """
    if kv_type not in _KV_BLOCKS:
        raise UsageError(f"KV cache type {kv_type!r} is unknown; known: {', '.join(_KV_BLOCKS)}.")
    block_values, block_nbytes = _KV_BLOCKS[kv_type]
    widths = (head_dim, value_dim or head_dim)
    nbytes = sum(-(-width // block_values) * block_nbytes for width in widths)
    return n_layers * n_kv_heads * nbytes


def plan_memory(
    *,
    context: int,
    weights_nbytes: int,
    kv_nbytes_per_token: int,
    buffers_nbytes: int,
    available: int,
    n_sequences: int = 1,
) -> MemoryPlan:
    """Return the plan of a context length that is already decided."""
    return MemoryPlan(
        context, n_sequences, weights_nbytes, kv_nbytes_per_token, buffers_nbytes, available
    )


def choose_context(
    requested: int | None,
    *,
    train_context: int,
    weights_nbytes: int,
    kv_nbytes_per_token: int,
    buffers_nbytes: int,
    available: int,
    n_sequences: int = 1,
) -> MemoryPlan:
    """Return the plan with the context to use: the requested one, or the longest that fits.

    requested      positions asked for; None or 0 means the model's own context, cut to what fits
                   beside a reserve for the rest of the machine
    train_context  positions the model was trained with

    Raises UsageError for a negative request, ResourceError if the request, or MIN_CONTEXT without
    one, does not fit; the message has the numbers and the longest context that would.
    """
    if requested is not None and requested < 0:
        raise UsageError(f"--ctx {requested} is negative. Give a number of tokens, or 0 for all.")

    def plan(context: int) -> MemoryPlan:
        return plan_memory(
            context=context,
            n_sequences=n_sequences,
            weights_nbytes=weights_nbytes,
            kv_nbytes_per_token=kv_nbytes_per_token,
            buffers_nbytes=buffers_nbytes,
            available=available,
        )

    token_nbytes = max(1, kv_nbytes_per_token * n_sequences)
    fixed = weights_nbytes + buffers_nbytes
    if requested:
        if not plan(requested).fits:
            raise _too_big(plan(requested), (available - fixed) // token_nbytes)
        return plan(requested)
    room = (available - reserve(available) - fixed) // token_nbytes
    if room >= train_context:
        return plan(train_context)
    context = room // _CONTEXT_STEP * _CONTEXT_STEP
    smallest = min(MIN_CONTEXT, train_context)
    if context < smallest:
        raise _too_big(plan(smallest), (available - fixed) // token_nbytes)
    return plan(context)


def reserve(available: int) -> int:
    """Return the bytes to leave to the rest of the machine: a tenth, 128 MiB to 1 GiB."""
    return min(max(available // 10, 128 << 20), 1 << 30)


def available_memory(root: Path = cgroup.ROOT) -> int:
    """Return the bytes this process can take without swapping or being killed.

    The machine's available memory, or what is left of a control group's limit if that is less.
    """
    import psutil

    machine = int(psutil.virtual_memory().available)
    left = cgroup.memory_left(root)
    return machine if left is None else min(machine, left)


def total_memory() -> int:
    """Return the bytes of memory this machine has."""
    import psutil

    return int(psutil.virtual_memory().total)


def peak_memory(status: Path = _STATUS) -> int:
    """Return the most bytes of memory this process has held at once.

    status   Linux's file on this process. Its account starts with the program, where that of
             getrusage starts with the fork and so may be the parent's.
    """
    if sys.platform == "win32":
        import psutil

        return int(psutil.Process().memory_info().peak_wset)
    try:
        found = re.search(r"^VmHWM:\s*(\d+) kB", status.read_text("ascii"), re.MULTILINE)
    except (OSError, UnicodeDecodeError):
        found = None
    if found:
        return int(found[1]) * 1024
    import resource

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024  # kilobytes but on macOS


def size(nbytes: int) -> str:
    """Return a byte count for people: 3 digits and a decimal unit."""
    value = float(nbytes)
    for unit in ("B", "kB", "MB", "GB"):
        if abs(value) < 999.5 or unit == "GB":
            break
        value /= 1000
    digits = 0 if unit == "B" or value >= 99.95 else 1 if value >= 9.995 else 2
    return f"{value:.{digits}f} {unit}"


def _too_big(plan: MemoryPlan, longest: int) -> ResourceError:
    """Return the error for a plan that does not fit, with the longest context that would."""
    longest = longest // 16 * 16
    if longest >= 16:
        advice = f"Use --ctx {longest} or less, or --kv-type q8_0 if it is f16."
    else:
        advice = "Close other programs, or use a smaller model."
    return ResourceError(
        f"a context of {plan.context} tokens needs {size(plan.total)} (weights "
        f"{size(plan.weights_nbytes)}, KV cache {size(plan.kv_nbytes)}, buffers "
        f"{size(plan.buffers_nbytes)}), and {size(plan.available)} of memory is available. {advice}"
    )
