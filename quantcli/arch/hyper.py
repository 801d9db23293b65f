"""Hyper-parameters: what a file's metadata says about a model, checked.

What a value *means* is the architecture's business: a llama file may carry a sliding window that
no llama applies. Limits are far above any real model; they keep a hostile file from asking for a
plan of a million layers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sized
from dataclasses import dataclass
from typing import Protocol

from quantcli import catalog
from quantcli.arch.keys import Keys, show
from quantcli.errors import CheckpointError, ShapeError, UnsupportedModel

EMBEDDING = "token_embd.weight"

_MAX_LAYERS = 512
_MAX_HEADS = 4096
_MAX_EXPERTS = 4096
_MAX_HEAD_DIM = 4096
MAX_WIDTH = 1 << 20
MAX_CONTEXT = (1 << 31) - 1


class HasShape(Protocol):
    """A tensor as far as an architecture looks at it."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Its axes in NumPy order: (n_out, n_in)."""
        ...


@dataclass(frozen=True, slots=True)
class RopeKeys:
    """The `rope.*` keys, as in `plan.Rope`.

    freq_base_swa   base of windowed layers, None if the file names none
    is_long         whether the file asks for longrope
    """

    n_rot: int
    freq_base: float
    freq_base_swa: float | None
    scaling: str
    factor: float
    original_context: int
    ext_factor: float
    attn_factor: float
    beta_fast: float
    beta_slow: float
    log_mul: float
    is_long: bool


@dataclass(frozen=True, slots=True)
class Hyper:
    """One model's numbers.

    n_layers         without layers that predict further tokens, which are not run
    n_blocks         with them: as many as arrays of one value a layer have
    context          positions the model was trained for
    n_heads, n_kv_heads, d_ff   one a layer
    head_dim, value_dim         width of a head of q and k, and of v
    window           keys a windowed layer sees, 0 if the file names none
    window_pattern   n: every n-th layer sees all; or for each layer whether it is windowed
    n_experts        0 for a model without
    tensors          names in the file; optional weights are decided by presence
    keys             for what only some architectures have
    """

    arch: str
    n_layers: int
    n_blocks: int
    n_vocab: int
    d_model: int
    context: int
    n_heads: tuple[int, ...]
    n_kv_heads: tuple[int, ...]
    head_dim: int
    value_dim: int
    d_ff: tuple[int, ...]
    rope: RopeKeys
    window: int
    window_pattern: int | tuple[bool, ...] | None
    attn_softcap: float
    logit_softcap: float
    n_experts: int
    tensors: frozenset[str]
    keys: Keys

    @classmethod
    def from_metadata(
        cls, metadata: Mapping[str, object], tensors: Mapping[str, HasShape]
    ) -> Hyper:
        """Read a file's metadata and the size of its vocabulary.

        Raises UnsupportedModel for an architecture or a feature that quantcli does not have, and
        CheckpointError or ShapeError for a key that is missing or out of range; each names the key,
        its value and what is allowed.
        """
        keys = Keys(metadata, _architecture(metadata))
        _refuse_features(keys)
        n_blocks = keys.integer("block_count", 1, _MAX_LAYERS)
        n_layers = n_blocks - keys.integer("nextn_predict_layers", 0, n_blocks - 1, 0)
        d_model = keys.integer("embedding_length", 1, MAX_WIDTH)
        context = keys.integer("context_length", 1, MAX_CONTEXT)
        n_heads, n_kv_heads = _head_counts(keys, n_blocks)
        head_dim = _head_dim(keys, d_model, n_heads)
        pattern = "attention.sliding_window_pattern"
        return cls(
            arch=keys.prefix,
            n_layers=n_layers,
            n_blocks=n_blocks,
            n_vocab=_n_vocab(metadata, tensors),
            d_model=d_model,
            context=context,
            n_heads=n_heads,
            n_kv_heads=n_kv_heads,
            head_dim=head_dim,
            value_dim=keys.integer("attention.value_length", 1, _MAX_HEAD_DIM, head_dim),
            d_ff=keys.per_layer("feed_forward_length", n_blocks, 1, MAX_WIDTH),
            rope=_rope(keys, head_dim, context),
            window=keys.integer("attention.sliding_window", 0, MAX_CONTEXT, 0),
            window_pattern=keys.flag_per_layer_or_integer(pattern, n_blocks, 0, _MAX_LAYERS),
            attn_softcap=keys.number("attn_logit_softcapping", 0.0, 1e6, 0.0),
            logit_softcap=keys.number("final_logit_softcapping", 0.0, 1e6, 0.0),
            n_experts=keys.integer("expert_count", 0, _MAX_EXPERTS, 0),
            tensors=frozenset(tensors),
            keys=keys,
        )


def _architecture(metadata: Mapping[str, object]) -> str:
    name = metadata.get("general.architecture")
    if name is None:
        raise CheckpointError("key general.architecture is missing; every model file has it.")
    known = catalog.names("architecture")
    if not isinstance(name, str):
        raise CheckpointError(f"general.architecture is {show(name)}, but must be a name.")
    if name not in known:
        raise UnsupportedModel(
            f"architecture {show(name)} is not supported; quantcli runs {', '.join(known)}."
        )
    return name


def _refuse_features(keys: Keys) -> None:
    """Refuse what a key alone gives away, before any size is looked at."""
    if not keys.flag("attention.causal", True):
        raise UnsupportedModel(
            f"{keys.prefix}.attention.causal is false: this is an encoder, which does not "
            "generate text; use a causal model."
        )


def _head_counts(keys: Keys, n_layers: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    n_heads = keys.per_layer("attention.head_count", n_layers, 1, _MAX_HEADS)
    n_kv_heads = keys.per_layer("attention.head_count_kv", n_layers, 1, _MAX_HEADS, n_heads)
    for q, kv in zip(n_heads, n_kv_heads, strict=True):
        if q % kv:
            raise ShapeError(
                f"{keys.prefix}.attention.head_count_kv is {kv}, but must divide the head count "
                f"of {q}."
            )
    return n_heads, n_kv_heads


def _head_dim(keys: Keys, d_model: int, n_heads: tuple[int, ...]) -> int:
    if "attention.key_length" not in keys and d_model % n_heads[0]:
        raise ShapeError(
            f"{keys.prefix}.attention.head_count is {n_heads[0]}, but must divide "
            f"embedding_length {d_model} when attention.key_length is missing."
        )
    default = d_model // n_heads[0]
    head_dim = keys.integer("attention.key_length", 2, _MAX_HEAD_DIM, default)
    for name in ("key_length_swa", "value_length_swa"):
        # files set all of them or none; where they disagree in silence, the shapes of tensors tell
        other = keys.integer(f"attention.{name}", 1, _MAX_HEAD_DIM, head_dim)
        if other != head_dim:
            raise UnsupportedModel(
                f"{keys.prefix}.attention.{name} is {other}, but only models whose heads are all "
                f"as wide as attention.key_length, {head_dim}, are supported."
            )
    return head_dim


def _rope(keys: Keys, head_dim: int, context: int) -> RopeKeys:
    n_rot = keys.integer("rope.dimension_count", 2, head_dim, head_dim)
    if n_rot % 2:
        raise ShapeError(f"{keys.prefix}.rope.dimension_count is {n_rot}, but must be even.")
    n_rot_swa = keys.integer("rope.dimension_count_swa", 2, head_dim, n_rot)
    if n_rot_swa != n_rot:
        raise UnsupportedModel(
            f"{keys.prefix}.rope.dimension_count_swa is {n_rot_swa}, but only models that rotate "
            f"the same {n_rot} dimensions in every layer are supported."
        )
    # a file without the key scales linearly if it has a factor: older converters wrote no type
    scaling = keys.text("rope.scaling.type", ("none", "linear", "yarn", "longrope"), "linear")
    is_long = scaling == "longrope"
    if is_long:  # its factors are tensors; a number scales as well
        scaling = "linear"
    factor = keys.number("rope.scale_linear", 0.0, 1e6, 1.0, above=True)
    factor = keys.number("rope.scaling.factor", 0.0, 1e6, factor, above=True)
    if scaling == "none" or (scaling == "linear" and factor == 1.0):
        scaling, factor = "none", 1.0
    ext_factor = keys.number("rope.scaling.yarn_ext_factor", 0.0, 1e3, 1.0)
    swa = "rope.freq_base_swa"
    return RopeKeys(
        n_rot=n_rot,
        freq_base=keys.number("rope.freq_base", 1.0, 1e15, 10000.0, above=True),
        freq_base_swa=keys.number(swa, 1.0, 1e15, above=True) if swa in keys else None,
        scaling=scaling,
        factor=factor,
        original_context=keys.integer(
            "rope.scaling.original_context_length", 1, MAX_CONTEXT, context
        ),
        ext_factor=ext_factor if scaling == "yarn" else 0.0,
        attn_factor=keys.number("rope.scaling.attn_factor", 0.0, 1e3, 1.0, above=True),
        beta_fast=keys.number("rope.scaling.yarn_beta_fast", 0.0, 1e6, 32.0, above=True),
        beta_slow=keys.number("rope.scaling.yarn_beta_slow", 0.0, 1e6, 1.0, above=True),
        log_mul=keys.number("rope.scaling.yarn_log_multiplier", 0.0, 1e3, 0.0),
        is_long=is_long,
    )


def _n_vocab(metadata: Mapping[str, object], tensors: Mapping[str, HasShape]) -> int:
    """Return the rows of the embedding: often more than there are tokens, never fewer."""
    if EMBEDDING not in tensors:
        raise CheckpointError(f"tensor {EMBEDDING} is missing; every model has it.")
    shape = tensors[EMBEDDING].shape
    if len(shape) != 2:
        raise ShapeError(f"{EMBEDDING} has shape {shape}, but must be a matrix.")
    tokens = metadata.get("tokenizer.ggml.tokens")
    if isinstance(tokens, Sized) and len(tokens) > shape[0]:
        raise ShapeError(
            f"{EMBEDDING} has {shape[0]} rows, but must have one for each of the "
            f"{len(tokens)} tokens of the vocabulary."
        )
    return shape[0]
