"""Whether a file holds what a plan reads, and nothing that would change the answer if ignored."""

from __future__ import annotations

import re
from collections.abc import Mapping

from quantcli.arch.hyper import HasShape
from quantcli.errors import CheckpointError, ShapeError, UnsupportedModel
from quantcli.plan import Plan

# Tensors that do not take part in turning text into text: copies of the RoPE frequencies that old
# converters left in each layer, and the vision tower that some files carry beside the text model.
_HARMLESS = re.compile(
    r"blk\.\d+\.(rope_freqs|rope\.freqs|attn_rot_embd|attn\.rotary_emb\.inv_freq)(\.weight)?"
    r"|(v|mm)\..*"
)

# Layers that predict further tokens have such a tensor. They are not run.
_PREDICTION = re.compile(r"(blk\.\d+\.)nextn\..*")

# What an unexpected tensor means, by a part of its name, for the message.
_FEATURES = {
    "_exps": "mixtures of experts",
    "ffn_gate_inp": "mixtures of experts",
    "shexp": "mixtures of experts",
    "ssm_": "recurrent layers",
    "shortconv": "recurrent layers",
    "sinks": "attention sinks",
    "rope_factors": "longrope factors",
    "rope_freqs": "RoPE frequency factors in this architecture",
    "cls": "classification heads",
    "dense_": "embedding heads",
    ".scale": "per-tensor scales",
    "lora_": "adapters",
}


def check_tensors(plan: Plan, tensors: Mapping[str, HasShape]) -> tuple[str, ...]:
    """Check a file's tensors against a plan; return the names that are harmless to ignore.

    Raises UnsupportedModel for a tensor that the plan does not read but that would change the
    answer, CheckpointError for one that is missing and ShapeError for one of the wrong shape.
    """
    extra = [name for name in tensors if name not in plan.weights]
    unused = tuple({found[1] for name in extra if (found := _PREDICTION.fullmatch(name))})
    ignored = tuple(name for name in extra if _HARMLESS.fullmatch(name) or name.startswith(unused))
    strange = [name for name in extra if name not in ignored]
    if strange:
        more = f" (and {len(strange) - 1} more)" if len(strange) > 1 else ""
        feature = next((what for part, what in _FEATURES.items() if part in strange[0]), None)
        why = f"{feature} are not supported" if feature else "this architecture has no such tensor"
        raise UnsupportedModel(f"unexpected tensor {strange[0][:80]!r}{more}: {why}.")
    missing = [name for name in plan.weights if name not in tensors]
    if missing:
        more = f" (and {len(missing) - 1} more)" if len(missing) > 1 else ""
        raise CheckpointError(
            f"tensor {missing[0]}{more} is missing; download or convert the model again."
        )
    for name, want in plan.weights.items():
        _check_shape(name, tuple(tensors[name].shape), want)
    return ignored


def _check_shape(name: str, shape: tuple[int, ...], want: tuple[int, ...]) -> None:
    if _squeeze(shape) != _squeeze(want):
        raise ShapeError(
            f"{name} is {_times(shape)}, but the file's hyper-parameters call for {_times(want)}."
        )


def _squeeze(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Drop leading axes of 1, which a file may write or leave out."""
    while len(shape) > 1 and shape[0] == 1:
        shape = shape[1:]
    return shape


def _times(shape: tuple[int, ...]) -> str:
    return " x ".join(map(str, shape)) or "empty"
