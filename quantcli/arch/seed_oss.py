"""Seed-OSS: Qwen2 under other names."""

from __future__ import annotations

from dataclasses import replace

from quantcli.arch.qwen2 import ARCH as QWEN2

ARCH = replace(QWEN2, name="seed_oss", ffn_norm="post_attention_norm")
