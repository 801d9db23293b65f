"""Rows that do not divide into a format's blocks: what takes the format's place.

Small models have widths such as 576 or 896 that are no multiple of 256, and every format of 256
weights a block then needs another one.
"""

from __future__ import annotations

from typing import Literal

from quantcli import formats

Policy = Literal["size", "llama.cpp"]
POLICIES: tuple[Policy, ...] = ("size", "llama.cpp")

# llama.cpp's choices: never worse, but larger. Source: tensor_type_fallback in llama-quant.cpp.
LLAMA_CPP = {
    "q2_k": "q4_0",
    "q3_k": "q4_0",
    "q4_k": "q5_0",
    "q5_k": "q5_1",
    "q6_k": "q8_0",
    "iq4_xs": "iq4_nl",
    "tq1_0": "q4_0",
    "tq2_0": "q4_0",
}
# Formats of 32 weights a block that cost no more, or where there is none the smallest.
SIZE = {
    "q2_k": "iq4_nl",
    "q3_k": "iq4_nl",
    "q4_k": "iq4_nl",
    "q5_k": "q5_0",
    "q6_k": "q5_1",
    "iq4_xs": "iq4_nl",
    "tq1_0": "iq4_nl",
    "tq2_0": "iq4_nl",
}
_LAST = "f16"  # for rows that are no multiple of 32 either


def fits(format_name: str, n_in: int) -> bool:
    """Return whether a row of `n_in` weights is whole blocks of a format."""
    return n_in % formats.get(format_name).weights_per_block == 0


def replacement(format_name: str, n_in: int, policy: Policy) -> str:
    """Return the format for rows of `n_in` weights that were to get one they may not fit."""
    if fits(format_name, n_in):
        return format_name
    table = LLAMA_CPP if policy == "llama.cpp" else SIZE
    other = table.get(format_name, format_name)
    return other if fits(other, n_in) else _LAST
