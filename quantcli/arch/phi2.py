"""Phi-1.5 and Phi-2: StarCoder2's parts, with attention and MLP side by side behind one norm."""

from __future__ import annotations

from dataclasses import replace

from quantcli.arch.command_r import side_by_side
from quantcli.arch.starcoder2 import ARCH as STARCODER2

ARCH = replace(STARCODER2, name="phi2", mlp_reads=side_by_side)
