"""Gemma 3: norms before and after each half of a layer, and windows in five layers of six.

Norm weights are stored with Gemma's "+ 1" already added. Windowed layers rotate with a base of
10,000 and no scaling; only the layers that see everything scale (linearly, from 4B on).
Source: the configuration in google/gemma_pytorch, gemma/config.py.
"""

from __future__ import annotations

import math
from dataclasses import replace

from quantcli.arch.gemma import embed_scale
from quantcli.arch.hyper import Hyper
from quantcli.arch.qwen3 import ARCH as QWEN3
from quantcli.arch.windows import windows

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
