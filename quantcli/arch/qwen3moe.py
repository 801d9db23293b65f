"""Qwen3 with experts, 30B-A3B and 235B-A22B."""

from __future__ import annotations

from dataclasses import replace

from quantcli.arch.qwen3 import ARCH as QWEN3
from quantcli.arch.routing import Mixture, part_of_d_ff

ARCH = replace(QWEN3, name="qwen3moe", experts=Mixture(d_ff=part_of_d_ff))
