"""OLMo 2 and 3: norms only behind each half of a layer, and over all of q and of k.

OLMo 3 has windows in three layers of four, which rotate without the scaling of the others.
"""

from __future__ import annotations

from quantcli.arch.blocks import Decoder
from quantcli.arch.hf_config import Default, HFConfig
from quantcli.arch.hf_keys import layer_types, n_heads, u32
from quantcli.arch.hugging_face import DECODER, HuggingFace, Keys
from quantcli.arch.windows import pattern, windows

_PERIOD = 4

ARCH = Decoder(
    name="olmo2",
    rope_style="neox",
    pre_norms=False,
    post_norms=True,
    qk_norm="row",
    window=windows(period=_PERIOD),
    window_rope="unscaled",
)

_NORMS = {
    "model.layers.{}.post_attention_layernorm": "blk.{}.post_attention_norm",
    "model.layers.{}.post_feedforward_layernorm": "blk.{}.post_ffw_norm",
}
_DEFAULTS: dict[str, Default] = {
    "vocab_size": 50304,
    "max_position_embeddings": 2048,
    "hidden_size": 4096,
    "intermediate_size": 11008,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": n_heads,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
}


def _keys(config: HFConfig) -> Keys:
    """Return OLMo 3's windows, in three layers of four unless config.json says which."""
    if (size := config.integer("sliding_window")) is None:
        return {}
    n = config.needed_integer("num_hidden_layers")
    return {
        "attention.sliding_window": u32("sliding_window", size),
        "attention.sliding_window_pattern": layer_types(config) or pattern(n, _PERIOD),
    }


HF = HuggingFace(
    classes={
        "Olmo2ForCausalLM": _DEFAULTS,
        "Olmo3ForCausalLM": _DEFAULTS | {"sliding_window": 4096},
    },
    tensors=DECODER | _NORMS,
    keys=_keys,
)
