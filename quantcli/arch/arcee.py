"""Arcee AFM: llama with squared ReLU without a gate."""

from __future__ import annotations

from quantcli.arch.blocks import Decoder

ARCH = Decoder(name="arcee", rope_style="norm", freq_factors=True, gate="no", act="relu_squared")
