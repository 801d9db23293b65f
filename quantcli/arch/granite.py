"""Granite 3 and 4, dense: llama with factors on embeddings, scores, residuals and logits.

`rope.scaling.finetuned` is a switch here: false means that no layer rotates.
"""

from __future__ import annotations

from dataclasses import replace

from quantcli.arch.hyper import Hyper
from quantcli.arch.llama import ARCH as LLAMA
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
