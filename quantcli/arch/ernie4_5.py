"""ERNIE 4.5, dense: the plain block."""

from __future__ import annotations

from quantcli.arch.blocks import Decoder
from quantcli.arch.hf_config import Default, HFConfig
from quantcli.arch.hf_keys import head_width, n_heads
from quantcli.arch.hugging_face import (
    DECODER,
    HuggingFace,
    Keys,
    Piece,
    Take,
    Tensors,
    TokenizerFacts,
    first_half,
    second_half,
)

ARCH = Decoder(name="ernie4_5", rope_style="norm")

HF_DEFAULTS: dict[str, Default] = {
    "vocab_size": 103424,
    "max_position_embeddings": 131072,
    "hidden_size": 1024,
    "intermediate_size": 3072,
    "num_hidden_layers": 18,
    "num_attention_heads": 16,
    "num_key_value_heads": 2,
    "head_dim": 128,
    "rms_norm_eps": 1e-5,
    "rope_theta": 500000.0,
}


def _widths(config: HFConfig) -> tuple[int, int]:
    """Return the rows of q, and those of k or v."""
    width = config.integer("head_dim") or head_width(config)
    n_kv_heads = config.integer("num_key_value_heads") or n_heads(config)
    return n_heads(config) * width, n_kv_heads * width


def _q(config: HFConfig, n: int) -> tuple[Take, ...]:
    return (Take(n, 0, _widths(config)[0]),)


def _k(config: HFConfig, n: int) -> tuple[Take, ...]:
    q, kv = _widths(config)
    return (Take(n, q, kv),)


def _v(config: HFConfig, n: int) -> tuple[Take, ...]:
    q, kv = _widths(config)
    return (Take(n, q + kv, kv),)


# Folders of before transformers 4.54 join matrices that read the same.
JOINED: Tensors = {
    "model.layers.{}.self_attn.qkv_proj": (
        Piece("blk.{}.attn_q", _q),
        Piece("blk.{}.attn_k", _k),
        Piece("blk.{}.attn_v", _v),
    ),
    "model.layers.{}.mlp.up_gate_proj": (
        Piece("blk.{}.ffn_gate", first_half),
        Piece("blk.{}.ffn_up", second_half),
    ),
}


def tokenizer_keys(config: HFConfig, facts: TokenizerFacts) -> Keys:
    """Return whether text gets a space before its first word, as tokenizer_config.json says."""
    prefix = facts.config.get("add_prefix_space")
    return {"add_space_prefix": prefix} if isinstance(prefix, bool) else {}


HF = HuggingFace(
    classes={"Ernie4_5ForCausalLM": HF_DEFAULTS, "Ernie4_5_ForCausalLM": HF_DEFAULTS},
    tensors=DECODER | JOINED,
    tokenizer_keys=tokenizer_keys,
)
