"""gpt-oss: attention sinks, windows in every other layer, experts with biases and a clamped gate.

Source: Agarwal et al., arXiv:2508.10925, section 2.
"""

from __future__ import annotations

from quantcli.arch.blocks import Decoder
from quantcli.arch.routing import Mixture
from quantcli.arch.windows import windows

ARCH = Decoder(
    name="gpt-oss",
    rope_style="neox",
    ffn_norm="post_attention_norm",
    sinks=True,
    act="swiglu_oai",
    window=windows(period=2, default=None),
    window_rope="based",
    experts=Mixture(score="softmax_of_chosen", normalize=False),
)
