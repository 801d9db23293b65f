"""Whether a model has room for the tests that were asked for, before anything slow begins."""

from __future__ import annotations

from typing import TYPE_CHECKING

from quantcli.errors import ResourceError, UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from quantcli.checkpoint import Checkpoint
    from quantcli.cli.bench_grid import GridOptions, Setting
    from quantcli.cli.render import StatusLine
    from quantcli.evaluate.throughput import Workload
    from quantcli.runtime.sizing import Sizing

_LEAST = 16  # positions, to ask for a model's sizes without asking for memory


def check(
    checkpoint: Checkpoint,
    grid: GridOptions,
    settings: Sequence[Setting],
    ctx: int | None,
    status: StatusLine,
) -> list[Workload]:
    """Return the tests that fit a model's context, or `ctx` if that is given.

    What --full adds and has no room is left out, and said; what was asked for by number is an
    error: UsageError for the context and for the rows of a step, ResourceError for memory. Raises
    what size_model raises for a model that cannot be run.
    """
    from quantcli.cli.bench_grid import within
    from quantcli.runtime.sizing import size_model

    name = checkpoint.paths[0].name
    workloads = grid.workloads()
    for kv_type in dict.fromkeys(setting.kv_type for setting in settings):
        sizing = size_model(checkpoint, context=_LEAST, kv_type=kv_type)
        context = ctx or sizing.hyper.context
        fitting = within(workloads, context)
        if grid.depth is None:  # depths that --full adds may go; what else is too long is an error
            left_out = [w for w in workloads if w.depth and w not in fitting]
            workloads = [w for w in workloads if w not in left_out]
            if left_out:
                names = ", ".join(workload.name for workload in left_out)
                status.warn(f"{name} has room for {context} tokens; left out: {names}.")
        for workload in workloads:
            _check_context(workload, name, context, given=ctx is not None)
            _check_memory(workload, name, ctx or workload.n_positions, sizing)
    return workloads


def _check_context(workload: Workload, name: str, context: int, *, given: bool) -> None:
    needed = workload.n_positions
    if needed <= context:
        return
    if given:
        raise UsageError(
            f"{workload.name} needs a context of {needed} tokens, and --ctx is {context}. "
            f"Use --ctx {needed}, or test less."
        )
    raise UsageError(
        f"{workload.name} needs a context of {needed} tokens, and {name} was made for {context}. "
        f"Test less, or use --ctx {needed} to go beyond."
    )


def _check_memory(workload: Workload, name: str, context: int, sizing: Sizing) -> None:
    from quantcli.runtime.memory import size

    n = workload.n_sequences
    if n > sizing.max_rows:
        raise UsageError(
            f"{workload.name} needs steps of {n} rows, and {sizing.max_rows} is the most. "
            "Use a smaller --batch."
        )
    memory = sizing.memory
    needed = n * context * memory.kv_nbytes_per_token
    room = memory.available - memory.weights_nbytes - memory.buffers_nbytes
    if n > 1 and needed > room:
        raise ResourceError(
            f"{workload.name} needs a KV cache of {n} x {context} tokens, {size(needed)}, and "
            f"beside {name} {size(max(0, room))} of memory is left. Use a smaller --batch, or "
            "--kv-type q8_0 if it is f16."
        )
