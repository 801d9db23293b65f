"""The contract of a block format: how weights lie in a file's bytes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import numpy as np
import numpy.typing as npt

from quantcli import catalog
from quantcli.errors import ShapeError

F32 = npt.NDArray[np.float32]
U8 = npt.NDArray[np.uint8]
Blocks = npt.NDArray[np.void]


@dataclass(frozen=True, slots=True)
class BlockFormat:
    """One way to store weights: blocks of a fixed number of weights in a fixed number of bytes.

    name               the catalog's spelling, such as "q4_k"
    ggml_id            the number that GGUF files use
    block              the byte layout, as a packed NumPy structured dtype
    weights_per_block  weights in one block; rows must be a multiple of it
    decode             Blocks (n_blocks,) -> f32 (n_blocks, weights_per_block)
    encode             the inverse, or None where only decoding exists yet
    rmse_budget        largest rms error of encode then decode on N(0, 1) weights
    """

    name: str
    ggml_id: int
    block: np.dtype[np.void]
    weights_per_block: int
    decode: Callable[[Blocks], F32]
    encode: Callable[[F32], Blocks] | None = None
    rmse_budget: float = 0.0

    @property
    def block_nbytes(self) -> int:
        """Bytes of one block."""
        return self.block.itemsize

    @property
    def bits_per_weight(self) -> float:
        """Bits a weight costs."""
        return 8 * self.block.itemsize / self.weights_per_block

    def row_nbytes(self, n_in: int) -> int:
        """Return the bytes of a row of `n_in` weights.

        Raises ShapeError if n_in is not a multiple of weights_per_block.
        """
        if n_in % self.weights_per_block:
            raise ShapeError(
                f"row length {n_in} is not a multiple of {self.weights_per_block}, "
                f"the {self.name} block."
            )
        return n_in // self.weights_per_block * self.block.itemsize


def get(name: str) -> BlockFormat:
    """Return a format by its name, or raise UnknownName."""
    return catalog.load("format", name).FORMAT  # type: ignore[no-any-return]


@cache
def every() -> tuple[BlockFormat, ...]:
    """Return all formats, in the catalog's order."""
    return tuple(get(name) for name in catalog.names("format"))


def by_ggml_id(ggml_id: int) -> BlockFormat | None:
    """Return the format with a GGUF number, or None if quantcli has none."""
    return next((f for f in every() if f.ggml_id == ggml_id), None)
