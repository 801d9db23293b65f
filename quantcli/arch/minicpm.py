"""MiniCPM: Granite's block; files of before 2025 lack its factors, which then have defaults."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from quantcli.arch.granite import ARCH as GRANITE
from quantcli.arch.hf_config import Default, HFConfig
from quantcli.arch.hf_keys import head_width, longrope_factors, n_heads
from quantcli.arch.hugging_face import HuggingFace, Keys
from quantcli.arch.hyper import Hyper
from quantcli.arch.switches import by_head_dim, every_layer
from quantcli.formats import F32

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

_DEFAULTS: dict[str, Default] = {
    "num_key_value_heads": n_heads,
    "scale_emb": 1.0,
    "scale_depth": 1.0,
    "dim_model_base": 1,
}


def _keys(config: HFConfig) -> Keys:
    """Return the factors; what divides the logits grows with the width."""
    width, n = config.needed_integer("hidden_size"), config.needed_integer("num_hidden_layers")
    return {
        "embedding_scale": np.float32(config.number("scale_emb") or 0.0),
        "residual_scale": np.float32((config.number("scale_depth") or 0.0) / n**0.5),
        "logit_scale": np.float32(width / config.needed_integer("dim_model_base")),
    }


def _factors(config: HFConfig) -> dict[str, F32]:
    return longrope_factors(config, head_width(config))


HF = HuggingFace(
    classes={"MiniCPMForCausalLM": _DEFAULTS},
    permutes_qk=True,
    longrope=True,
    keys=_keys,
    extra_tensors=_factors,
)
