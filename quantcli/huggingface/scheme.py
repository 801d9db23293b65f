"""The three Hugging Face formats of quantized linears: tensors, configuration, and their limits."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from quantcli import __version__
from quantcli.checkpoint.safetensors_write import OutTensor
from quantcli.errors import ShapeError, UnknownName, UsageError
from quantcli.formats import F32
from quantcli.huggingface.packing import pack, pack_awq, pack_first
from quantcli.huggingface.rows import unpermuted
from quantcli.qtensor import U8

I32 = npt.NDArray[np.int32]
FORMATS = ("gptq", "awq", "compressed-tensors")
# What vLLM's Marlin kernels take, vllm/model_executor/layers/quantization/utils/marlin_utils.py.
MARLIN_GROUPS = (-1, 32, 64, 128)
MARLIN_OUT, MARLIN_IN = 64, 128
# Linears that vLLM joins to one, which must then be quantized alike, or not at all.
FUSED = (("attn_q", "attn_k", "attn_v"), ("ffn_gate", "ffn_up"))


@dataclass(frozen=True, slots=True)
class QuantizedLinear:
    """The integers of one linear. Rows are in the order of the GGUF tensor.

    codes    u8 (n_out, n_in)
    scales   f32 (n_out, n_groups), each one that the scheme's dtype holds exactly
    zeros    u8 (n_out, n_groups), or None where all are half the range
    g_idx    i32 (n_in): the group of each input, or None where inputs are in order
    """

    codes: U8
    scales: F32
    zeros: U8 | None = None
    g_idx: I32 | None = None

    def unpermuted(self, head: int) -> QuantizedLinear:
        """Return it with rows in Hugging Face's order, from pairs to halves of each head."""
        zeros = None if self.zeros is None else unpermuted(self.zeros, head)
        codes, scales = unpermuted(self.codes, head), unpermuted(self.scales, head)
        return QuantizedLinear(codes, scales, zeros, self.g_idx)


@dataclass(frozen=True, slots=True)
class ExportScheme:
    """How linears are stored.

    format       one of FORMATS
    bits         4 or 8
    group        inputs that share a scale; -1 for all of a row
    symmetric    whether zeros are all half the range
    act_order    whether inputs lie in groups out of order: a g_idx is stored
    scale_dtype  F16 or BF16, which is the model's dtype then, too
    """

    format: str
    bits: int = 4
    group: int = 128
    symmetric: bool = True
    act_order: bool = False
    scale_dtype: str = "F16"

    def __post_init__(self) -> None:
        """Refuse what the format has no place for (UsageError)."""
        if self.format not in FORMATS:
            raise UnknownName("export format", self.format, FORMATS)
        allowed = (4,) if self.format == "awq" else (4, 8)
        if self.bits not in allowed:
            raise UsageError(
                f"{self.format} with {self.bits} bits; it must be {' or '.join(map(str, allowed))}."
            )
        if self.act_order and self.format == "awq":
            raise UsageError("awq has no order of inputs; use gptq or compressed-tensors.")
        if self.group < 1 and self.group != -1:
            raise UsageError(f"a group of {self.group} inputs; it must be above 0, or -1 for all.")
        if self.scale_dtype != "F16" and self.format != "compressed-tensors":
            raise UsageError(f"{self.format} has scales in F16; use compressed-tensors for BF16.")

    @property
    def half(self) -> int:
        """Half the range of codes."""
        return 1 << (self.bits - 1)

    def n_groups(self, n_in: int) -> int:
        """Return the groups of a row."""
        return 1 if self.group == -1 else n_in // self.group

    def tensors(self, base: str, n_out: int, n_in: int) -> list[OutTensor]:
        """Return what is stored for a linear; `base` is its module's name."""
        per_word, groups = 32 // self.bits, self.n_groups(n_in)
        if self.format == "awq":
            return [
                OutTensor(f"{base}.qweight", "I32", (n_in, n_out // 8)),
                OutTensor(f"{base}.qzeros", "I32", (groups, n_out // 8)),
                OutTensor(f"{base}.scales", "F16", (groups, n_out)),
            ]
        if self.format == "gptq":
            return [
                OutTensor(f"{base}.qweight", "I32", (n_in // per_word, n_out)),
                OutTensor(f"{base}.qzeros", "I32", (groups, n_out // per_word)),
                OutTensor(f"{base}.scales", "F16", (groups, n_out)),
                OutTensor(f"{base}.g_idx", "I32", (n_in,)),
            ]
        found = [
            OutTensor(f"{base}.weight_packed", "I32", (n_out, -(-n_in // per_word))),
            OutTensor(f"{base}.weight_scale", self.scale_dtype, (n_out, groups)),
            OutTensor(f"{base}.weight_shape", "I64", (2,)),
        ]
        if not self.symmetric:
            shape = (-(-n_out // per_word), groups)
            found.append(OutTensor(f"{base}.weight_zero_point", "I32", shape))
        if self.act_order:
            found.append(OutTensor(f"{base}.weight_g_idx", "I32", (n_in,)))
        return found

    def arrays(self, linear: QuantizedLinear) -> list[np.ndarray]:
        """Return a linear's arrays in the order of `tensors`; bf16 as its bits."""
        n_out, n_in = linear.codes.shape
        groups = self.n_groups(n_in)
        assert linear.scales.shape == (n_out, groups), (linear.scales.shape, n_out, groups)
        assert (linear.zeros is None) == self.symmetric, "zeros, but the scheme has none"
        zeros = linear.zeros
        if zeros is None:
            zeros = np.full((n_out, groups), self.half, np.uint8)
        in_order = np.arange(n_in, dtype=np.int32) // np.int32(n_in if groups == 1 else self.group)
        g_idx = in_order if linear.g_idx is None else linear.g_idx.astype(np.int32)
        assert self.act_order or np.array_equal(g_idx, in_order), "inputs out of order"
        scales = self._scales(linear.scales)
        if self.format == "awq":
            return [pack_awq(_t(linear.codes)), pack_awq(_t(zeros)), _t(scales)]
        if self.format == "gptq":
            assert int(zeros.min()) >= 1, "version 1 stores zeros less one"
            qweight = pack_first(_t(linear.codes), self.bits)
            return [qweight, pack(_t(zeros) - np.uint8(1), self.bits), _t(scales), g_idx]
        found = [pack(linear.codes, self.bits), scales, np.array([n_out, n_in], np.int64)]
        if not self.symmetric:
            found.append(pack_first(zeros, self.bits))
        return [*found, g_idx] if self.act_order else found

    def _scales(self, scales: F32) -> np.ndarray:
        """Return scales as they are stored, refusing any that would be rounded."""
        if self.scale_dtype == "F16":
            stored = scales.astype(np.float16)
            assert np.array_equal(stored.astype(np.float32), scales), "scales that f16 rounds"
            return stored
        bits = np.ascontiguousarray(scales, np.float32).view(np.uint32)
        assert not (bits & 0xFFFF).any(), "scales that bf16 rounds"
        return (bits >> 16).astype(np.uint16)

    def config(self, skipped: Sequence[str]) -> dict[str, object]:
        """Return quantization_config for config.json.

        skipped   modules that are linears and stay as they are
        """
        if self.format == "gptq":
            return self._gptq_config(skipped)
        if self.format == "awq":
            more = [name for name in skipped if name != "lm_head"]
            return {
                "quant_method": "awq",
                "bits": self.bits,
                "group_size": self.group,
                "zero_point": True,
                "version": "gemm",
                "modules_to_not_convert": more or None,
            }
        weights = {
            "num_bits": self.bits,
            "type": "int",
            "symmetric": self.symmetric,
            "strategy": "channel" if self.group == -1 else "group",
            "group_size": None if self.group == -1 else self.group,
            "dynamic": False,
            "actorder": "group" if self.act_order else None,
            "observer": "minmax",
            "observer_kwargs": {},
            "block_structure": None,
        }
        group = {
            "targets": ["Linear"],
            "weights": weights,
            "input_activations": None,
            "output_activations": None,
        }
        return {
            "quant_method": "compressed-tensors",
            "format": "pack-quantized",
            "quantization_status": "compressed",
            "config_groups": {"group_0": group},
            "ignore": list(skipped),
            "kv_cache_scheme": None,
            "global_compression_ratio": None,
        }

    def _gptq_config(self, skipped: Sequence[str]) -> dict[str, object]:
        found: dict[str, object] = {
            "quant_method": "gptq",
            "bits": self.bits,
            "group_size": self.group,
            "desc_act": self.act_order,
            "sym": self.symmetric,
            "lm_head": False,
            "true_sequential": True,
            "static_groups": False,
            "damp_percent": 0.01,
            "checkpoint_format": "gptq",
            "pack_dtype": "int32",
            "meta": {"quantizer": [f"quantcli:{__version__}"]},
        }
        more = [name for name in skipped if name != "lm_head"]
        if more:
            found["dynamic"] = {f"-:^{name.replace('.', '[.]')}$": {} for name in more}
        return found


def problems(scheme: ExportScheme, shapes: Mapping[str, tuple[int, int]]) -> list[str]:
    """Return what vLLM will refuse or run slowly, one sentence each; to be said before work starts.

    shapes   (n_out, n_in) of the linears to be quantized, by GGUF name

    Raises ShapeError for a shape that the format itself cannot hold.
    """
    for name, (n_out, n_in) in shapes.items():
        _require_fit(scheme, name, n_out, n_in)
    return [*_kernel_problems(scheme, shapes), *_fusion_problems(shapes)]


def _require_fit(scheme: ExportScheme, name: str, n_out: int, n_in: int) -> None:
    per_word = 32 // scheme.bits
    needs: list[tuple[str, int, int]] = []
    if scheme.group != -1:
        needs.append(("inputs", n_in, scheme.group))
    if scheme.format == "gptq":
        needs += [("inputs", n_in, per_word), ("outputs", n_out, per_word)]
    if scheme.format == "awq":
        needs.append(("outputs", n_out, 8))
    for what, n, multiple in needs:
        if n % multiple:
            raise ShapeError(
                f"{name} has {n} {what}; {scheme.format} in groups of {scheme.group} needs a "
                f"multiple of {multiple}."
            )


def _kernel_problems(scheme: ExportScheme, shapes: Mapping[str, tuple[int, int]]) -> Iterator[str]:
    if scheme.group not in MARLIN_GROUPS:
        yield (
            f"groups of {scheme.group} are none of vLLM's fast kernels; those take "
            f"{', '.join(map(str, MARLIN_GROUPS))}."
        )
    if scheme.format == "gptq" and not scheme.symmetric:
        yield (
            "asymmetric GPTQ is none of vLLM's fast kernels; make it symmetric, or use "
            "compressed-tensors."
        )
    narrow = [f"{name} ({n_out} x {n_in})" for name, (n_out, n_in) in shapes.items()
              if n_out % MARLIN_OUT or n_in % MARLIN_IN]  # fmt: skip
    if narrow:
        more = f" and {len(narrow) - 1} more" if len(narrow) > 1 else ""
        yield (
            f"{narrow[0]}{more}: vLLM's fast kernels need outputs in multiples of {MARLIN_OUT} and "
            f"inputs of {MARLIN_IN}."
        )


def _fusion_problems(shapes: Mapping[str, tuple[int, int]]) -> Iterator[str]:
    layers: dict[str, set[str]] = {}
    for name in shapes:
        layer, _, part = name.removesuffix(".weight").rpartition(".")
        layers.setdefault(layer, set()).add(part)
    for layer, parts in layers.items():
        for group in FUSED:
            left = [part for part in group if part not in parts]
            if left and len(left) < len(group):
                yield (
                    f"{layer}.{left[0]} is not quantized, but others of {', '.join(group)} are; "
                    "vLLM joins them and refuses that."
                )


def _t(values: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(values.T)
