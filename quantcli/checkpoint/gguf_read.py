"""Read the head of one GGUF file: header, metadata and tensor table, each size checked.

Nothing here trusts the file: a count is held against the bytes that are left before anything is
allocated for it, and Python's unbounded integers make overflow impossible.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import pairwise
from math import prod

from quantcli import catalog
from quantcli.checkpoint import gguf_layout as layout
from quantcli.checkpoint.cursor import Cursor
from quantcli.checkpoint.gguf_layout import GGUFError, quoted
from quantcli.checkpoint.metadata import Array, BadText, Entry, Metadata
from quantcli.checkpoint.positional import PositionalFile
from quantcli.checkpoint.sniff import SNIFF_NBYTES, looks_like


@dataclass(frozen=True, slots=True)
class RawTensor:
    """One row of the tensor table: sizes agree with its type, its bytes with the file.

    dims    in the file's order: the contiguous axis first
    offset  byte of the file where it starts
    at      byte of the file where its row of the table starts
    """

    name: str
    dims: tuple[int, ...]
    type_id: int
    nbytes: int
    offset: int
    at: int


@dataclass(frozen=True, slots=True)
class Head:
    """What the head of one file says.

    end  byte where the last tensor ends, padding included; bytes after it mean nothing
    """

    metadata: Metadata
    tensors: tuple[RawTensor, ...]
    end: int


def read_head(file: PositionalFile) -> Head:
    """Read and check the head of a file; raises GGUFError for whatever is wrong with it."""
    cursor = Cursor(file)
    n_tensors, n_keys = _read_header(cursor)
    metadata = _read_metadata(cursor, n_keys)
    tensors = [_read_tensor(cursor, i) for i in range(n_tensors)]
    _require_unique(cursor, tensors)
    return _place(cursor, metadata, tensors)


def _read_header(cursor: Cursor) -> tuple[int, int]:
    """Check magic and version; return the numbers of tensors and keys."""
    file = cursor.file
    if file.nbytes == 0:
        raise GGUFError(file.path, "the file", "empty", "a GGUF file: fetch it again")
    head = file.read(min(SNIFF_NBYTES, file.nbytes), 0)
    if not head.startswith(layout.MAGIC):
        found = looks_like(head)
        got = f"{head[:4]!r}" + (f" as in {found[0]}" if found else "")
        allowed = f"{layout.MAGIC!r}" + (f": {found[1]}" if found else "")
        raise cursor.error("the magic number", got, allowed, 0)
    cursor.take(len(layout.MAGIC), "the magic number")
    version = cursor.u32("the version")
    big_endian = int.from_bytes(version.to_bytes(4, "little"), "big")
    if big_endian in layout.VERSIONS:
        allowed = "little-endian: convert the model for this machine"
        raise cursor.error("the version", f"{big_endian}, big-endian", allowed, 4)
    if version not in layout.VERSIONS:
        allowed = " or ".join(map(str, layout.VERSIONS)) + ": convert the model again"
        raise cursor.error("the version", version, allowed, 4)
    tensor_nbytes = layout.MIN_TENSOR_ENTRY_NBYTES
    n_tensors = cursor.count("the number of tensors", layout.MAX_TENSORS, tensor_nbytes)
    n_keys = cursor.count("the number of keys", layout.MAX_KEYS, layout.MIN_KEY_ENTRY_NBYTES)
    return n_tensors, n_keys


def _read_metadata(cursor: Cursor, n_keys: int) -> Metadata:
    entries: dict[str, Entry] = {}
    for i in range(n_keys):
        at = cursor.pos
        key = _read_name(cursor, f"key {i}", layout.MAX_KEY_NBYTES)
        if key in entries:
            raise cursor.error(f"key {i}", f"{quoted(key)} a second time", "unique", at)
        entries[key] = _read_entry(cursor, f"the value of key {quoted(key)}")
    return Metadata(cursor.file.path, cursor.data[: cursor.pos], entries)


def _read_name(cursor: Cursor, what: str, limit: int) -> str:
    at = cursor.pos
    raw = cursor.bytes(what, limit)
    allowed = "printable UTF-8 of at least one character"
    try:
        name = raw.decode()
    except UnicodeDecodeError as error:
        raise cursor.error(what, quoted(raw), allowed, at) from error
    if not name or not name.isprintable():
        raise cursor.error(what, quoted(name), allowed, at)
    return name


def _read_entry(cursor: Cursor, what: str) -> Entry:
    at = cursor.pos
    type_id = cursor.u32(f"the type of {what}")
    if type_id == layout.ARRAY:
        return _read_array(cursor, what)
    if type_id == layout.STRING:
        raw = cursor.bytes(what, layout.MAX_STRING_NBYTES)
        return Entry(type_id, cursor.pos - len(raw), _text(raw))
    scalar = layout.SCALARS.get(type_id)
    if scalar is None:
        raise cursor.error(f"the type of {what}", type_id, "from 0 to 12", at)
    at = cursor.take(scalar.code.size, what)
    (value,) = scalar.code.unpack_from(cursor.data, at)
    if type_id == layout.BOOL:
        if value > 1:
            raise cursor.error(what, value, "0 or 1, as it is a bool", at)
        value = bool(value)
    return Entry(type_id, at, value)


def _text(raw: bytes) -> str | BadText:
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return BadText(raw)


def _read_array(cursor: Cursor, what: str) -> Entry:
    at = cursor.pos
    item = cursor.u32(f"the item type of {what}")
    of = f"the number of items in {what}"
    if item == layout.STRING:
        n = cursor.count(of, layout.MAX_STRINGS - cursor.n_strings, 8)
        cursor.n_strings += n
        start = cursor.pos
        return Entry(layout.ARRAY, start, Array(item, n, cursor.strings(n, what)))
    scalar = layout.SCALARS.get(item)
    if scalar is None:
        got = f"{item}, an array" if item == layout.ARRAY else item
        allowed = "from 0 to 12 but not 9, as arrays do not nest"
        raise cursor.error(f"the item type of {what}", got, allowed, at)
    n = cursor.count(of, layout.MAX_ITEMS, scalar.code.size)
    start = cursor.take(n * scalar.code.size, what)
    if item == layout.BOOL:
        bad = cursor.data[start : start + n].translate(None, b"\0\1")
        if bad:
            raise cursor.error(f"an item of {what}", bad[0], "0 or 1, as it is a bool", start)
    return Entry(layout.ARRAY, start, Array(item, n))


def _read_tensor(cursor: Cursor, i: int) -> RawTensor:
    """Read one row of the tensor table; its offset is still relative to the data."""
    at = cursor.pos
    name = _read_name(cursor, f"the name of tensor {i}", layout.MAX_NAME_NBYTES)
    if "/" in name or "\\" in name:
        raise cursor.error(f"the name of tensor {i}", quoted(name), "free of / and \\", at)
    what = f"tensor {quoted(name)}"
    n_dims_at = cursor.pos
    n_dims = cursor.u32(f"the number of dimensions of {what}")
    if not 1 <= n_dims <= layout.MAX_DIMS:
        allowed = f"from 1 to {layout.MAX_DIMS}"
        raise cursor.error(f"the number of dimensions of {what}", n_dims, allowed, n_dims_at)
    dims = tuple(_read_dim(cursor, f"dimension {d} of {what}") for d in range(n_dims))
    type_at = cursor.pos
    type_id = cursor.u32(f"the type of {what}")
    offset = cursor.u64(f"the offset of {what}")
    known = layout.TENSOR_TYPES.get(type_id)
    if known is None:
        removed = layout.REMOVED_TENSOR_TYPES.get(type_id)
        got = f"{type_id}, " + (f"the removed {removed}" if removed else "unknown")
        allowed = f"one that quantcli decodes: {', '.join(catalog.names('format'))}"
        raise cursor.error(f"the type of {what}", got, allowed, type_at)
    if dims[0] % known.weights_per_block:
        allowed = f"a multiple of {known.weights_per_block}, the {known.name} block"
        raise cursor.error(f"the row length of {what}", dims[0], allowed, n_dims_at + 4)
    nbytes = prod(dims) // known.weights_per_block * known.block_nbytes
    if nbytes >= 1 << 63:
        raise cursor.error(f"the size of {what}", f"{nbytes} bytes", "below 2**63", at)
    return RawTensor(name, dims, type_id, nbytes, offset, at)


def _read_dim(cursor: Cursor, what: str) -> int:
    at = cursor.pos
    n = cursor.u64(what)
    # Sizes beyond the file are refused when tensors are placed; this is what i64 can hold.
    if not 1 <= n < 1 << 63:
        raise cursor.error(what, n, f"from 1 to {(1 << 63) - 1}", at)
    return n


def _require_unique(cursor: Cursor, tensors: list[RawTensor]) -> None:
    seen: set[str] = set()
    for i, tensor in enumerate(tensors):
        if tensor.name in seen:
            got = f"{quoted(tensor.name)} a second time"
            raise cursor.error(f"the name of tensor {i}", got, "unique", tensor.at)
        seen.add(tensor.name)


def _place(cursor: Cursor, metadata: Metadata, tensors: list[RawTensor]) -> Head:
    """Check that each tensor's bytes are in the file and its own; make offsets absolute."""
    alignment = _alignment(cursor, metadata)
    base = -(-cursor.pos // alignment) * alignment
    placed = []
    for tensor in tensors:
        what = f"the offset of tensor {quoted(tensor.name)}"
        if tensor.offset % alignment:
            allowed = f"a multiple of {alignment}, the alignment"
            raise cursor.error(what, tensor.offset, allowed, tensor.at)
        if tensor.offset + tensor.nbytes >= 1 << 64:
            allowed = f"below {(1 << 64) - tensor.nbytes}, for the tensor to end below 2**64"
            raise cursor.error(what, tensor.offset, allowed, tensor.at)
        placed.append(replace(tensor, offset=base + tensor.offset))
    by_offset = sorted(placed, key=lambda tensor: tensor.offset)
    _require_room(cursor, by_offset)
    stop = by_offset[-1].offset + by_offset[-1].nbytes if by_offset else cursor.pos
    return Head(metadata, tuple(placed), -(-stop // alignment) * alignment)


def _require_room(cursor: Cursor, by_offset: list[RawTensor]) -> None:
    """Refuse a tensor that ends past the file, and two that share bytes."""
    size = cursor.file.nbytes
    if by_offset:
        last = max(by_offset, key=lambda tensor: tensor.offset + tensor.nbytes)
        stop = last.offset + last.nbytes
        if stop > size:
            got = f"{size} bytes long"
            allowed = (
                f"at least {stop}, as tensor {quoted(last.name)}, listed at byte {last.at}, takes "
                f"{last.nbytes} bytes from {last.offset}: the download is incomplete; fetch it "
                f"again"
            )
            raise cursor.error("the file", got, allowed, None)
    for before, after in pairwise(by_offset):
        stop = before.offset + before.nbytes
        if after.offset < stop:
            what = f"the start of tensor {quoted(after.name)}"
            allowed = f"at least {stop}, where tensor {quoted(before.name)} ends"
            raise cursor.error(what, f"byte {after.offset}", allowed, after.at)


def _alignment(cursor: Cursor, metadata: Metadata) -> int:
    key = "general.alignment"
    if key not in metadata:
        return layout.DEFAULT_ALIGNMENT
    kind, value, at = metadata.type_name(key), metadata[key], metadata.offset(key)
    if kind != "u32" or not isinstance(value, int):
        raise cursor.error(f"the type of key {key!r}", kind, "u32", at)
    if not 1 <= value <= layout.MAX_ALIGNMENT or value & (value - 1):
        allowed = f"a power of two up to {layout.MAX_ALIGNMENT}"
        raise cursor.error(f"the value of key {key!r}", value, allowed, at)
    return value
