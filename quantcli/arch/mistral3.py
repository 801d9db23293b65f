"""Ministral 3: llama with YaRN of its own magnitude, and queries that grow with their position."""

from __future__ import annotations

from dataclasses import replace

from quantcli.arch.hyper import Hyper
from quantcli.arch.llama import ARCH as LLAMA


def temperature(hyper: Hyper) -> float:
    """Return by how much q grows with its position; 0 if the file does not say."""
    return hyper.keys.number("attention.temperature_scale", 0.0, 1e3, 0.0)


ARCH = replace(LLAMA, name="mistral3", yarn_log_mul=True, temperature=temperature)
