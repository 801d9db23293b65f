"""Qwen3, dense: Qwen2 with an RMS norm on each head of q and k."""

from __future__ import annotations

from dataclasses import replace

from quantcli.arch.qwen2 import ARCH as QWEN2

ARCH = replace(QWEN2, name="qwen3", qk_norm="head")
