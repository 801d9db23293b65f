"""Phi-1.5 and Phi-2: StarCoder2's parts, with attention and MLP side by side behind one norm."""

from __future__ import annotations

from dataclasses import replace

from quantcli.arch.command_r import side_by_side
from quantcli.arch.hf_config import Default, HFConfig
from quantcli.arch.hf_keys import n_heads, rotated, u32
from quantcli.arch.hugging_face import HuggingFace, Keys, TokenizerFacts
from quantcli.arch.starcoder2 import ARCH as STARCODER2

ARCH = replace(STARCODER2, name="phi2", mlp_reads=side_by_side)

_TENSORS = {
    "model.embed_tokens": "token_embd",
    "model.final_layernorm": "output_norm",
    "lm_head": "output",
    "model.layers.{}.input_layernorm": "blk.{}.attn_norm",
    "model.layers.{}.self_attn.q_proj": "blk.{}.attn_q",
    "model.layers.{}.self_attn.k_proj": "blk.{}.attn_k",
    "model.layers.{}.self_attn.v_proj": "blk.{}.attn_v",
    "model.layers.{}.self_attn.dense": "blk.{}.attn_output",
    "model.layers.{}.mlp.fc1": "blk.{}.ffn_up",
    "model.layers.{}.mlp.fc2": "blk.{}.ffn_down",
}
_DEFAULTS: dict[str, Default] = {
    "vocab_size": 51200,
    "max_position_embeddings": 2048,
    "hidden_size": 2048,
    "intermediate_size": 8192,
    "num_hidden_layers": 24,
    "num_attention_heads": 32,
    "layer_norm_eps": 1e-5,
    "partial_rotary_factor": 0.5,
}


def _keys(config: HFConfig) -> Keys:
    width, heads = config.needed_integer("hidden_size"), n_heads(config)
    return {
        "feed_forward_length": u32("feed_forward_length", 4 * width),
        "attention.head_count_kv": u32("num_attention_heads", heads),
        "rope.dimension_count": u32("rotated", int(rotated(config) * width) // heads),
    }


def _tokenizer_keys(config: HFConfig, facts: TokenizerFacts) -> Keys:
    return {"add_bos_token": False}


HF = HuggingFace(
    classes={"PhiForCausalLM": _DEFAULTS},
    tensors=_TENSORS,
    keys=_keys,
    drops=("rope.freq_base",),
    tokenizer_keys=_tokenizer_keys,
)
