"""Gemma 2: norms before and after each half of a layer, soft caps, windows in every other layer.

Source: the configuration in google/gemma_pytorch, gemma/config.py.
"""

from __future__ import annotations

import math
from dataclasses import replace

from quantcli.arch.gemma import ARCH as GEMMA
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
