"""Nemotron 3 and Minitron: layer norms with "+ 1" stored in them, squared ReLU without a gate."""

from __future__ import annotations

from dataclasses import replace

from quantcli.arch.starcoder2 import ARCH as STARCODER2

ARCH = replace(STARCODER2, name="nemotron", act="relu_squared")
