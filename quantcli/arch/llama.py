"""Llama 2 and 3, and the many models of the same shape: Mistral 7B, SmolLM2, TinyLlama, Yi.

Llama 3.1's long context is a tensor, `rope_freqs.weight`, not a key. The sliding window that
Mistral 7B v0.1 files name is not applied, as nowhere else.
"""

from __future__ import annotations

from quantcli.arch.blocks import Decoder

ARCH = Decoder(name="llama", rope_style="norm", freq_factors=True)
