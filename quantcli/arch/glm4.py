"""GLM-4 (0414) and GLM-Z1: norms before and after each half, partial rotation, gate and up in one.

Files of the vision models, whose text rotates by sections, are refused.
"""

from __future__ import annotations

import numpy as np

from quantcli.arch.blocks import Decoder
from quantcli.arch.hf_config import Default, HFConfig
from quantcli.arch.hf_keys import head_width, rotated, u32
from quantcli.arch.hugging_face import POST_NORM_DECODER, HuggingFace, Keys, TokenizerFacts
from quantcli.arch.hyper import Hyper
from quantcli.errors import UnsupportedModel

_SECTIONS = "rope.dimension_sections"
_ROTATED = 0.5  # of a head


def rope_layers(hyper: Hyper, layer: int) -> bool:
    """Return True; raise UnsupportedModel for a file that rotates by sections."""
    if _SECTIONS in hyper.keys and any(hyper.keys.integers(_SECTIONS)):
        raise UnsupportedModel(
            f"{hyper.arch}.{_SECTIONS} is set: this is the text half of a vision model, which is "
            "not supported; use a text model."
        )
    return True


ARCH = Decoder(name="glm4", rope_style="norm", post_norms=True, gate="up", rope_layers=rope_layers)

_TENSORS = POST_NORM_DECODER | {
    "model.layers.{}.post_self_attn_layernorm": "blk.{}.post_attention_norm",
    "model.layers.{}.post_attention_layernorm": "blk.{}.ffn_norm",
    "model.layers.{}.post_mlp_layernorm": "blk.{}.post_ffw_norm",
    "model.layers.{}.mlp.gate_up_proj": "blk.{}.ffn_up",
}
_DEFAULTS: dict[str, Default] = {
    "vocab_size": 151552,
    "max_position_embeddings": 131072,
    "hidden_size": 4096,
    "intermediate_size": 13696,
    "num_hidden_layers": 40,
    "num_attention_heads": 32,
    "num_key_value_heads": 2,
    "head_dim": 128,
    "partial_rotary_factor": _ROTATED,
    "rms_norm_eps": 1.5625e-7,
    "rope_theta": 10000.0,
}
_SPECIAL = {
    "bos_token_id": "<|endoftext|>",
    "eos_token_id": "<|endoftext|>",
    "unknown_token_id": "<|endoftext|>",
    "eot_token_id": "<|user|>",
}


def _keys(config: HFConfig) -> Keys:
    if config.rope().full.value("mrope_section") is not None:
        raise UnsupportedModel(
            "config.json: mrope_section is set: this is the text half of a vision model, which is "
            "not supported; use a text model."
        )
    width = config.integer("head_dim") or head_width(config)
    return {"rope.dimension_count": u32("head_dim", int(width * rotated(config, _ROTATED)))}


def _tokenizer_keys(config: HFConfig, facts: TokenizerFacts) -> Keys:
    """Return the special tokens that the model's own files do not name."""
    missing = {key: text for key, text in _SPECIAL.items() if key not in facts.named}
    found = {key: facts.tokens.get(text) for key, text in missing.items()}
    return {key: np.uint32(token) for key, token in found.items() if token is not None}


HF = HuggingFace(
    classes={"Glm4ForCausalLM": _DEFAULTS},
    tensors=_TENSORS,
    keys=_keys,
    tokenizer_keys=_tokenizer_keys,
)
