"""gpt-oss: attention sinks, windows in every other layer, experts with biases and a clamped gate.

Source: Agarwal et al., arXiv:2508.10925, section 2.
"""

from __future__ import annotations

from quantcli.arch.blocks import Decoder
from quantcli.arch.hf_config import Default, HFConfig
from quantcli.arch.hf_keys import u32
from quantcli.arch.hugging_face import (
    DECODER,
    HuggingFace,
    Keys,
    Piece,
    Tensors,
    even,
    everything,
    odd,
)
from quantcli.arch.routing import Mixture
from quantcli.arch.windows import windows

ARCH = Decoder(
    name="gpt-oss",
    rope_style="neox",
    ffn_norm="post_attention_norm",
    sinks=True,
    act="swiglu_oai",
    window=windows(period=2, default=None),
    window_rope="based",
    experts=Mixture(score="softmax_of_chosen", normalize=False),
)

_MLP = "model.layers.{}.mlp."
_EXPERTS: Tensors = {
    "model.layers.{}.self_attn.sinks": "blk.{}.attn_sinks.weight",
    "model.layers.{}.post_attention_layernorm": "blk.{}.post_attention_norm",
    _MLP + "router": "blk.{}.ffn_gate_inp",
    _MLP + "experts.gate_up_proj_blocks": (
        Piece("blk.{}.ffn_gate_exps.weight", even),
        Piece("blk.{}.ffn_up_exps.weight", odd),
    ),
    _MLP + "experts.down_proj_blocks": "blk.{}.ffn_down_exps.weight",
    # Folders in 16 bits hold each expert's matrices the other way round.
    _MLP + "experts.gate_up_proj": (
        Piece("blk.{}.ffn_gate_exps.weight", even, of_columns=True, transposed=True),
        Piece("blk.{}.ffn_up_exps.weight", odd, of_columns=True, transposed=True),
    ),
    _MLP + "experts.down_proj": (
        Piece("blk.{}.ffn_down_exps.weight", everything, transposed=True),
    ),
    _MLP + "experts.gate_up_proj_bias": (
        Piece("blk.{}.ffn_gate_exps.bias", even, of_columns=True),
        Piece("blk.{}.ffn_up_exps.bias", odd, of_columns=True),
    ),
    _MLP + "experts.down_proj_bias": "blk.{}.ffn_down_exps.bias",
}
_YARN = {
    "rope_type": "yarn",
    "factor": 32.0,
    "beta_fast": 32.0,
    "beta_slow": 1.0,
    "original_max_position_embeddings": 4096,
}
_DEFAULTS: dict[str, Default] = {
    "vocab_size": 201088,
    "max_position_embeddings": 131072,
    "hidden_size": 2880,
    "intermediate_size": 2880,
    "num_hidden_layers": 36,
    "num_attention_heads": 64,
    "num_key_value_heads": 8,
    "num_local_experts": 128,
    "num_experts_per_tok": 4,
    "head_dim": 64,
    "sliding_window": 128,
    "rms_norm_eps": 1e-5,
    "rope_theta": 150000.0,
    "rope_scaling": _YARN,
}


def _keys(config: HFConfig) -> Keys:
    width = config.needed_integer("intermediate_size")
    return {
        "attention.sliding_window": u32("window", config.needed_integer("sliding_window")),
        "expert_feed_forward_length": u32("intermediate_size", width),
    }


HF = HuggingFace(classes={"GptOssForCausalLM": _DEFAULTS}, tensors=DECODER | _EXPERTS, keys=_keys)
