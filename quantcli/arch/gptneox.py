"""GPT-NeoX and Pythia: StarCoder2's parts; attention and MLP side by side, each behind its norm."""

from __future__ import annotations

from dataclasses import replace

from quantcli.arch.hyper import Hyper
from quantcli.arch.starcoder2 import ARCH as STARCODER2


def mlp_reads(hyper: Hyper, layer: int) -> str:
    """Return whether the MLP reads the stream that attention reads, as the file must say."""
    return "stream" if hyper.keys.flag("use_parallel_residual") else "sum"


ARCH = replace(STARCODER2, name="gptneox", mlp_reads=mlp_reads)
