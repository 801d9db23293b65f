"""Gemma 1: the plain block with scaled embeddings and GELU. Norms are stored with "+ 1" added."""

from __future__ import annotations

import math
from dataclasses import replace

from quantcli.arch.hyper import Hyper
from quantcli.arch.qwen2 import ARCH as QWEN2


def embed_scale(hyper: Hyper) -> float:
    """Return sqrt(d_model)."""
    return math.sqrt(hyper.d_model)


ARCH = replace(QWEN2, name="gemma", act="gelu_tanh", embed_scale=embed_scale)
