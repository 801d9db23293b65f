"""StableLM: layer norms, partial rotation.

StableLM 2 12B, whose MLP reads what attention reads, has norms on heads that differ from head to
head and is refused by them.
"""

from __future__ import annotations

from quantcli.arch.blocks import Decoder

ARCH = Decoder(name="stablelm", rope_style="neox", norm="layer", norm_bias=True)
