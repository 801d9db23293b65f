"""Granite 3 and 4 with experts, and perhaps one that every token goes to. All layers rotate."""

from __future__ import annotations

from dataclasses import replace

from quantcli.arch.granite import ARCH as GRANITE
from quantcli.arch.switches import every_layer

ARCH = replace(GRANITE, name="granitemoe", rope_layers=every_layer)
