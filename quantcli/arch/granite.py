"""Granite 3 and 4, dense: llama with factors on embeddings, scores, residuals and logits.

`rope.scaling.finetuned` is a switch here: false means that no layer rotates.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from quantcli.arch.hf_config import Default, HFConfig
from quantcli.arch.hf_keys import n_heads
from quantcli.arch.hugging_face import HuggingFace, Keys
from quantcli.arch.hyper import Hyper
from quantcli.arch.llama import ARCH as LLAMA
from quantcli.arch.llama import llama_keys, llama_tokenizer_keys
from quantcli.arch.switches import by_head_dim

_MOST = 1e6


def embed_scale(hyper: Hyper) -> float:
    """Return the factor on embeddings."""
    return hyper.keys.number("embedding_scale", 0.0, _MOST, 0.0) or 1.0


def attn_scale(hyper: Hyper) -> float:
    """Return the factor on scores."""
    return hyper.keys.number("attention.scale", 0.0, _MOST, 0.0) or by_head_dim(hyper)


def residual_scale(hyper: Hyper) -> float:
    """Return the factor on what is added to the residual stream."""
    return hyper.keys.number("residual_scale", 0.0, _MOST, 0.0) or 1.0


def logit_scale(hyper: Hyper) -> float:
    """Return the factor on logits; the key's number divides."""
    return 1.0 / hyper.keys.number("logit_scale", 0.0, _MOST, above=True)


def rope_layers(hyper: Hyper, layer: int) -> bool:
    """Return whether the model rotates."""
    return hyper.keys.flag("rope.scaling.finetuned", True)


ARCH = replace(
    LLAMA,
    name="granite",
    rope_layers=rope_layers,
    embed_scale=embed_scale,
    attn_scale=attn_scale,
    residual_scale=residual_scale,
    logit_scale=logit_scale,
)

HF_DEFAULTS: dict[str, Default] = {
    "vocab_size": 32000,
    "max_position_embeddings": 2048,
    "hidden_size": 4096,
    "intermediate_size": 11008,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": n_heads,
    "rms_norm_eps": 1e-6,
    "rope_theta": 10000.0,
    "embedding_multiplier": 1.0,
    "logits_scaling": 1.0,
    "residual_multiplier": 1.0,
    "attention_multiplier": 1.0,
}
_FACTORS = {
    "attention.scale": "attention_multiplier",
    "embedding_scale": "embedding_multiplier",
    "residual_scale": "residual_multiplier",
    "logit_scale": "logits_scaling",
}


def granite_keys(config: HFConfig) -> Keys:
    """Return llama's keys, with four factors; heads are as wide as the model makes them."""
    keys = llama_keys(HFConfig({k: v for k, v in config.table.items() if k != "head_dim"}))
    for name, source in _FACTORS.items():
        if value := config.number(source):
            keys[name] = np.float32(value)
    return keys


HF = HuggingFace(
    classes={"GraniteForCausalLM": HF_DEFAULTS},
    permutes_qk=True,
    keys=granite_keys,
    drops=("attention.key_length", "attention.value_length"),
    tokenizer_keys=llama_tokenizer_keys,
)
