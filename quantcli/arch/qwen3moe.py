"""Qwen3 with experts, 30B-A3B and 235B-A22B."""

from __future__ import annotations

from dataclasses import replace

from quantcli.arch.hf_config import Default
from quantcli.arch.hf_keys import expert_keys
from quantcli.arch.hugging_face import DECODER, EXPERTS, HuggingFace
from quantcli.arch.qwen3 import ARCH as QWEN3
from quantcli.arch.routing import Mixture, part_of_d_ff

ARCH = replace(QWEN3, name="qwen3moe", experts=Mixture(d_ff=part_of_d_ff))

_DEFAULTS: dict[str, Default] = {
    "vocab_size": 151936,
    "max_position_embeddings": 32768,
    "hidden_size": 2048,
    "intermediate_size": 6144,
    "num_hidden_layers": 24,
    "num_attention_heads": 32,
    "num_key_value_heads": 4,
    "rms_norm_eps": 1e-6,
    "rope_theta": 10000.0,
    "num_experts": 128,
    "num_experts_per_tok": 8,
    "moe_intermediate_size": 768,
}

HF = HuggingFace(
    classes={"Qwen3MoeForCausalLM": _DEFAULTS}, tensors=DECODER | EXPERTS, keys=expert_keys
)
