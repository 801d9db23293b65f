"""Qwen1.5-MoE and Qwen2-57B: Qwen2 with experts whose weights are not normalised, and a shared one.

The shared expert has a gate of its own.
"""

from __future__ import annotations

from dataclasses import replace

from quantcli.arch.hf_config import Default
from quantcli.arch.hf_keys import expert_keys
from quantcli.arch.hugging_face import DECODER, EXPERTS, HuggingFace
from quantcli.arch.qwen2 import ARCH as QWEN2
from quantcli.arch.routing import Mixture, all_of_d_ff, part_of_d_ff

ARCH = replace(
    QWEN2,
    name="qwen2moe",
    experts=Mixture(normalize=False, d_ff=part_of_d_ff, shared_d_ff=all_of_d_ff, shared_gate=True),
)

_SHARED = {
    "model.layers.{}.mlp.shared_expert_gate": "blk.{}.ffn_gate_inp_shexp",
    "model.layers.{}.mlp.shared_expert.gate_proj": "blk.{}.ffn_gate_shexp",
    "model.layers.{}.mlp.shared_expert.up_proj": "blk.{}.ffn_up_shexp",
    "model.layers.{}.mlp.shared_expert.down_proj": "blk.{}.ffn_down_shexp",
}
_DEFAULTS: dict[str, Default] = {
    "vocab_size": 151936,
    "max_position_embeddings": 32768,
    "hidden_size": 2048,
    "intermediate_size": 5632,
    "num_hidden_layers": 24,
    "num_attention_heads": 16,
    "num_key_value_heads": 16,
    "rms_norm_eps": 1e-6,
    "rope_theta": 10000.0,
    "num_experts": 60,
    "num_experts_per_tok": 4,
    "moe_intermediate_size": 1408,
    "shared_expert_intermediate_size": 5632,
}

HF = HuggingFace(
    classes={"Qwen2MoeForCausalLM": _DEFAULTS},
    tensors=DECODER | EXPERTS | _SHARED,
    keys=expert_keys,
)
