"""Memory for a plan's buffers: regions of f32 rows, reused once nothing reads them any more."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from quantcli.formats import F32
from quantcli.plan import Buffer

_LANES = 32  # rows are padded with zeros to a multiple of this many values


@dataclass(frozen=True, slots=True, eq=False)
class Region:
    """Rows of f32, one for each row of a step, padded with zeros that nobody overwrites."""

    name: str
    array: F32  # (rows, padded width)

    @property
    def address(self) -> int:
        """Address of the first row."""
        return int(self.array.ctypes.data)

    @property
    def stride(self) -> int:
        """Bytes from one row to the next."""
        return int(self.array.strides[0])

    @property
    def padded_width(self) -> int:
        """Values a row, padding included."""
        return int(self.array.shape[1])


class RegionPool:
    """Hands out regions and takes them back. Only buffers of one width share one: so the padding
    of every region stays zero."""

    def __init__(self, max_rows: dict[str, int]) -> None:
        """Start empty; max_rows gives the rows of each axis."""
        self.regions: list[Region] = []
        self._max_rows = max_rows
        self._free: dict[tuple[str, int], list[Region]] = {}

    def take(self, buffer: Buffer) -> Region:
        """Return a region that fits a buffer."""
        free = self._free.setdefault((buffer.axis, buffer.width), [])
        if free:
            return free.pop()
        padded = -(-buffer.width // _LANES) * _LANES
        array = np.zeros((self._max_rows[buffer.axis], padded), np.float32)
        region = Region(f"region {len(self.regions)}", array)
        self.regions.append(region)
        return region

    def give_back(self, buffer: Buffer, region: Region) -> None:
        """Take a region back that held a buffer."""
        self._free[buffer.axis, buffer.width].append(region)

    @property
    def nbytes(self) -> int:
        """Bytes of all regions."""
        return sum(region.array.nbytes for region in self.regions)
