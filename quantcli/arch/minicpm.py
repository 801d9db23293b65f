"""MiniCPM: Granite's block; files of before 2025 lack its factors, which then have defaults."""

from __future__ import annotations

import math
from dataclasses import replace

from quantcli.arch.granite import ARCH as GRANITE
from quantcli.arch.hyper import Hyper
from quantcli.arch.switches import by_head_dim, every_layer

_MOST = 1e6
_WIDTH = 256  # of the model whose logits are scaled by 1


def embed_scale(hyper: Hyper) -> float:
    """Return the factor on embeddings."""
    return hyper.keys.number("embedding_scale", 0.0, _MOST, 12.0) or 1.0


def residual_scale(hyper: Hyper) -> float:
    """Return the factor on what is added to the residual stream."""
    default = 1.4 / math.sqrt(hyper.n_layers)
    return hyper.keys.number("residual_scale", 0.0, _MOST, default) or 1.0


def logit_scale(hyper: Hyper) -> float:
    """Return the factor on logits; the key's number divides."""
    return 1.0 / hyper.keys.number("logit_scale", 0.0, _MOST, hyper.d_model / _WIDTH, above=True)


ARCH = replace(
    GRANITE,
    name="minicpm",
    rope_layers=every_layer,
    embed_scale=embed_scale,
    attn_scale=by_head_dim,
    residual_scale=residual_scale,
    logit_scale=logit_scale,
)
