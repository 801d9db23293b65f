"""Qwen2 and Qwen2.5: the plain block with NEOX RoPE and biases on q, k and v."""

from __future__ import annotations

from dataclasses import replace

from quantcli.arch.llama import ARCH as LLAMA

ARCH = replace(LLAMA, name="qwen2", rope_style="neox", freq_factors=False)
