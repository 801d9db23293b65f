"""GLM-4 (0414) and GLM-Z1: norms before and after each half, partial rotation, gate and up in one.

Files of the vision models, whose text rotates by sections, are refused.
"""

from __future__ import annotations

from quantcli.arch.blocks import Decoder
from quantcli.arch.hyper import Hyper
from quantcli.errors import UnsupportedModel

_SECTIONS = "rope.dimension_sections"


def rope_layers(hyper: Hyper, layer: int) -> bool:
    """Return True; raise UnsupportedModel for a file that rotates by sections."""
    if _SECTIONS in hyper.keys and any(hyper.keys.integers(_SECTIONS)):
        raise UnsupportedModel(
            f"{hyper.arch}.{_SECTIONS} is set: this is the text half of a vision model, which is "
            "not supported; use a text model."
        )
    return True


ARCH = Decoder(name="glm4", rope_style="norm", post_norms=True, gate="up", rope_layers=rope_layers)
