"""Hunyuan, dense: norms on each head of q and k, but behind their rotation."""

from __future__ import annotations

import numpy as np

from quantcli.arch.blocks import Decoder
from quantcli.arch.hf_config import Default, HFConfig
from quantcli.arch.hf_keys import head_width, n_heads, u32
from quantcli.arch.hugging_face import DECODER, HuggingFace, Keys, TokenizerFacts
from quantcli.arch.hyper import Hyper
from quantcli.errors import CheckpointError


def base_factor(hyper: Hyper) -> float:
    """Return the factor on RoPE's base: alpha ** (d / (d - 2)) where the file names an alpha."""
    alpha = hyper.keys.number("rope.scaling.alpha", 0.0, 1e6, 0.0)
    d = hyper.head_dim
    return alpha ** (d / (d - 2)) if alpha and d > 2 else 1.0


ARCH = Decoder(
    name="hunyuan-dense",
    rope_style="neox",
    freq_factors=True,
    qk_norm="head after rope",
    base_factor=base_factor,
)

_NORMS = {
    "model.layers.{}.self_attn.query_layernorm": "blk.{}.attn_q_norm",
    "model.layers.{}.self_attn.key_layernorm": "blk.{}.attn_k_norm",
}
_DEFAULTS: dict[str, Default] = {
    "vocab_size": 290943,
    "max_position_embeddings": 2048,
    "hidden_size": 4096,
    "intermediate_size": 11008,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": n_heads,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
}
_ALPHA = 50.0  # of files that name none
_MOST_ALPHA = 1e6  # far above any real model's
_CONTEXT = 256 * 1024  # that "dynamic" RoPE reaches; config.json says less


def _keys(config: HFConfig) -> Keys:
    """Return RoPE's base with alpha in it, and the context that it reaches.

    Source: the NTK-aware scaling of huggingface.co/tencent/Hunyuan-4B-Instruct.
    """
    rope = config.rope()
    if rope.kind not in ("dynamic", "xdrope"):
        return {}
    alpha, base = rope.full.number("alpha"), rope.full.number("rope_theta")
    alpha, base = _ALPHA if alpha is None else alpha, 10000.0 if base is None else base
    d = config.integer("head_dim") or head_width(config)
    if d <= 2 or not 0 < alpha < _MOST_ALPHA:
        raise CheckpointError(
            f"config.json: alpha of RoPE is {alpha:g} and heads are {d} wide; alpha must be from 0 "
            f"to {_MOST_ALPHA:g}, heads wider than 2."
        )
    keys: Keys = {
        "rope.freq_base": np.float32(base * alpha ** (d / (d - 2))),
        "rope.scaling.type": "none",
        "rope.scaling.factor": np.float32(1),
    }
    if rope.kind == "dynamic":
        keys["rope.scaling.original_context_length"] = np.uint32(_CONTEXT)
        keys["context_length"] = np.uint32(_CONTEXT)
    return keys


def _tokenizer_keys(config: HFConfig, facts: TokenizerFacts) -> Keys:
    """Return the token that ends a turn: the first of several that end an answer."""
    ends = facts.generation.get("eos_token_id")
    if isinstance(ends, list) and len(ends) > 1 and type(ends[0]) is int:
        return {"eot_token_id": u32("eos_token_id", ends[0])}
    return {}


def _passes_over(config: HFConfig, name: str) -> bool:
    """Return whether a tensor is an output matrix that is the embedding once more."""
    return name == "lm_head.weight" and config.flag("tie_word_embeddings")


HF = HuggingFace(
    classes={"HunYuanDenseV1ForCausalLM": _DEFAULTS},
    tensors=DECODER | _NORMS,
    passes_over=_passes_over,
    keys=_keys,
    tokenizer_keys=_tokenizer_keys,
)
