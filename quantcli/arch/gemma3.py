"""Gemma 3: norms before and after each half of a layer, and windows in five layers of six.

Norm weights are stored with Gemma's "+ 1" already added. Windowed layers rotate with a base of
10,000 and no scaling; only the layers that see everything scale (linearly, from 4B on).
Source: the configuration in google/gemma_pytorch, gemma/config.py.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from quantcli.arch.gemma import embed_scale, no_space_before
from quantcli.arch.hf_config import Default, HFConfig
from quantcli.arch.hf_keys import u32
from quantcli.arch.hugging_face import POST_NORM_DECODER, HuggingFace, Keys
from quantcli.arch.hyper import Hyper
from quantcli.arch.qwen3 import ARCH as QWEN3
from quantcli.arch.windows import windows
from quantcli.errors import UnsupportedModel

_LAYERS_27B = 62


def attn_scale(hyper: Hyper) -> float:
    """Return 1 / sqrt(head_dim); the 27B alone divides by d_model / n_heads instead."""
    if hyper.n_layers == _LAYERS_27B:
        return 1.0 / math.sqrt(hyper.d_model // hyper.n_heads[0])
    return 1.0 / math.sqrt(hyper.head_dim)


ARCH = replace(
    QWEN3,
    name="gemma3",
    act="gelu_tanh",
    post_norms=True,
    embed_scale=embed_scale,
    attn_scale=attn_scale,
    window=windows(period=6),  # files of before 2026 carry no key for it
    window_rope="own",
)

_DEFAULTS: dict[str, Default] = {
    "vocab_size": 262208,
    "max_position_embeddings": 131072,
    "hidden_size": 2304,
    "intermediate_size": 9216,
    "num_hidden_layers": 26,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 256,
    "rms_norm_eps": 1e-6,
    "sliding_window": 4096,
    "rope_theta": 1e6,
    "rope_local_base_freq": 10000.0,
}


def _keys(config: HFConfig) -> Keys:
    if config.value("attn_logit_softcapping") is not None:
        raise UnsupportedModel("config.json: attn_logit_softcapping is no part of Gemma 3.")
    keys: Keys = {}
    if softcap := config.number("final_logit_softcapping"):
        keys["final_logit_softcapping"] = np.float32(softcap)
    if config.value("sliding_window_pattern") != 1:
        window_size = config.needed_integer("sliding_window")
        keys["attention.sliding_window"] = u32("attention.sliding_window", window_size)
    return keys


HF = HuggingFace(
    classes={"Gemma3ForCausalLM": _DEFAULTS, "Gemma3ForConditionalGeneration": _DEFAULTS},
    tensors=POST_NORM_DECODER,
    norm_shift=1.0,
    trims_embedding=True,
    keys=_keys,
    tokenizer_keys=no_space_before,
)
