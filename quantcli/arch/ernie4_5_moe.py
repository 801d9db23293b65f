"""ERNIE 4.5 with experts, which a bias helps to choose, and one that every token goes to."""

from __future__ import annotations

from dataclasses import replace

from quantcli.arch.ernie4_5 import ARCH as ERNIE4_5
from quantcli.arch.hyper import Hyper
from quantcli.arch.routing import Mixture


def is_expert(hyper: Hyper, layer: int) -> bool:
    """Return whether a layer has experts: every n-th behind the first few."""
    keys, n = hyper.keys, hyper.n_blocks
    first = keys.integer("leading_dense_block_count", 0, n, 0)
    return layer >= first and (layer + 1) % keys.integer("interleave_moe_layer_step", 1, n) == 0


ARCH = replace(ERNIE4_5, name="ernie4_5-moe", experts=Mixture(has_bias=True, is_expert=is_expert))
