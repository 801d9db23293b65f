"""Qwen1.5-MoE and Qwen2-57B: Qwen2 with experts whose weights are not normalised, and a shared one.

The shared expert has a gate of its own.
"""

from __future__ import annotations

from dataclasses import replace

from quantcli.arch.qwen2 import ARCH as QWEN2
from quantcli.arch.routing import Mixture, all_of_d_ff, part_of_d_ff

ARCH = replace(
    QWEN2,
    name="qwen2moe",
    experts=Mixture(normalize=False, d_ff=part_of_d_ff, shared_d_ff=all_of_d_ff, shared_gate=True),
)
