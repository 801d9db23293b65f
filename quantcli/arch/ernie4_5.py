"""ERNIE 4.5, dense: the plain block."""

from __future__ import annotations

from quantcli.arch.blocks import Decoder

ARCH = Decoder(name="ernie4_5", rope_style="norm")
