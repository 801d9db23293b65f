"""The GGUF keys of a decoder's numbers, as llama.cpp's converter writes them from config.json."""

from __future__ import annotations

import math

import numpy as np

from quantcli.arch.hf_config import HFConfig, RopeConfig
from quantcli.arch.hugging_face import Keys
from quantcli.errors import CheckpointError, UnsupportedModel
from quantcli.formats import F32

_INTEGERS = {
    "block_count": ("n_layers", "num_hidden_layers", "n_layer", "num_layers"),
    "context_length": (
        "max_position_embeddings",
        "n_ctx",
        "n_positions",
        "max_length",
        "max_sequence_length",
        "model_max_length",
    ),
    "embedding_length": ("hidden_size", "n_embd", "dim"),
    "feed_forward_length": (
        "prefix_dense_intermediate_size",
        "dense_intermediate_size",
        "intermediate_size",
        "n_inner",
        "hidden_dim",
    ),
    "attention.head_count": ("num_attention_heads", "n_head", "n_heads"),
    "attention.head_count_kv": ("num_key_value_heads", "n_kv_heads"),
    "expert_count": ("num_local_experts", "num_experts", "n_routed_experts"),
    "expert_used_count": ("num_experts_per_tok", "num_experts_per_token", "top_k_experts"),
    "expert_group_count": ("n_group",),
    "expert_group_used_count": ("topk_group",),
    "attention.key_length": ("head_dim",),
    "attention.value_length": ("head_dim",),
}
_NUMBERS = {
    "attention.layer_norm_rms_epsilon": ("rms_norm_eps", "norm_eps"),
    "attention.layer_norm_epsilon": ("layer_norm_eps", "layer_norm_epsilon", "norm_epsilon"),
}
_SCORE_NAMES = (
    "score_function",
    "scoring_func",
    "score_func",
    "moe_router_activation",
    "moe_router_activation_func",
    "expert_selection_fn",
)
_SCORES = {"softmax": 1, "sigmoid": 2}  # GGUF's numbers
_MAX_HEAD_DIM = 4096  # far above any real model; bounds what a hostile file asks for
_YARN = {
    "yarn_ext_factor": ("extrapolation_factor",),
    "yarn_attn_factor": ("attention_factor", "attn_factor"),
    "yarn_beta_fast": ("beta_fast",),
    "yarn_beta_slow": ("beta_slow",),
}


def decoder_keys(config: HFConfig, *, longrope: bool = False) -> Keys:
    """Return the keys that any decoder has, less the architecture's name before them.

    longrope   whether its RoPE may be scaled by lists of factors

    Raises CheckpointError for a value of the wrong type, UnsupportedModel for a scaling of RoPE
    that GGUF has no keys for.
    """
    keys: Keys = {}
    for name, sources in _INTEGERS.items():
        if (value := config.integer(*sources)) is not None:
            keys[name] = u32(name, value)
    for name, sources in _NUMBERS.items():
        if (number := config.number(*sources)) is not None:
            keys[name] = np.float32(number)
    return keys | _score_keys(config) | rope_keys(config.rope(), longrope=longrope)


def _score_keys(config: HFConfig) -> Keys:
    """Return how scores of experts become weights; raise UnsupportedModel for another way."""
    word = next((value for name in _SCORE_NAMES if (value := config.word(name))), None)
    if word is None:
        return {}
    if word not in _SCORES:
        raise UnsupportedModel(
            f"config.json: experts are scored by {word[:40]!r}; supported are {', '.join(_SCORES)}."
        )
    return {"expert_gating_func": np.uint32(_SCORES[word])}


def expert_keys(config: HFConfig) -> Keys:
    """Return the widths of experts."""
    keys: Keys = {}
    for name, source in (
        ("expert_feed_forward_length", "moe_intermediate_size"),
        ("expert_shared_feed_forward_length", "shared_expert_intermediate_size"),
    ):
        if (value := config.integer(source)) is not None:
            keys[name] = u32(name, value)
    return keys


def u32(name: str, value: int) -> np.uint32:
    """Return a whole number as GGUF holds it; raise CheckpointError if it is out of range."""
    if not 0 <= value < 1 << 32:
        raise CheckpointError(f"config.json: {name} would be {value}; it must be a u32.")
    return np.uint32(value)


def rope_keys(rope: RopeConfig, *, longrope: bool = False) -> Keys:
    """Return the keys of RoPE: its bases, and linear or YaRN scaling.

    The kind "llama3" scales through a tensor instead, see `llama3_factors`; "dynamic" changes
    nothing within the context that a model was trained for.
    """
    is_long = rope.kind in ("longrope", "su")
    keys: Keys = {"rope.scaling.type": "longrope"}
    keys = keys if is_long and longrope else _scaling_keys(rope)
    if (theta := rope.full.number("rope_theta")) is not None:
        keys["rope.freq_base"] = np.float32(theta)
    if (theta := rope.windowed.number("rope_theta")) is not None:
        keys["rope.freq_base_swa"] = np.float32(theta)
    return keys


def _scaling_keys(rope: RopeConfig) -> Keys:
    factor = rope.full.number("factor")
    if rope.kind in ("default", "dynamic", "llama3") or (
        rope.kind in ("linear", "yarn") and factor is None
    ):
        return {}
    if rope.kind not in ("linear", "yarn"):
        raise UnsupportedModel(
            f"config.json: RoPE of kind {rope.kind!r} is not supported; default, linear, llama3 "
            "and yarn are."
        )
    assert factor is not None
    keys: Keys = {"rope.scaling.type": rope.kind, "rope.scaling.factor": np.float32(factor)}
    if rope.kind == "yarn":
        original = rope.full.needed_integer("original_max_position_embeddings")
        keys["rope.scaling.original_context_length"] = u32("original_context_length", original)
        for name, sources in _YARN.items():
            if (number := rope.full.number(*sources)) is not None:
                keys[f"rope.scaling.{name}"] = np.float32(number)
    return keys


def rotated(config: HFConfig, default: float | None = None) -> float:
    """Return the part of a head that rotates, from 0 to 1; raise CheckpointError if it is none."""
    part = config.rope().full.number("partial_rotary_factor")
    part = default if part is None else part
    if part is None or not 0 < part <= 1:
        raise CheckpointError(
            f"config.json: partial_rotary_factor is {'missing' if part is None else part}; it must "
            "be above 0, and 1 at most."
        )
    return part


def layer_types(config: HFConfig) -> list[bool] | None:
    """Return which layers have a window as `layer_types` says, None if it says nothing."""
    types = config.items("layer_types", str, "a list of words, one a layer")
    return None if types is None else [word == "sliding_attention" for word in types]


def head_width(config: HFConfig) -> int:
    """Return hidden_size // num_attention_heads."""
    return config.needed_integer("hidden_size") // config.needed_integer("num_attention_heads")


def n_heads(config: HFConfig) -> int:
    """Return num_attention_heads."""
    return config.needed_integer("num_attention_heads")


def llama3_factors(config: HFConfig) -> dict[str, F32]:
    """Return what each RoPE frequency is divided by, if the scaling is of kind "llama3".

    Long waves are slowed by `factor`, short ones not at all, those between in part.
    Source: `_compute_llama3_parameters` of Hugging Face's modeling_rope_utils.py.
    """
    rope = config.rope()
    if rope.kind != "llama3":
        return {}
    params = rope.full
    dim = config.integer("head_dim") or head_width(config)
    if not 2 <= dim <= _MAX_HEAD_DIM:
        raise CheckpointError(f"config.json: heads are {dim} wide; at most {_MAX_HEAD_DIM}.")
    theta = _with_default(params, "rope_theta", 10000.0)
    factor = _with_default(params, "factor", 8.0)
    low = _with_default(params, "low_freq_factor", 1.0)
    high = _with_default(params, "high_freq_factor", 4.0)
    context = _with_default(params, "original_max_position_embeddings", 8192.0)
    # Each step in the precision of the converter's, so that the bytes are equal: it has f32 tensors
    # and Python numbers, whose products are f32.
    powers = np.arange(0, dim, 2, dtype=np.float32) / np.float32(dim)
    freqs = np.float32(1) / np.power(np.float32(theta), powers)
    factors = []
    for freq in freqs:
        wave = np.float32(2 * math.pi) / freq
        if wave < context / high:
            factors.append(np.float32(1))
        elif wave > context / low:
            factors.append(np.float32(factor))
        else:
            smooth = (np.float32(context) / wave - np.float32(low)) / np.float32(high - low)
            slowed = (np.float32(1) - smooth) / np.float32(factor) + smooth
            factors.append(np.float32(1) / slowed)
    return {"rope_freqs.weight": np.array(factors, np.float32)}


def longrope_factors(config: HFConfig, n_rot: int) -> dict[str, F32]:
    """Return longrope's two lists, for contexts up to the original and beyond; none if it has none.

    n_rot   dimensions of a head that rotate

    Raises CheckpointError if one is missing or of another length. Source: arXiv:2402.13753.
    """
    params, found = config.rope().full, {}
    for name in ("long", "short"):
        values = params.items(f"{name}_factor", float, "a list of numbers")
        if values is not None:
            found[f"rope_factors_{name}.weight"] = np.array(values, np.float32)
    lengths = {factors.size for factors in found.values()}
    if found and (len(found) < 2 or lengths != {n_rot // 2}):
        raise CheckpointError(
            f"config.json: long_factor and short_factor of RoPE must both have {n_rot // 2} "
            "numbers, one for each pair of dimensions."
        )
    return found


def _with_default(params: HFConfig, key: str, default: float) -> float:
    value = params.number(key)
    value = default if value is None else value
    if value <= 0:
        raise CheckpointError(f"config.json: {key} of RoPE is {value:g}; it must be above 0.")
    return value
