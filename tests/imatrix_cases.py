"""The models and the text whose importance matrices llama-imatrix has measured, see goldens."""

from __future__ import annotations

from pathlib import Path

from tiny import write_tiny

GOLDENS = Path(__file__).parent / "goldens" / "imatrix"
ARCHS = ("llama", "gemma3")
N_CHUNKS = 3
TEXT = "".join(
    f"{i} things that {'the' if i % 3 else 'an'} other {'king' if i % 5 else 'thing'} ran after; "
    for i in range(400)
)


def write_case(path: Path, arch: str) -> Path:
    """Write the model of a case: weights in f32, so that no program rounds activations."""
    return write_tiny(path, arch, weight_format="f32", tied=arch == "gemma3")
