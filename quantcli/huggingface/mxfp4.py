"""Experts of gpt-oss, which are MXFP4 in the folder as well: the same bits in another order.

    NAME_blocks   u8 (n_experts, n_out, n_in / 32, 16)
                  byte i: weight 2 i of the 32 in bits 3..0, weight 2 i + 1 in bits 7..4
    NAME_scales   u8 (n_experts, n_out, n_in / 32): the exponents

GGUF's block is the exponent, then 16 bytes with weight i in bits 3..0 and i + 16 in bits 7..4.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from quantcli import formats
from quantcli.checkpoint.gguf_layout import quoted
from quantcli.checkpoint.safetensors import SafetensorsFiles, StoredTensor
from quantcli.errors import CheckpointError
from quantcli.formats import BlockFormat
from quantcli.qtensor import U8

BLOCKS, SCALES = "_blocks", "_scales"
_WEIGHTS, _NBYTES = 32, 16


@dataclass(frozen=True, slots=True)
class Mxfp4Rows:
    """Rows of a stack of matrices, as blocks of GGUF's mxfp4."""

    files: SafetensorsFiles
    blocks: StoredTensor
    scales: StoredTensor
    unit: int = 1

    @property
    def shape(self) -> tuple[int, ...]:
        """(n_experts, n_out, n_in)."""
        *outer, n_blocks, _ = self.blocks.shape
        return (*outer, n_blocks * _WEIGHTS)

    @property
    def format(self) -> BlockFormat:
        """Always mxfp4."""
        return formats.get("mxfp4")

    def read(self, row_start: int, row_stop: int) -> U8:
        """Return rows with the bits in their new places."""
        n = self.blocks.shape[-2]
        first, last = row_start * n, row_stop * n
        codes, out = np.empty((last - first, _NBYTES), np.uint8), np.empty(last - first, _BLOCK)
        exponents = np.empty(last - first, np.uint8)
        self.files.read_into(self.blocks, codes.data.cast("B"), first * _NBYTES)
        self.files.read_into(self.scales, exponents.data, first)
        low, high = codes & 15, codes >> 4
        weights = np.stack([low, high], axis=-1).reshape(-1, _WEIGHTS)
        out["e"] = exponents
        out["qs"] = weights[:, :_NBYTES] | weights[:, _NBYTES:] << 4
        return out.view(np.uint8).ravel()


_BLOCK = formats.get("mxfp4").block


def mxfp4_rows(
    files: SafetensorsFiles, left: dict[str, StoredTensor]
) -> Iterator[tuple[str, Mxfp4Rows]]:
    """Yield tensors by the names of their blocks, and take their parts out of those that are left.

    Raises CheckpointError for parts that are missing or do not fit.
    """
    for name in [name for name in left if name.endswith(BLOCKS)]:
        blocks, scales_name = left.pop(name), name.removesuffix(BLOCKS) + SCALES
        scales = left.pop(scales_name, None)
        if scales is None:
            raise CheckpointError(
                f"has no tensor {quoted(scales_name)}; the download is not complete."
            )
        fits = len(blocks.shape) > 2 and blocks.shape[-1] == _NBYTES
        if not fits or scales.shape != blocks.shape[:-1] or {blocks.dtype, scales.dtype} != {"U8"}:
            raise CheckpointError(
                f"tensors {quoted(name)} and {quoted(scales_name)} have shapes "
                f"{list(blocks.shape)} and {list(scales.shape)}; they must be bytes, "
                f"{_NBYTES} for each scale."
            )
        yield name, Mxfp4Rows(files, blocks, scales)
