"""Models that wear LoRA adapters: which ones fit, and the plan that applies them.

The base's weights are neither copied nor changed: an adapter's matrices are packed beside them,
and the plan has small ops more, see `plan.lora`.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from quantcli.arch import Hyper, get
from quantcli.checkpoint import Checkpoint, TensorInfo, open_checkpoint
from quantcli.checkpoint.adapter import (
    PEFT_CONFIG,
    AdaptedCheckpoint,
    Adapter,
    Pair,
    adapted_name,
    open_adapter,
)
from quantcli.checkpoint.gguf_layout import quoted
from quantcli.errors import ShapeError, UnsupportedModel, UsageError
from quantcli.plan import Plan
from quantcli.plan.lora import Branch, branched, shapes, targets

_MAX_FACTOR = 1e6  # no adapter needs a thousandth of it; f32 would overflow in the end


def open_adapted(path: Path, wanted: Sequence[tuple[Path, float]]) -> Checkpoint:
    """Open a model with adapters; as `open_checkpoint` and `with_adapters`."""
    base = open_checkpoint(path)
    try:
        return with_adapters(base, wanted)
    except BaseException:
        base.close()
        raise


def with_adapters(base: Checkpoint, wanted: Sequence[tuple[Path, float]]) -> Checkpoint:
    """Return an open model with adapters; without any, the model as it is.

    wanted   GGUF files of adapters, or folders of PEFT's, and a scale for each

    The result closes the model and the adapters. All of an adapter is read once, to be checked.
    Raises ModelError for an adapter that is damaged, not supported or made for another model, and
    what `Hyper` raises for a model that cannot be run, UsageError for a scale beyond all sense;
    then the model stays open.
    """
    if not wanted:
        return base
    hyper = Hyper.from_metadata(base.metadata, base.tensors)
    plan = get(hyper.arch).build(hyper)
    with ExitStack() as undo:
        adapters: list[Adapter] = []
        for path, scale in wanted:
            adapter = _open(path, hyper, scale)
            undo.callback(adapter.checkpoint.close)
            _branches(plan, adapter, hyper.arch, len(adapters), base.paths[0].name)
            adapter.require_finite()
            adapters.append(adapter)
        undo.pop_all()
    return AdaptedCheckpoint(base, adapters)


def adapted(plan: Plan, checkpoint: Checkpoint) -> Plan:
    """Return a model's plan with its checkpoint's adapters; raises as `with_adapters`."""
    arch, name = checkpoint.architecture, checkpoint.paths[0].name
    branches = [
        branch
        for number, adapter in enumerate(checkpoint.adapters)
        if adapter.scale
        for branch in _branches(plan, adapter, arch, number, name)
    ]
    return branched(plan, branches) if branches else plan


def _open(path: Path, hyper: Hyper, scale: float) -> Adapter:
    if not (path / PEFT_CONFIG).is_file():
        return open_adapter(path, scale)
    from quantcli.huggingface.peft import open_peft

    return open_peft(path, hyper, scale)


def _branches(plan: Plan, adapter: Adapter, arch: str, number: int, model: str) -> list[Branch]:
    """Return the branches that an adapter adds to a plan. Raises ModelError if it does not fit."""
    path = adapter.path
    if adapter.architecture != arch:
        raise UnsupportedModel(
            f"{path}: is made for {adapter.architecture} models, and {model} is a {arch} model; "
            "give the model that the adapter was made for."
        )
    ops = targets(plan)
    for pair in adapter.pairs.values():
        if pair.target not in ops:
            raise UnsupportedModel(f"{path}: {_no_target(pair, plan, model)}")
        if error := _misfit(pair, *shapes(plan, ops[pair.target], pair.rank)):
            raise ShapeError(f"{path}: {error}")
        if abs(factor := adapter.factor(pair)) > _MAX_FACTOR:
            raise UsageError(
                f"{path}: with a scale of {adapter.scale:g} it is multiplied by {factor:g}; give a "
                f"scale that keeps this within {_MAX_FACTOR:g}."
            )
    return [
        Branch(
            pair.target,
            adapted_name(number, pair.a.name),
            adapted_name(number, pair.b.name),
            pair.rank,
            adapter.factor(pair),
        )
        for pair in adapter.pairs.values()
    ]


def _no_target(pair: Pair, plan: Plan, model: str) -> str:
    what = f"tensor {quoted(pair.a.name)} is for {quoted(pair.target)}, "
    if pair.target in plan.weights:
        return what + (
            "which cannot be adapted; matrices of linear layers, of experts and of the embedding "
            "can be."
        )
    return what + f"which {model} does not have; give the model that the adapter was made for."


def _misfit(pair: Pair, want_a: tuple[int, ...], want_b: tuple[int, ...]) -> str | None:
    """Return what is wrong with the shapes of a pair, or None."""
    wrong, want = (pair.a, want_a) if _is(pair.b, want_b) else (pair.b, want_b)
    if _is(wrong, want):
        return None
    return (
        f"tensor {quoted(wrong.name)} is {_times(wrong.shape)}, but {_times(want)} is what "
        f"{quoted(pair.target)} of this model and a rank of {pair.rank} call for; give the model "
        "that the adapter was made for."
    )


def _is(info: TensorInfo, want: tuple[int, ...]) -> bool:
    """Return whether a tensor has a shape, but for leading axes of 1, which files leave out."""
    shape = info.shape
    return (1,) * (len(want) - len(shape)) + shape == want


def _times(shape: tuple[int, ...]) -> str:
    return " x ".join(map(str, shape))
