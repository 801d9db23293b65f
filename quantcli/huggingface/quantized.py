"""Folders whose linear weights are packed integers: GPTQ, AWQ and compressed-tensors.

A weight is decoded as (code - zero) * scale, which f32 holds exactly for scales of 16 bits. One
weight is in memory at a time.

    GPTQ                 qweight i32 (n_in bits / 32, n_out), along n_in
                         qzeros  i32 (n_groups, n_out bits / 32), along n_out, one less in version 1
                         scales (n_groups, n_out), g_idx i32 (n_in)
    AWQ                  qweight i32 (n_in, n_out / 8), qzeros i32 (n_groups, n_out / 8), along
                         n_out in AWQ's order; scales (n_groups, n_out)
    compressed-tensors   weight_packed i32 (n_out, n_in bits / 32), along n_in, signed codes plus
                         half the range; weight_scale (n_out, n_groups); weight_zero_point packed
                         along n_out; weight_shape i64 (2)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from threading import Lock

import numpy as np
import numpy.typing as npt

from quantcli import formats
from quantcli.checkpoint.gguf_layout import quoted
from quantcli.checkpoint.safetensors import SafetensorsFiles, StoredTensor
from quantcli.errors import CheckpointError, UnsupportedModel
from quantcli.formats import F32, BlockFormat
from quantcli.huggingface.mxfp4 import mxfp4_rows
from quantcli.huggingface.packing import unpack, unpack_awq, unpack_first
from quantcli.huggingface.rows import FLOATS, RowSource, Stored
from quantcli.qtensor import U8

I64 = npt.NDArray[np.int64]
METHODS = ("gptq", "awq", "compressed-tensors", "mxfp4")
BITS = (2, 4, 8)
_STEP = 256  # inputs decoded at once


@dataclass(frozen=True, slots=True)
class Packed:
    """A linear weight as a format holds it, unpacked.

    codes    u8 (n_out, n_in)
    zeros    i32 (n_out, n_groups): what is subtracted from codes
    scales   f32 (n_out, n_groups)
    groups   i64 (n_in): the group of each input
    """

    codes: U8
    zeros: npt.NDArray[np.int32]
    scales: F32
    groups: I64

    def dequantize(self) -> F32:
        """Return (code - zero) * scale: f32 (n_out, n_in)."""
        weights = np.empty(self.codes.shape, np.float32)
        for start in range(0, self.groups.size, _STEP):
            part = slice(start, start + _STEP)
            group = self.groups[part]
            whole = (self.codes[:, part] - self.zeros[:, group]).astype(np.float32)
            weights[:, part] = whole * self.scales[:, group]
        return weights


class LastOne:
    """The weight that was unpacked last, kept for its next rows: only one is in memory."""

    def __init__(self) -> None:
        """Start with none."""
        self._lock = Lock()
        self._name = ""
        self._weights: F32 | None = None

    def get(self, name: str, load: Callable[[], Packed]) -> F32:
        """Return a weight, unpacked now or before."""
        with self._lock:
            if self._weights is None or self._name != name:
                self._weights = None  # before the next one is made
                self._name, self._weights = name, load().dequantize()
            return self._weights


@dataclass(frozen=True, slots=True)
class Decoded:
    """Rows of a weight that is unpacked as a whole, because rows lie across its words."""

    name: str
    shape: tuple[int, ...]
    load: Callable[[], Packed]
    last: LastOne
    unit: int = 1

    @property
    def format(self) -> BlockFormat:
        """Always f32."""
        return formats.get("f32")

    def read(self, row_start: int, row_stop: int) -> U8:
        """Return rows."""
        rows = self.last.get(self.name, self.load)[row_start:row_stop]
        return rows.astype("<f4").view(np.uint8).ravel()


@dataclass(frozen=True, slots=True)
class PackedRows:
    """Rows of a weight of compressed-tensors, each in words of its own."""

    load: Callable[[int, int], Packed]
    shape: tuple[int, ...]
    unit: int = 1

    @property
    def format(self) -> BlockFormat:
        """Always f32."""
        return formats.get("f32")

    def read(self, row_start: int, row_stop: int) -> U8:
        """Return rows."""
        weights = self.load(row_start, row_stop).dequantize()
        return weights.astype("<f4", copy=False).view(np.uint8).ravel()


@dataclass(frozen=True, slots=True)
class Parts:
    """The tensors of a folder, taken one by one by what makes weights of them."""

    files: SafetensorsFiles
    left: dict[str, StoredTensor]

    def take(
        self, name: str, shape: tuple[int | None, ...] | None = None, *dtypes: str
    ) -> StoredTensor:
        """Return a tensor of some shape (None is any size) and one of some dtypes.

        Raises CheckpointError if it is missing or another.
        """
        tensor = self.left.pop(name, None)
        if tensor is None:
            raise CheckpointError(f"has no tensor {quoted(name)}; the download is not complete.")
        if dtypes and tensor.dtype not in dtypes:
            wanted = " or ".join(dtypes)
            raise CheckpointError(f"tensor {quoted(name)} is {tensor.dtype}; it must be {wanted}.")
        fits = shape is None or (
            len(shape) == len(tensor.shape)
            and all(want in (None, n) for want, n in zip(shape, tensor.shape, strict=True))
        )
        if not fits:
            want = " x ".join("?" if n is None else str(n) for n in shape or ())
            raise CheckpointError(
                f"tensor {quoted(name)} has shape {list(tensor.shape)}; it must be {want}."
            )
        return tensor

    def maybe(self, name: str, shape: tuple[int | None, ...], *dtypes: str) -> StoredTensor | None:
        """Return a tensor as `take`, None if there is none."""
        return self.take(name, shape, *dtypes) if name in self.left else None

    def array(self, tensor: StoredTensor, start: int = 0, stop: int | None = None) -> np.ndarray:
        """Return rows of a tensor: floats as f32, integers as they are."""
        n = tensor.shape[0] if tensor.shape else 1
        stop = n if stop is None else stop
        row = tensor.nbytes // max(1, n)
        data = np.empty((stop - start) * row, np.uint8)
        self.files.read_into(tensor, data.data, start * row)
        shape = (stop - start, *tensor.shape[1:])
        if tensor.dtype in FLOATS:
            fmt = formats.get(FLOATS[tensor.dtype])
            return fmt.decode(data.view(fmt.block)).reshape(shape)
        return data.view({"I32": "<i4", "I64": "<i8", "I8": "<i1"}[tensor.dtype]).reshape(shape)


@dataclass(frozen=True, slots=True)
class Scheme:
    """What a folder's quantization_config says.

    n_group     inputs that share a scale; None for all of them
    version_2   whether GPTQ's zeros are stored as they are, rather than one less
    """

    method: str
    bits: int
    n_group: int | None
    symmetric: bool
    version_2: bool


def read_packed(files: SafetensorsFiles, table: Mapping[str, object]) -> dict[str, RowSource]:
    """Return the tensors of a folder by their names, packed ones as the floats they stand for.

    table   quantization_config, empty if there is none

    Raises UnsupportedModel for another way of packing, CheckpointError for parts that do not fit.
    """
    parts = Parts(files, dict(files.tensors))
    found: dict[str, RowSource] = {}
    if table.get("quant_method") == "mxfp4":
        found |= mxfp4_rows(files, parts.left)
    elif table:
        scheme = read_scheme(table)
        reader = {"gptq": _gptq, "awq": _awq}.get(scheme.method, _compressed)
        suffix = ".weight_packed" if reader is _compressed else ".qweight"
        last = LastOne()
        for name in [name for name in files.tensors if name.endswith(suffix)]:
            base = name.removesuffix(suffix)
            found[f"{base}.weight"] = reader(parts, scheme, base, last)
    return found | {name: Stored(files, tensor) for name, tensor in parts.left.items()}


def read_scheme(table: Mapping[str, object]) -> Scheme:
    """Read a quantization_config; raise UnsupportedModel for what quantcli does not read."""
    method = table.get("quant_method")
    if method not in METHODS:
        raise UnsupportedModel(
            f"config.json: quant_method is {str(method)[:40]!r}; quantcli reads "
            f"{', '.join(METHODS)}."
        )
    if method == "compressed-tensors":
        if table.get("format") != "pack-quantized":
            raise UnsupportedModel(
                f"config.json: the format of compressed-tensors is "
                f"{str(table.get('format'))[:40]!r}; quantcli reads pack-quantized."
            )
        return Scheme(method, 0, None, symmetric=True, version_2=False)
    bits = table.get("bits", table.get("w_bit"))
    group = table.get("group_size", table.get("q_group_size", 128))
    allowed = BITS if method == "gptq" else (4,)
    if bits not in allowed or not isinstance(group, int):
        raise UnsupportedModel(
            f"config.json: {method} with bits {bits!r} and group_size {group!r}; quantcli reads "
            f"{', '.join(map(str, allowed))} bits and any whole group_size."
        )
    version = str(table.get("version", "gemm")).lower()
    if method == "awq" and version != "gemm":
        raise UnsupportedModel(
            f"config.json: AWQ of version {version[:40]!r}; quantcli reads gemm."
        )
    return Scheme(
        method,
        bits,  # type: ignore[arg-type]
        group if group > 0 else None,
        symmetric=bool(table.get("sym", True)),
        version_2=table.get("checkpoint_format") == "gptq_v2",
    )


def _gptq(parts: Parts, scheme: Scheme, base: str, last: LastOne) -> RowSource:
    per_word = 32 // scheme.bits
    words = parts.take(f"{base}.qweight", (None, None), "I32")
    n_in, n_out = words.shape[0] * per_word, words.shape[1]
    scales = parts.take(f"{base}.scales", (None, n_out), *FLOATS)
    n_groups = scales.shape[0]
    zeros = parts.take(f"{base}.qzeros", (n_groups, -(-n_out // per_word)), "I32")
    order = parts.maybe(f"{base}.g_idx", (n_in,), "I32")
    _require_groups(base, scheme, n_in, n_groups)

    def load() -> Packed:
        stored = unpack(parts.array(zeros), scheme.bits, n_out).astype(np.int32)
        groups = _groups(n_in, n_groups, scheme.n_group)
        if order is not None:
            groups = parts.array(order).astype(np.int64)
            if groups.size and not 0 <= groups.min() <= groups.max() < n_groups:
                raise CheckpointError(
                    f"tensor {quoted(base + '.g_idx')} goes from {groups.min()} to {groups.max()}; "
                    f"there are {n_groups} groups."
                )
        return Packed(
            np.ascontiguousarray(unpack_first(parts.array(words), scheme.bits, n_in).T),
            np.ascontiguousarray((stored + _gptq_offset(stored, scheme)).T),
            np.ascontiguousarray(parts.array(scales).T),
            groups,
        )

    return Decoded(base, (n_out, n_in), load, last)


def _gptq_offset(stored: npt.NDArray[np.int32], scheme: Scheme) -> int:
    """Return what is added to stored zeros: 1 in version 1.

    Some programs say one version and write the other. A symmetric weight gives it away: its zeros
    are all half the range.
    """
    half = 1 << (scheme.bits - 1)
    if scheme.symmetric and (stored == half).all():
        return 0
    if scheme.symmetric and (stored == half - 1).all():
        return 1
    return 0 if scheme.version_2 else 1


def _awq(parts: Parts, scheme: Scheme, base: str, last: LastOne) -> RowSource:
    words = parts.take(f"{base}.qweight", (None, None), "I32")
    n_in, n_out = words.shape[0], words.shape[1] * 8
    scales = parts.take(f"{base}.scales", (None, n_out), *FLOATS)
    n_groups = scales.shape[0]
    zeros = parts.take(f"{base}.qzeros", (n_groups, n_out // 8), "I32")
    _require_groups(base, scheme, n_in, n_groups)

    def load() -> Packed:
        return Packed(
            np.ascontiguousarray(unpack_awq(parts.array(words), n_out).T),
            np.ascontiguousarray(unpack_awq(parts.array(zeros), n_out).astype(np.int32).T),
            np.ascontiguousarray(parts.array(scales).T),
            _groups(n_in, n_groups, scheme.n_group),
        )

    return Decoded(base, (n_out, n_in), load, last)


def _compressed(parts: Parts, scheme: Scheme, base: str, last: LastOne) -> RowSource:
    words = parts.take(f"{base}.weight_packed", (None, None), "I32")
    shape = parts.array(parts.take(f"{base}.weight_shape", (2,), "I64", "I32"))
    n_out, n_in = (int(n) for n in shape)
    bits = next((b for b in BITS if words.shape == (n_out, -(-n_in * b // 32))), None)
    if bits is None or n_in < 1:
        raise CheckpointError(
            f"tensor {quoted(base + '.weight_packed')} has shape {list(words.shape)}; a weight of "
            f"{n_out} x {n_in} has none like it in {', '.join(map(str, BITS))} bits."
        )
    scales = parts.take(f"{base}.weight_scale", (n_out, None), *FLOATS)
    n_groups = scales.shape[1]
    packed_zeros = (-(-n_out * bits // 32), n_groups)
    zeros = parts.maybe(f"{base}.weight_zero_point", packed_zeros, "I32")
    order = parts.maybe(f"{base}.weight_g_idx", (n_in,), "I32")
    if not 1 <= n_groups <= n_in:
        raise CheckpointError(f"{base} has {n_groups} groups for {n_in} inputs.")

    def load(row_start: int, row_stop: int) -> Packed:
        codes = unpack(parts.array(words, row_start, row_stop), bits, n_in)
        offsets = np.full((row_stop - row_start, n_groups), 1 << (bits - 1), np.int32)
        if zeros is not None:
            stored = unpack_first(parts.array(zeros), bits, n_out)
            offsets = stored[row_start:row_stop].astype(np.int32)
        groups = _groups(n_in, n_groups, None)
        if order is not None and (listed := parts.array(order)).min() >= 0:
            groups = np.minimum(listed, n_groups - 1).astype(np.int64)
        return Packed(codes, offsets, parts.array(scales, row_start, row_stop), groups)

    return PackedRows(load, (n_out, n_in))


def _groups(n_in: int, n_groups: int, n_group: int | None) -> I64:
    """Return the group of each input where inputs are in order."""
    return np.arange(n_in) // (n_group or -(-n_in // n_groups))


def _require_groups(base: str, scheme: Scheme, n_in: int, n_groups: int) -> None:
    want = -(-n_in // (scheme.n_group or n_in)) if n_in else 0
    if n_groups != want:
        raise CheckpointError(
            f"{base} has {n_groups} groups; {n_in} inputs in groups of {scheme.n_group or n_in} "
            f"make {want}."
        )
