"""Hunyuan, dense: norms on each head of q and k, but behind their rotation."""

from __future__ import annotations

from quantcli.arch.blocks import Decoder
from quantcli.arch.hyper import Hyper


def base_factor(hyper: Hyper) -> float:
    """Return the factor on RoPE's base: alpha ** (d / (d - 2)) where the file names an alpha."""
    alpha = hyper.keys.number("rope.scaling.alpha", 0.0, 1e6, 0.0)
    d = hyper.head_dim
    return alpha ** (d / (d - 2)) if alpha and d > 2 else 1.0


ARCH = Decoder(
    name="hunyuan-dense",
    rope_style="neox",
    freq_factors=True,
    qk_norm="head after rope",
    base_factor=base_factor,
)
