"""Seed-OSS: Qwen2 under other names."""

from __future__ import annotations

from dataclasses import replace

from quantcli.arch.hf_config import Default
from quantcli.arch.hugging_face import DECODER, HuggingFace
from quantcli.arch.qwen2 import ARCH as QWEN2

ARCH = replace(QWEN2, name="seed_oss", ffn_norm="post_attention_norm")

_NORM = {"model.layers.{}.post_attention_layernorm": "blk.{}.post_attention_norm"}
_DEFAULTS: dict[str, Default] = {
    "vocab_size": 155136,
    "max_position_embeddings": 524288,
    "hidden_size": 4096,
    "intermediate_size": 27648,
    "num_hidden_layers": 64,
    "num_attention_heads": 80,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "rms_norm_eps": 1e-6,
    "rope_theta": 10000.0,
}

HF = HuggingFace(classes={"SeedOssForCausalLM": _DEFAULTS}, tensors=DECODER | _NORM)
