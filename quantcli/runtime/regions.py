"""Memory for a plan's buffers: regions of f32 rows, reused once nothing reads them any more."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from quantcli.formats import F32
from quantcli.plan import Buffer

_LANES = 32  # rows are padded with zeros to a multiple of this many values
_SLACK = 16  # values behind the last row, for vectors that begin inside it


@dataclass(frozen=True, slots=True, eq=False)
class Region:
    """Rows of f32, one for each row of a step, padded with zeros that nobody overwrites.

    name    the same for a region and its parts
    array   (rows, padded width)
    whole   the region that this is a part of, or None
    kind    axis and width of the buffers that it is for
    """

    name: str
    array: F32
    whole: Region | None = None
    kind: tuple[str, int] = ("", 0)

    @property
    def root(self) -> Region:
        """The region whose memory this is."""
        return self.whole or self

    def part(self, start: int, width: int) -> Region:
        """Return some columns, a multiple of the padding: they have none of their own."""
        assert width % _LANES == 0, width
        return Region(self.name, self.array[:, start : start + width], self.root)

    def can_part(self, width: int) -> bool:
        """Return whether `part` may cut out so many columns."""
        return width % _LANES == 0

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
        n_rows = self._max_rows[buffer.axis]
        array = np.zeros(n_rows * padded + _SLACK, np.float32)[: n_rows * padded]
        array = array.reshape(n_rows, padded)
        region = Region(f"region {len(self.regions)}", array, None, (buffer.axis, buffer.width))
        self.regions.append(region)
        return region

    def give_back(self, region: Region) -> None:
        """Take a whole region back."""
        self._free[region.kind].append(region)

    @property
    def nbytes(self) -> int:
        """Bytes of all regions."""
        return sum(region.array.nbytes for region in self.regions)
