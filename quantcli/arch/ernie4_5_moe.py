"""ERNIE 4.5 with experts, which a bias helps to choose, and one that every token goes to."""

from __future__ import annotations

from dataclasses import replace

from quantcli.arch.ernie4_5 import ARCH as ERNIE4_5
from quantcli.arch.ernie4_5 import HF_DEFAULTS, JOINED, tokenizer_keys
from quantcli.arch.hf_config import HFConfig
from quantcli.arch.hf_keys import u32
from quantcli.arch.hugging_face import DECODER, EXPERTS, HuggingFace, Keys
from quantcli.arch.hyper import Hyper
from quantcli.arch.routing import Mixture


def is_expert(hyper: Hyper, layer: int) -> bool:
    """Return whether a layer has experts: every n-th behind the first few."""
    keys, n = hyper.keys, hyper.n_blocks
    first = keys.integer("leading_dense_block_count", 0, n, 0)
    return layer >= first and (layer + 1) % keys.integer("interleave_moe_layer_step", 1, n) == 0


ARCH = replace(ERNIE4_5, name="ernie4_5-moe", experts=Mixture(has_bias=True, is_expert=is_expert))

_SHARED = {
    "model.layers.{}.mlp.shared_experts.gate_proj": "blk.{}.ffn_gate_shexp",
    "model.layers.{}.mlp.shared_experts.up_proj": "blk.{}.ffn_up_shexp",
    "model.layers.{}.mlp.shared_experts.down_proj": "blk.{}.ffn_down_shexp",
    "model.layers.{}.mlp.moe_statics.e_score_correction_bias": "blk.{}.exp_probs_b.bias",
}
_DEFAULTS = HF_DEFAULTS | {
    "hidden_size": 2560,
    "intermediate_size": 12288,
    "num_hidden_layers": 28,
    "num_attention_heads": 20,
    "num_key_value_heads": 4,
    "moe_intermediate_size": 1536,
    "moe_k": 6,
    "moe_num_experts": 64,
    "moe_num_shared_experts": 2,
    "moe_layer_start_index": 1,
    "moe_layer_interval": 1,
}
_DEFAULTS.pop("head_dim")
_INTEGERS = {
    "expert_count": "moe_num_experts",
    "expert_used_count": "moe_k",
    "interleave_moe_layer_step": "moe_layer_interval",
    "leading_dense_block_count": "moe_layer_start_index",
    "expert_feed_forward_length": "moe_intermediate_size",
    "expert_shared_count": "moe_num_shared_experts",
}


def _keys(config: HFConfig) -> Keys:
    """Return the keys of experts; the width of the shared one is what llama.cpp computes."""
    keys: Keys = {}
    for name, source in _INTEGERS.items():
        if (value := config.integer(source)) is not None:
            keys[name] = u32(name, value)
    if config.integer("moe_num_shared_experts"):
        width, n = config.integer("intermediate_size"), config.integer("num_key_value_heads")
        if width is not None and n:
            keys["expert_shared_feed_forward_length"] = u32("shared", width // n)
    return keys


def _passes_over(config: HFConfig, name: str) -> bool:
    """Return whether a tensor is of the layers that predict further tokens."""
    return name.startswith(("model.mtp_", "ernie.mtp_"))


HF = HuggingFace(
    classes={"Ernie4_5_MoeForCausalLM": _DEFAULTS},
    tensors=DECODER | EXPERTS | JOINED | _SHARED,
    passes_over=_passes_over,
    keys=_keys,
    tokenizer_keys=tokenizer_keys,
)
