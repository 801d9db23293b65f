"""SmolLM3: llama without rotation in every fourth layer. Source: arXiv:2501.18795 (NoPE layers)."""

from __future__ import annotations

from quantcli.arch.blocks import Decoder
from quantcli.arch.hyper import Hyper

_PERIOD = 4


def rope_layers(hyper: Hyper, layer: int) -> bool:
    """Return whether a layer rotates: all but every fourth."""
    return (layer + 1) % _PERIOD != 0


ARCH = Decoder(name="smollm3", rope_style="norm", rope_layers=rope_layers)
