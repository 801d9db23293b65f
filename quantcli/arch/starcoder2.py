"""StarCoder2: layer norms and biases everywhere, and an MLP without a gate."""

from __future__ import annotations

from quantcli.arch.blocks import Decoder

ARCH = Decoder(
    name="starcoder2",
    rope_style="neox",
    norm="layer",
    norm_bias=True,
    gate="no",
    act="gelu_tanh",
)
