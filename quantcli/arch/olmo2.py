"""OLMo 2 and 3: norms only behind each half of a layer, and over all of q and of k.

OLMo 3 has windows in three layers of four, which rotate without the scaling of the others.
"""

from __future__ import annotations

from quantcli.arch.blocks import Decoder
from quantcli.arch.windows import windows

ARCH = Decoder(
    name="olmo2",
    rope_style="neox",
    pre_norms=False,
    post_norms=True,
    qk_norm="row",
    window=windows(period=4),
    window_rope="unscaled",
)
