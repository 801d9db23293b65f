"""A checkpoint without a file, for tests of what the runtime makes of weights."""

from __future__ import annotations

import numpy as np

from quantcli import formats
from quantcli.checkpoint import TensorInfo
from quantcli.formats import F32, U8
from quantcli.qtensor import QTensor


class MemoryCheckpoint:
    """Tensors by name, read as those of a file are."""

    def __init__(self, tensors: dict[str, QTensor]) -> None:
        self._tensors = tensors
        self.n_reads = 0
        self.tensors = {
            name: TensorInfo(name, t.shape, t.format, t.nbytes, 0, 0) for name, t in tensors.items()
        }

    def tensor(self, name: str) -> QTensor:
        """Return a tensor."""
        return self._tensors[name]

    def read_into(self, name: str, buffer: U8, start: int = 0) -> None:
        """Copy bytes of a tensor from `start` on."""
        self.n_reads += 1
        part = self._tensors[name].data[start : start + buffer.size]
        assert part.size == buffer.size, (name, start, buffer.size)
        buffer[:] = part


def tensor(name: str, values: F32, format_name: str = "f32") -> QTensor:
    """Return an f32 array as a tensor of a format that can encode."""
    fmt = formats.get(format_name)
    assert fmt.encode is not None
    blocks = fmt.encode(np.ascontiguousarray(values).reshape(-1, fmt.weights_per_block))
    return QTensor(name, values.shape, fmt, blocks.view(np.uint8).reshape(-1))
