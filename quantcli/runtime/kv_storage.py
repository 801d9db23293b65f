"""The arrays behind the KV cache: pages of records for each layer, and page tables by address."""

from __future__ import annotations

import mmap
from collections.abc import Iterable, Sequence

import numpy as np

from quantcli.errors import ResourceError, ShapeError
from quantcli.kernels.attention import CHUNK_KEYS
from quantcli.kernels.kv_cache import KV_FORMATS, RECORD_KEYS, KvFormat
from quantcli.kvcache import Copy, KVCache
from quantcli.plan import Heads


class KvStorage:
    """Keys and values of every layer. Pages are numbered as the KVCache numbers them."""

    def __init__(self, layers: Sequence[Heads], kv_type: str, cache: KVCache) -> None:
        """Reserve memory for all pages of all layers; it is committed as it is written.

        Raises ShapeError for heads that do not divide into vectors of this type, ResourceError if
        the machine refuses the memory.
        """
        self.format: KvFormat = KV_FORMATS[kv_type]
        self.page_size = cache.page_size
        self.max_chunks = -(-cache.context // CHUNK_KEYS)
        self._layers = list(layers)
        unit = 32 if kv_type == "q8_0" else 16
        for heads in layers:
            for width in (heads.head_dim, heads.value_width):
                if width % unit:
                    advice = "--backend reference" if width % 16 else "--kv-type f16"
                    raise ShapeError(
                        f"heads of {width} values do not divide into runs of {unit}, which "
                        f"the {kv_type} KV cache needs. Use {advice}."
                    )
        self.nbytes = cache.n_pages * sum(sum(self._page_nbytes(heads)) for heads in layers)
        self._memory = _reserve(self.nbytes)
        self._addresses: list[tuple[int, int]] = []
        self._records: list[np.ndarray] = []  # u8 (pages, kv heads, records, bytes): k, v, k, v ...
        data = np.frombuffer(self._memory, np.uint8)
        start = 0
        for heads in layers:
            places = []
            for nbytes in self._page_nbytes(heads):
                size = nbytes * cache.n_pages
                places.append(int(data.ctypes.data) + start)
                shape = (cache.n_pages, heads.n_kv_heads, self.page_size // RECORD_KEYS, -1)
                self._records.append(data[start : start + size].reshape(shape))
                start += size
            self._addresses.append((places[0], places[1]))

    def point(self, a: np.void, layer: int) -> None:
        """Tell a kernel where a layer's pages lie."""
        heads = self._layers[layer]
        a["k_pages"], a["v_pages"] = self._addresses[layer]
        a["n_kv_heads"], a["page_size"] = heads.n_kv_heads, self.page_size
        a["page_nbytes"], a["value_page_nbytes"] = self._page_nbytes(heads)
        a["record_nbytes"] = self.format.record_nbytes(heads.head_dim)
        a["value_record_nbytes"] = self.format.record_nbytes(heads.value_width)

    def copy(self, copies: Iterable[Copy]) -> None:
        """Copy the first slots of pages to other pages, in order, in every layer."""
        for source, target, n_slots in copies:
            n_records = -(-n_slots // RECORD_KEYS)
            for records in self._records:
                records[target, :, :n_records] = records[source, :, :n_records]

    def _page_nbytes(self, heads: Heads) -> tuple[int, int]:
        """Return the bytes of a page of keys, and of one of values."""
        records = heads.n_kv_heads * self.page_size // RECORD_KEYS
        widths = (heads.head_dim, heads.value_width)
        k, v = (records * self.format.record_nbytes(width) for width in widths)
        return k, v


def _reserve(nbytes: int) -> mmap.mmap:
    try:
        return mmap.mmap(-1, max(nbytes, 1))
    except (OSError, ValueError, OverflowError) as error:
        raise ResourceError(
            f"the KV cache needs {nbytes / 2**20:.0f} MiB of memory, which this machine refuses: "
            f"{error}. Use a smaller --ctx or --kv-type q8_0."
        ) from error


class PageTables:
    """Page tables of the open sequences as i64 arrays that kernels read by address."""

    def __init__(self, cache: KVCache) -> None:
        """Start without sequences."""
        self._cache = cache
        self._width = -(-cache.context // cache.page_size)
        self._tables: dict[int, np.ndarray] = {}

    def address(self, sequence: int) -> int:
        """Return the address of a sequence's page table, brought up to date."""
        pages = self._cache.page_table(sequence)
        table = self._tables.get(sequence)
        if table is None:
            table = self._tables[sequence] = np.zeros(self._width, np.int64)
        table[: len(pages)] = pages
        return int(table.ctypes.data)
