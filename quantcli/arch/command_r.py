"""Command R: attention and MLP side by side behind one norm, which has no bias."""

from __future__ import annotations

from quantcli.arch.blocks import Decoder
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
