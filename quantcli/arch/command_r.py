"""Command R: attention and MLP side by side behind one norm, which has no bias."""

from __future__ import annotations

import numpy as np

from quantcli.arch.blocks import Decoder
from quantcli.arch.hf_config import Default, HFConfig
from quantcli.arch.hf_keys import n_heads, u32
from quantcli.arch.hugging_face import HuggingFace, Keys
from quantcli.arch.hyper import Hyper


def side_by_side(hyper: Hyper, layer: int) -> str:
    """Return "same": the MLP reads what attention reads."""
    return "same"


def logit_scale(hyper: Hyper) -> float:
    """Return the factor on logits; 1 if the file does not say."""
    return hyper.keys.number("logit_scale", 0.0, 1e6, 0.0) or 1.0


ARCH = Decoder(
    name="command-r",
    rope_style="norm",
    norm="layer",
    mlp_reads=side_by_side,
    logit_scale=logit_scale,
)

HF_DEFAULTS: dict[str, Default] = {
    "vocab_size": 256000,
    "max_position_embeddings": 8192,
    "hidden_size": 8192,
    "intermediate_size": 22528,
    "num_hidden_layers": 40,
    "num_attention_heads": 64,
    "num_key_value_heads": n_heads,
    "layer_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "logit_scale": 0.0625,
}


def scaled_keys(config: HFConfig) -> Keys:
    """Return the factor on logits, and that RoPE is not scaled."""
    keys: Keys = {"rope.scaling.type": "none"}
    if (factor := config.number("logit_scale")) is not None:
        keys["logit_scale"] = np.float32(factor)
    return keys


def _keys(config: HFConfig) -> Keys:
    """Return the context that the model was trained for, which is not that of its table."""
    context = config.integer("model_max_length", "max_position_embeddings")
    keys: Keys = {} if context is None else {"context_length": u32("context_length", context)}
    return keys | scaled_keys(config)


HF = HuggingFace(classes={"CohereForCausalLM": HF_DEFAULTS}, keys=_keys)
