"""Qwen3, dense: Qwen2 with an RMS norm on each head of q and k."""

from __future__ import annotations

from dataclasses import replace

from quantcli.arch.hugging_face import HuggingFace
from quantcli.arch.qwen2 import ARCH as QWEN2
from quantcli.arch.qwen2 import HF_DEFAULTS as QWEN2_DEFAULTS

ARCH = replace(QWEN2, name="qwen3", qk_norm="head")

_DEFAULTS = QWEN2_DEFAULTS | {"head_dim": 128}

HF = HuggingFace(classes={"Qwen3ForCausalLM": _DEFAULTS, "Qwen3Model": _DEFAULTS})
