"""Texts for property tests: any characters, and snippets that tokenizers treat in their own way."""

from __future__ import annotations

from hypothesis import strategies as st

SNIPPETS = (
    " ",
    "  ",
    "   ",
    "\n",
    "\n\n",
    "\r\n",
    "\t",
    "\t\t",
    "'s",
    "'LL",
    "don't",
    "123",
    "1234567",
    "\u00bd",
    "caf\u00e9",
    "e\u0301",
    "\u4eca\u5929",
    "\u3053\u308c",
    "\U0001f469\u200d\U0001f467",
    "\u0928\u092e\u0938\u094d\u0924\u0947",
    "\u2581",
    "\u00a0",
    "\u3000",
    "\ufffd",
    "\ue000",
    "Hello",
    "WORLD",
    "aA",
    "!!!",
    "==",
    "...",
    "<0x0A>",
    "\u017f",
)
SPELLINGS = (
    "<|im_start|>",
    "<|im_end|>",
    "<|endoftext|>",
    "<think>",
    "</think>",
    "<|im_",
    "end|>",
    "<|",
    "|>",
    "<",
    ">",
    "<s>",
    "</s>",
    "im_end",
)

CHARACTERS = st.characters(exclude_categories=["Cs"])
TEXT = st.lists(st.one_of(st.sampled_from(SNIPPETS), st.text(CHARACTERS, max_size=8))).map("".join)
TEXT_WITH_SPELLINGS = st.lists(
    st.one_of(st.sampled_from(SPELLINGS), st.sampled_from(SNIPPETS), st.text(max_size=4)),
    max_size=24,
).map(lambda parts: "".join(parts).encode("utf-8", "replace").decode())
