"""Gemma 2: norms before and after each half of a layer, soft caps, windows in every other layer.

Source: the configuration in google/gemma_pytorch, gemma/config.py.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from quantcli.arch.gemma import ARCH as GEMMA
from quantcli.arch.gemma import HF_DEFAULTS, no_output, no_space_before
from quantcli.arch.hf_config import HFConfig
from quantcli.arch.hf_keys import u32
from quantcli.arch.hugging_face import POST_NORM_DECODER, HuggingFace, Keys
from quantcli.arch.hyper import Hyper
from quantcli.arch.windows import windows

_LAYERS_27B = 46
_WINDOW = 4096
_ATTN_CAP, _LOGIT_CAP = 50.0, 30.0  # of files that name none


def attn_scale(hyper: Hyper) -> float:
    """Return 1 / sqrt(head_dim); the 27B alone divides by d_model / n_heads instead."""
    width = hyper.d_model // hyper.n_heads[0] if hyper.n_layers == _LAYERS_27B else hyper.head_dim
    return 1.0 / math.sqrt(width)


def attn_softcap(hyper: Hyper) -> float:
    """Return the soft cap on scores."""
    return hyper.keys.number("attn_logit_softcapping", 0.0, 1e6, _ATTN_CAP)


def logit_softcap(hyper: Hyper) -> float:
    """Return the soft cap on logits."""
    return hyper.keys.number("final_logit_softcapping", 0.0, 1e6, _LOGIT_CAP)


ARCH = replace(
    GEMMA,
    name="gemma2",
    post_norms=True,
    attn_scale=attn_scale,
    attn_softcap=attn_softcap,
    logit_softcap=logit_softcap,
    window=windows(period=2, default=_WINDOW),
    window_rope="based",
)

_DEFAULTS = HF_DEFAULTS | {
    "hidden_size": 2304,
    "intermediate_size": 9216,
    "num_hidden_layers": 26,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "sliding_window": _WINDOW,
    "attn_logit_softcapping": _ATTN_CAP,
    "final_logit_softcapping": _LOGIT_CAP,
}


def _keys(config: HFConfig) -> Keys:
    window_size = config.needed_integer("sliding_window")
    keys: Keys = {"attention.sliding_window": u32("sliding_window", window_size)}
    for name in ("attn_logit_softcapping", "final_logit_softcapping"):
        # 0 is said as well: a file that says nothing has caps
        keys[name] = np.float32(config.number(name) or 0.0)
    return keys


HF = HuggingFace(
    classes={"Gemma2ForCausalLM": _DEFAULTS},
    tensors=POST_NORM_DECODER,
    norm_shift=1.0,
    passes_over=no_output,
    keys=_keys,
    drops=("rope.freq_base",),
    tokenizer_keys=no_space_before,
)
