"""Qwen2 and Qwen2.5: the plain block with NEOX RoPE and biases on q, k and v."""

from __future__ import annotations

from quantcli.arch.blocks import Decoder

ARCH = Decoder(name="qwen2", rope_style="neox")
