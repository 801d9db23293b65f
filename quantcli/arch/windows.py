"""Which layers of a model see only a window of keys."""

from __future__ import annotations

from collections.abc import Callable

from quantcli.arch.hyper import MAX_CONTEXT, Hyper

_WINDOW = "attention.sliding_window"
MOST_LAYERS = 512  # far above any real model


def is_windowed(hyper: Hyper, layer: int, period: int) -> bool:
    """Return whether a layer is windowed: unless it is the last of a group of `period`.

    The file's own pattern counts for more: a period, or a truth value for each layer. 0 means that
    all layers are windowed, 1 that none is.
    """
    pattern = period if hyper.window_pattern is None else hyper.window_pattern
    if isinstance(pattern, tuple):
        return pattern[layer]
    return pattern == 0 or layer % pattern < pattern - 1


def pattern(n_layers: int, period: int) -> list[bool]:
    """Return which layers are windowed: all but the last of each group of `period`."""
    return [(layer + 1) % period != 0 for layer in range(min(n_layers, MOST_LAYERS))]


def windows(period: int, default: int | None = 0) -> Callable[[Hyper, int], int]:
    """Return a function from a layer to the keys it sees, 0 for all.

    period   as in `is_windowed`, of files that do not say
    default  window of files that do not say; None: they must
    """

    def window(hyper: Hyper, layer: int) -> int:
        """Return a layer's window."""
        size = hyper.keys.integer(_WINDOW, 0, MAX_CONTEXT, default)
        return size if is_windowed(hyper, layer, period) else 0

    return window
