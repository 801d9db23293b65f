"""Gemma 1: the plain block with scaled embeddings and GELU. Norms are stored with "+ 1" added."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from quantcli.arch.hf_config import Default, HFConfig
from quantcli.arch.hugging_face import DECODER, HuggingFace, Keys, TokenizerFacts
from quantcli.arch.hyper import Hyper
from quantcli.arch.qwen2 import ARCH as QWEN2


def embed_scale(hyper: Hyper) -> float:
    """Return sqrt(d_model)."""
    return math.sqrt(hyper.d_model)


ARCH = replace(QWEN2, name="gemma", act="gelu_tanh", embed_scale=embed_scale)

HF_DEFAULTS: dict[str, Default] = {
    "vocab_size": 256000,
    "max_position_embeddings": 8192,
    "hidden_size": 3072,
    "intermediate_size": 24576,
    "num_hidden_layers": 28,
    "num_attention_heads": 16,
    "num_key_value_heads": 16,
    "head_dim": 256,
    "rms_norm_eps": 1e-6,
    "rope_theta": 10000.0,
}
_END_OF_TURN = 107  # whatever the vocabulary calls it


def no_space_before(config: HFConfig, facts: TokenizerFacts) -> Keys:
    """Return that text gets no space before its first word."""
    return {"add_space_prefix": False}


def _tokenizer_keys(config: HFConfig, facts: TokenizerFacts) -> Keys:
    keys = no_space_before(config, facts)
    if len(facts.tokens) > _END_OF_TURN:
        keys["eot_token_id"] = np.uint32(_END_OF_TURN)
    return keys


def no_output(config: HFConfig, name: str) -> bool:
    """Return whether a tensor is an output matrix, which is the embedding once more."""
    return name == "lm_head.weight"


HF = HuggingFace(
    classes={"GemmaForCausalLM": HF_DEFAULTS},
    tensors=DECODER,
    norm_shift=1.0,
    passes_over=no_output,
    drops=("rope.freq_base",),
    tokenizer_keys=_tokenizer_keys,
)
