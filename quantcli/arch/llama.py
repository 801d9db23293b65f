"""Llama 2 and 3, and the many models of the same shape: Mistral 7B, SmolLM2, TinyLlama, Yi.

Llama 3.1's long context is a tensor, `rope_freqs.weight`, not a key. The sliding window that
Mistral 7B v0.1 files name is not applied, as nowhere else. Mixtral is a llama with experts.
"""

from __future__ import annotations

from quantcli.arch.blocks import Decoder
from quantcli.arch.routing import Mixture, all_of_d_ff

ARCH = Decoder(
    name="llama",
    rope_style="norm",
    freq_factors=True,
    long_factors=True,
    experts=Mixture(d_ff=all_of_d_ff),
)
