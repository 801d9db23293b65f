"""Command R7B and later: Command R with windows in three layers of four, and only those rotate."""

from __future__ import annotations

from dataclasses import replace

from quantcli.arch.command_r import ARCH as COMMAND_R
from quantcli.arch.hyper import Hyper
from quantcli.arch.windows import is_windowed, windows

_PERIOD = 4


def rope_layers(hyper: Hyper, layer: int) -> bool:
    """Return whether a layer rotates: those with a window."""
    return is_windowed(hyper, layer, _PERIOD)


ARCH = replace(
    COMMAND_R,
    name="cohere2",
    rope_layers=rope_layers,
    window=windows(period=_PERIOD, default=None),
)
