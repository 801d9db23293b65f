"""quantcli: quantize language models and run them on a CPU, in Python."""

from __future__ import annotations

__version__ = "0.1.0"
