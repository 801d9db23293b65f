"""Encoding without statistics: the bytes that llama.cpp's encoders write."""

from __future__ import annotations

import numpy as np

from quantcli.errors import UsageError
from quantcli.formats import F32, U8, BlockFormat
from quantcli.kernels.quantize import direct, search
from quantcli.kernels.quantize.layouts import LAYOUTS


def encode(weights: F32, fmt: BlockFormat) -> U8:
    """Return weights f32 (n_rows, n_in), contiguous, as blocks, u8 (nbytes,).

    Raises UsageError for a format that can only be decoded.
    """
    if fmt.name in search.PLAIN:
        layout = LAYOUTS[fmt.name]
        header, codes = search.plain(weights, layout)
        blocks = layout.header(*header)
        layout.put_codes(blocks, codes)
        return blocks.view(np.uint8)
    n_blocks = weights.size // fmt.weights_per_block
    kernel = direct.ENCODERS.get(fmt.name)
    if kernel is None and fmt.encode is None:
        raise UsageError(f"quantcli reads {fmt.name} but does not write it. Choose another type.")
    if kernel is None or weights.size < 16:
        assert fmt.encode is not None, fmt.name
        return fmt.encode(weights.reshape(n_blocks, -1)).view(np.uint8)
    data = np.empty(n_blocks * fmt.block_nbytes, np.uint8)
    kernel(weights.ctypes.data, n_blocks, data.ctypes.data)
    return data
