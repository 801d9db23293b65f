"""EXAONE 4: norms only behind each half of a layer, and on each head of q and k.

The 32B, known by its 64 layers, has windows in three layers of four, and only those rotate.
"""

from __future__ import annotations

from quantcli.arch.blocks import Decoder
from quantcli.arch.hyper import Hyper
from quantcli.arch.windows import is_windowed, windows

_LAYERS_32B = 64
_PERIOD, _WINDOW = 4, 4096


def rope_layers(hyper: Hyper, layer: int) -> bool:
    """Return whether a layer rotates: all but the 32B's that see everything."""
    return hyper.n_layers != _LAYERS_32B or is_windowed(hyper, layer, _PERIOD)


def window(hyper: Hyper, layer: int) -> int:
    """Return a layer's window."""
    if hyper.n_layers != _LAYERS_32B:
        return 0
    return windows(_PERIOD, _WINDOW)(hyper, layer)


ARCH = Decoder(
    name="exaone4",
    rope_style="neox",
    freq_factors=True,
    pre_norms=False,
    post_norms=True,
    qk_norm="head",
    rope_layers=rope_layers,
    window=window,
)
