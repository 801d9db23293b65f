"""Command R7B and later: Command R with windows in three layers of four, and only those rotate."""

from __future__ import annotations

from dataclasses import replace

from quantcli.arch.command_r import ARCH as COMMAND_R
from quantcli.arch.command_r import HF_DEFAULTS, scaled_keys
from quantcli.arch.hf_config import HFConfig
from quantcli.arch.hf_keys import head_width, u32
from quantcli.arch.hugging_face import HuggingFace, Keys
from quantcli.arch.hyper import Hyper
from quantcli.arch.windows import is_windowed, windows

_PERIOD = 4


def rope_layers(hyper: Hyper, layer: int) -> bool:
    """Return whether a layer rotates: those with a window."""
    return is_windowed(hyper, layer, _PERIOD)


ARCH = replace(
    COMMAND_R,
    name="cohere2",
    rope_layers=rope_layers,
    window=windows(period=_PERIOD, default=None),
)


def _keys(config: HFConfig) -> Keys:
    part = config.number("rotary_pct")
    width = head_width(config)
    return scaled_keys(config) | {
        "attention.key_length": u32("head_dim", width),
        "attention.value_length": u32("head_dim", width),
        "attention.sliding_window": u32("window", config.needed_integer("sliding_window")),
        "vocab_size": u32("vocab_size", config.needed_integer("vocab_size")),
        "rope.dimension_count": u32("rotary_pct", int((1.0 if part is None else part) * width)),
    }


HF = HuggingFace(
    classes={"Cohere2ForCausalLM": HF_DEFAULTS | {"sliding_window": 4096}},
    zeros=".bias",
    keys=_keys,
)
