"""Pairs of tiny F32 models, a base and one near it, for goldens of perplexity and divergence.

All weights are F32, so that programs differ by the rules they follow and not by how they round.
Logits of one row stay within 16 of each other, which llama.cpp's file of logits cannot exceed.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from gguf import GGUFWriter
from tiny import Tiny, add_value

from quantcli import formats
from quantcli.formats import F32

CONTEXT = 128
N_CHUNKS = 5


@dataclass(frozen=True)
class Case:
    """A base, and the format that its matrices are rounded to for the model near it."""

    base: Tiny
    rounding: str

    def write(self, folder: Path) -> tuple[Path, Path]:
        """Write both files; return their paths."""
        folder.mkdir(exist_ok=True)
        return (
            _write(folder / "base.gguf", self.base, ""),
            _write(folder / "near.gguf", self.base, self.rounding),
        )


CASES = {
    "without_bos": Case(Tiny("llama", weight_format="f32", d_model=32, d_ff=64), "q4_0"),
    "with_bos": Case(
        Tiny("gemma3", seed=3, weight_format="f32", tied=True, logit_softcap=6.0), "q8_0"
    ),
}


def _write(path: Path, tiny: Tiny, rounding: str) -> Path:
    writer = GGUFWriter(path, tiny.arch)
    for key, value in (tiny.metadata() | tiny.vocabulary().metadata()).items():
        add_value(writer, key, value)
    for name, weight in tiny.weights().items():
        writer.add_tensor(name, _rounded(weight, rounding) if weight.ndim == 2 else weight)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _rounded(weight: F32, name: str) -> F32:
    if not name:
        return weight
    fmt = formats.get(name)
    assert fmt.encode is not None
    return fmt.decode(fmt.encode(weight.reshape(-1, fmt.weights_per_block))).reshape(weight.shape)
