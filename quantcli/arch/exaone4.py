"""EXAONE 4: norms only behind each half of a layer, and on each head of q and k.

The 32B, known by its 64 layers, has windows in three layers of four, and only those rotate.
"""

from __future__ import annotations

from quantcli.arch.blocks import Decoder
from quantcli.arch.hf_config import Default, HFConfig
from quantcli.arch.hf_keys import layer_types, llama3_factors, u32
from quantcli.arch.hugging_face import DECODER, HuggingFace, Keys
from quantcli.arch.hyper import Hyper
from quantcli.arch.windows import MOST_LAYERS, is_windowed, pattern, windows

_LAYERS_32B = 64
_PERIOD, _WINDOW = 4, 4096


def rope_layers(hyper: Hyper, layer: int) -> bool:
    """Return whether a layer rotates: all but the 32B's that see everything."""
    return hyper.n_layers != _LAYERS_32B or is_windowed(hyper, layer, _PERIOD)


def window(hyper: Hyper, layer: int) -> int:
    """Return a layer's window."""
    if hyper.n_layers != _LAYERS_32B:
        return 0
    return windows(_PERIOD, _WINDOW)(hyper, layer)


ARCH = Decoder(
    name="exaone4",
    rope_style="neox",
    freq_factors=True,
    pre_norms=False,
    post_norms=True,
    qk_norm="head",
    rope_layers=rope_layers,
    window=window,
)

_NORMS = {
    "model.layers.{}.post_attention_layernorm": "blk.{}.post_attention_norm",
    "model.layers.{}.post_feedforward_layernorm": "blk.{}.post_ffw_norm",
}
_DEFAULTS: dict[str, Default] = {
    "vocab_size": 102400,
    "max_position_embeddings": 2048,
    "hidden_size": 4096,
    "intermediate_size": 16384,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 32,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "sliding_window": 4096,
    "sliding_window_pattern": _PERIOD,
}


def _keys(config: HFConfig) -> Keys:
    vocabulary = u32("vocab_size", config.needed_integer("vocab_size"))
    keys: Keys = {"vocab_size": vocabulary}
    if (size := config.integer("sliding_window")) is not None:
        keys["attention.sliding_window"] = u32("sliding_window", size)
        if (windowed := layer_types(config) or _pattern(config)) is not None:
            keys["attention.sliding_window_pattern"] = windowed
    return keys


def _pattern(config: HFConfig) -> list[bool] | None:
    """Return which layers have windows by a period, or by a word such as LLLG that repeats."""
    n = config.needed_integer("num_hidden_layers")
    if isinstance(word := config.value("sliding_window_pattern"), str) and word:
        return [word[layer % len(word)] == "L" for layer in range(min(n, MOST_LAYERS))]
    period = config.integer("sliding_window_pattern")
    return pattern(n, period) if period else None


HF = HuggingFace(
    classes={"Exaone4ForCausalLM": _DEFAULTS},
    tensors=DECODER | _NORMS,
    keys=_keys,
    extra_tensors=llama3_factors,
)
