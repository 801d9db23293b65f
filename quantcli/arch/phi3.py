"""Phi-3, Phi-3.5 and Phi-4: q, k and v in one matrix, gate and up in another; longrope.

Which of longrope's factors apply is decided by the context a model is run with, not by how much of
it is used. The sliding window that files name is not applied: converters wrote wrong ones.
"""

from __future__ import annotations

import math

import numpy as np

from quantcli.arch.blocks import Decoder
from quantcli.arch.hf_config import Default, HFConfig
from quantcli.arch.hf_keys import longrope_factors, n_heads, rotated, u32
from quantcli.arch.hugging_face import DECODER, HuggingFace, Keys
from quantcli.formats import F32

ARCH = Decoder(name="phi3", rope_style="neox", long_factors="there", gate="up")

_TENSORS = DECODER | {
    "model.layers.{}.self_attn.qkv_proj": "blk.{}.attn_qkv",
    "model.layers.{}.mlp.gate_up_proj": "blk.{}.ffn_up",
}
_DEFAULTS: dict[str, Default] = {
    "vocab_size": 32064,
    "max_position_embeddings": 4096,
    "original_max_position_embeddings": 4096,
    "hidden_size": 3072,
    "intermediate_size": 8192,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": n_heads,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
}


def _keys(config: HFConfig) -> Keys:
    width, heads = config.needed_integer("hidden_size"), n_heads(config)
    original = config.rope().full.needed_integer("original_max_position_embeddings")
    keys: Keys = {
        "rope.scaling.original_context_length": u32("original_context_length", original),
        "rope.dimension_count": u32("rotated", int(rotated(config, 1.0) * width) // heads),
        # 0 tells Phi-4 from others
        "attention.sliding_window": u32("window", config.integer("sliding_window") or 0),
    }
    if longrope_factors(config, width // heads):
        keys["rope.scaling.attn_factor"] = np.float32(_magnitude(config, original))
    return keys


def _magnitude(config: HFConfig, original: int) -> float:
    """Return what longrope multiplies q and k by. Source: arXiv:2402.13753, section 3.3."""
    scale = config.needed_integer("max_position_embeddings") / original
    if scale <= 1 or original < 2:
        return 1.0
    if config.rope().kind == "yarn":
        return 0.1 * math.log(scale) + 1.0
    return math.sqrt(1 + math.log(scale) / math.log(original))


def _factors(config: HFConfig) -> dict[str, F32]:
    width = config.needed_integer("hidden_size")
    return longrope_factors(config, int(rotated(config, 1.0) * width) // n_heads(config))


HF = HuggingFace(
    classes={"Phi3ForCausalLM": _DEFAULTS},
    tensors=_TENSORS,
    lists_added=True,
    longrope=True,
    keys=_keys,
    drops=("rope.scaling.type", "attention.key_length", "attention.value_length"),
    extra_tensors=_factors,
)
