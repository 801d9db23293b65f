"""Phi-3, Phi-3.5 and Phi-4: q, k and v in one matrix, gate and up in another; longrope.

Which of longrope's factors apply is decided by the context a model is run with, not by how much of
it is used. The sliding window that files name is not applied: converters wrote wrong ones.
"""

from __future__ import annotations

from quantcli.arch.blocks import Decoder

ARCH = Decoder(name="phi3", rope_style="neox", long_factors="there", gate="up")
