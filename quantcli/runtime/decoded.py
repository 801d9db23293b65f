"""Weights in f32 for the NumPy executor: decoded when first used, within a limit of memory."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator

import numpy as np
import numpy.typing as npt

from quantcli.formats import F32
from quantcli.plan import Plan
from quantcli.qtensor import QTensor

I64 = npt.NDArray[np.int64]
Weights = Callable[[str], "QTensor | F32"]

_FLOATS = ("f32", "f16", "bf16")


class DecodedWeights:
    """Weights in f32, decoded when first used; the least recently used go when room is short."""

    def __init__(
        self, plan: Plan, fetch: Weights, nbytes: int, chunk_nbytes: int = 64 << 20
    ) -> None:
        """Keep up to `nbytes` of a plan's weights; decode a matrix too large to keep in parts."""
        self._shapes = plan.weights
        self._fetch = fetch
        self._room = nbytes
        self._largest = nbytes // 2  # of what is kept whole
        self._chunk_nbytes = chunk_nbytes
        self._decoded: OrderedDict[str, F32] = OrderedDict()
        self._raw: dict[str, QTensor | F32] = {}  # as small as the file

    def raw(self, name: str) -> QTensor | F32:
        """Return a tensor as it was fetched."""
        if name not in self._raw:
            self._raw[name] = self._fetch(name)
        return self._raw[name]

    def is_quantized(self, name: str) -> bool:
        """Return whether a tensor is in a format that takes int8 activations."""
        raw = self.raw(name)
        return isinstance(raw, QTensor) and raw.format.name not in _FLOATS

    def array(self, name: str) -> F32:
        """Return a whole tensor in the plan's shape."""
        if name not in self._decoded:
            raw = self.raw(name)
            array = raw.dequantize() if isinstance(raw, QTensor) else raw
            self._decoded[name] = array.reshape(self._shapes[name])
            self._room -= array.nbytes
            while self._room < 0 and len(self._decoded) > 1:
                self._room += self._decoded.popitem(last=False)[1].nbytes
        self._decoded.move_to_end(name)
        return self._decoded[name]

    def expert(self, name: str, index: int) -> F32:
        """Return one expert's matrix of a tensor (n_experts, n_out, n_in)."""
        raw = self.raw(name)
        n_experts, n_rows, n_in = self._shapes[name]
        if not isinstance(raw, QTensor) or 4 * n_experts * n_rows * n_in <= self._largest:
            matrix: F32 = self.array(name)[index]
            return matrix
        return raw.rows(index * n_rows, (index + 1) * n_rows).dequantize()

    def rows(self, name: str, ids: I64) -> F32:
        """Return some rows of a matrix."""
        raw = self.raw(name)
        if not isinstance(raw, QTensor):
            return raw[ids]
        unique, place = np.unique(ids, return_inverse=True)
        return np.concatenate([raw.rows(i, i + 1).dequantize() for i in unique.tolist()])[place]

    def chunks(self, name: str) -> Iterator[F32]:
        """Yield a matrix in runs of rows, whole if it is small enough to keep."""
        raw = self.raw(name)
        n_rows, n_in = self._shapes[name]
        if not isinstance(raw, QTensor) or 4 * n_rows * n_in <= self._largest:
            yield self.array(name)
            return
        n = max(1, self._chunk_nbytes // (4 * n_in))
        for start in range(0, n_rows, n):
            yield raw.rows(start, min(start + n, n_rows)).dequantize()
