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
    "context_length": ("max_position_embeddings", "n_ctx", "n_positions"),
    "embedding_length": ("hidden_size", "n_embd", "dim"),
    "feed_forward_length": ("intermediate_size", "n_inner", "hidden_dim"),
    "attention.head_count": ("num_attention_heads", "n_head", "n_heads"),
    "attention.head_count_kv": ("num_key_value_heads", "n_kv_heads"),
    "expert_count": ("num_local_experts", "num_experts", "n_routed_experts"),
    "expert_used_count": ("num_experts_per_tok", "num_experts_per_token", "top_k_experts"),
    "attention.key_length": ("head_dim",),
    "attention.value_length": ("head_dim",),
}
_NUMBERS = {
    "attention.layer_norm_rms_epsilon": ("rms_norm_eps", "norm_eps"),
    "attention.layer_norm_epsilon": ("layer_norm_eps", "layer_norm_epsilon", "norm_epsilon"),
}
_MAX_HEAD_DIM = 4096  # far above any real model; bounds what a hostile file asks for
_YARN = {
    "yarn_ext_factor": ("extrapolation_factor",),
    "yarn_attn_factor": ("attention_factor", "attn_factor"),
    "yarn_beta_fast": ("beta_fast",),
    "yarn_beta_slow": ("beta_slow",),
}


def decoder_keys(config: HFConfig) -> Keys:
    """Return the keys that any decoder has, less the architecture's name before them.

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
    return keys | rope_keys(config.rope())


def u32(name: str, value: int) -> np.uint32:
    """Return a whole number as GGUF holds it; raise CheckpointError if it is out of range."""
    if not 0 <= value < 1 << 32:
        raise CheckpointError(f"config.json: {name} would be {value}; it must be a u32.")
    return np.uint32(value)


def rope_keys(rope: RopeConfig) -> Keys:
    """Return the keys of RoPE: its bases, and linear or YaRN scaling.

    The kind "llama3" scales through a tensor instead, see `llama3_factors`; "dynamic" changes
    nothing within the context that a model was trained for.
    """
    keys = _scaling_keys(rope)
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


def _with_default(params: HFConfig, key: str, default: float) -> float:
    value = params.number(key)
    value = default if value is None else value
    if value <= 0:
        raise CheckpointError(f"config.json: {key} of RoPE is {value:g}; it must be above 0.")
    return value
