"""Nemotron 3 and Minitron: layer norms with "+ 1" stored in them, squared ReLU without a gate."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from quantcli.arch.hf_config import Default, HFConfig
from quantcli.arch.hf_keys import head_width, n_heads, rotated, u32
from quantcli.arch.hugging_face import HuggingFace, Keys, TokenizerFacts
from quantcli.arch.starcoder2 import ARCH as STARCODER2

ARCH = replace(STARCODER2, name="nemotron", act="relu_squared")

_DEFAULTS: dict[str, Default] = {
    "vocab_size": 256000,
    "max_position_embeddings": 4096,
    "hidden_size": 6144,
    "intermediate_size": 24576,
    "num_hidden_layers": 32,
    "num_attention_heads": 48,
    "head_dim": head_width,
    "norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "partial_rotary_factor": 0.5,
}


def _keys(config: HFConfig) -> Keys:
    width = config.needed_integer("hidden_size")
    part = int(rotated(config) * width) // n_heads(config)
    keys: Keys = {
        "vocab_size": u32("vocab_size", config.needed_integer("vocab_size")),
        "rope.dimension_count": u32("partial_rotary_factor", part),
        "rope.scaling.type": "none",
    }
    names = ("layer_norm_eps", "layer_norm_epsilon", "norm_epsilon", "norm_eps")
    if (eps := config.number(*names)) is not None:
        keys["attention.layer_norm_epsilon"] = np.float32(eps)
    if factor := config.number("factor") or config.rope().full.number("factor"):
        keys |= {"rope.scaling.type": "linear", "rope.scaling.factor": np.float32(factor)}
    return keys


def _tokenizer_keys(config: HFConfig, facts: TokenizerFacts) -> Keys:
    return {"padding_token_id": np.uint32(0), "unknown_token_id": np.uint32(1)}


HF = HuggingFace(
    classes={"NemotronForCausalLM": _DEFAULTS},
    norm_shift=1.0,
    keys=_keys,
    tokenizer_keys=_tokenizer_keys,
)
