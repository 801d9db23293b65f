"""Gemma 3: norms before and after each half of a layer, and windows in five layers of six.

Norm weights are stored with Gemma's "+ 1" already added. Windowed layers rotate with a base of
10,000 and no scaling; only the layers that see everything scale (linearly, from 4B on).
Source: the configuration in google/gemma_pytorch, gemma/config.py.
"""

from __future__ import annotations

import math
from dataclasses import replace

from quantcli.arch.hyper import Hyper
from quantcli.arch.qwen3 import ARCH as QWEN3

_PATTERN = 6  # every sixth layer sees all keys; files of before 2026 carry no key for it
_LAYERS_27B = 62


def embed_scale(hyper: Hyper) -> float:
    """Return sqrt(d_model)."""
    return math.sqrt(hyper.d_model)


def attn_scale(hyper: Hyper) -> float:
    """Return 1 / sqrt(head_dim); the 27B alone divides by d_model / n_heads instead."""
    if hyper.n_layers == _LAYERS_27B:
        return 1.0 / math.sqrt(hyper.d_model // hyper.n_heads[0])
    return 1.0 / math.sqrt(hyper.head_dim)


def window(hyper: Hyper, layer: int) -> int:
    """Return a layer's window: layer i is windowed unless it is the last of a group of n."""
    pattern = _PATTERN if hyper.window_pattern is None else hyper.window_pattern
    if isinstance(pattern, tuple):
        windowed = pattern[layer]
    else:  # 0 means that all layers are windowed
        windowed = pattern == 0 or layer % pattern < pattern - 1
    return hyper.window if windowed else 0


ARCH = replace(
    QWEN3,
    name="gemma3",
    act="gelu_tanh",
    post_norms=True,
    embed_scale=embed_scale,
    attn_scale=attn_scale,
    window=window,
)
