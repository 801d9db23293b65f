"""StableLM: layer norms, partial rotation.

StableLM 2 12B, whose MLP reads what attention reads, has norms on heads that differ from head to
head and is refused by them.
"""

from __future__ import annotations

from quantcli.arch.blocks import Decoder
from quantcli.arch.hf_config import Default, HFConfig
from quantcli.arch.hf_keys import head_width, rotated, u32
from quantcli.arch.hugging_face import HuggingFace, Keys

ARCH = Decoder(name="stablelm", rope_style="neox", norm="layer", norm_bias=True)

_DEFAULTS: dict[str, Default] = {
    "vocab_size": 50304,
    "max_position_embeddings": 4096,
    "hidden_size": 2560,
    "intermediate_size": 6912,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 32,
    "layer_norm_eps": 1e-5,
    "partial_rotary_factor": 0.25,
    "use_parallel_residual": False,
}


def _keys(config: HFConfig) -> Keys:
    return {
        "rope.dimension_count": u32("rotated", int(rotated(config) * head_width(config))),
        "use_parallel_residual": config.flag("use_parallel_residual", default=True),
    }


HF = HuggingFace(
    classes={"StableLmForCausalLM": _DEFAULTS, "StableLMEpochForCausalLM": _DEFAULTS},
    keys=_keys,
    drops=("rope.freq_base",),
)
