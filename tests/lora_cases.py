"""Random LoRA adapters for tiny models: as GGUF files, and merged into the weights of a copy."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from gguf import GGUFWriter
from reference_model import logits
from tiny import Tiny, add_value, add_weight

from quantcli import formats
from quantcli.checkpoint import open_checkpoint
from quantcli.formats import F32
from quantcli.runtime.adapters import with_adapters
from quantcli.runtime.reference import ReferenceExecutor
from quantcli.runtime.sizing import size_model

MATRICES = (
    "attn_q", "attn_k", "attn_v", "attn_qkv", "attn_output", "ffn_gate", "ffn_up", "ffn_down",
    "attn_q_a", "attn_q_b", "attn_kv_a_mqa",
    "ffn_gate_inp", "ffn_gate_exps", "ffn_up_exps", "ffn_down_exps",
    "ffn_gate_shexp", "ffn_up_shexp", "ffn_down_shexp", "ffn_gate_inp_shexp",
)  # fmt: skip


@dataclass(frozen=True)
class Lora:
    """What an adapter is like.

    targets       parts of a layer, and names of tensors outside of layers
    weight_format of A and B; where a row is no whole blocks, f16
    alpha         None leaves the key out
    """

    rank: int = 4
    alpha: float | None = 8.0
    targets: tuple[str, ...] = MATRICES
    weight_format: str = "f32"
    seed: int = 100

    def matrices(self, tiny: Tiny) -> dict[str, F32]:
        """Return A and B of every target that a model has, under their names."""
        random = np.random.RandomState(self.seed)
        found: dict[str, F32] = {}
        for name, shape in tiny.shapes().items():
            part = name.split(".")[2] if name.startswith("blk.") else name
            if part not in self.targets or not name.endswith("weight"):
                continue
            shape = shape if len(shape) > 1 else (1, *shape)
            n_out, n_in = shape[-2:]
            a_shape, b_shape = (*shape[:-2], self.rank, n_in), (*shape[:-1], self.rank)
            if name == "token_embd.weight":
                a_shape, b_shape = (n_out, self.rank), (n_in, self.rank)
            strength = 0.25 if "embd" in name or name.startswith("output") else 1 / math.sqrt(n_in)
            a = random.standard_normal(a_shape).astype(np.float32)
            b = random.standard_normal(b_shape).astype(np.float32)
            found[f"{name}.lora_a"] = a
            found[f"{name}.lora_b"] = b * np.float32(0.3 * strength / math.sqrt(self.rank))
        return found

    @property
    def factor(self) -> float:
        """What B A is multiplied by, before the user's scale."""
        return self.alpha / self.rank if self.alpha else 1.0


def keys(arch: str, alpha: float | None) -> dict[str, object]:
    """Return the metadata of an adapter."""
    found: dict[str, object] = {"general.type": "adapter", "adapter.type": "lora"}
    return found if alpha is None else found | {"adapter.lora.alpha": float(alpha)}


def write_adapter(path: Path, tiny: Tiny, lora: Lora) -> Path:
    """Write an adapter for a tiny model."""
    return write_pairs(
        path, tiny.arch, lora.matrices(tiny), keys(tiny.arch, lora.alpha), lora.weight_format
    )


def write_pairs(
    path: Path,
    arch: str,
    matrices: Mapping[str, F32],
    metadata: Mapping[str, object],
    weight_format: str = "f32",
) -> Path:
    """Write a GGUF file of an architecture with any tensors and keys."""
    writer = GGUFWriter(path, arch)
    for key, value in metadata.items():
        add_value(writer, key, value)
    for name, matrix in matrices.items():
        fmt = formats.get(weight_format)
        fmt = formats.get("f16") if matrix.shape[-1] % fmt.weights_per_block else fmt
        add_weight(writer, name, matrix, fmt, np.random.RandomState(0))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def delta(matrices: Mapping[str, F32], target: str) -> F32:
    """Return B A of a target in the shape of its matrix; of an embedding, A B^T."""
    a, b = (np.float64(matrices[f"{target}.lora_{x}"]) for x in "ab")
    product = a @ b.T if target == "token_embd.weight" else b @ a
    return product.astype(np.float32)


@dataclass(frozen=True)
class Merged(Tiny):
    """A model whose weights have adapters added: (adapter, the user's scale)."""

    loras: tuple[tuple[Lora, float], ...] = ()

    def weights(self) -> dict[str, F32]:
        """Return every tensor in f32."""
        found = super().weights()
        for lora, scale in self.loras:
            matrices = lora.matrices(self)
            for name in [name.removesuffix(".lora_a") for name in matrices if name[-1] == "a"]:
                change = np.float32(lora.factor * scale) * delta(matrices, name)
                found[name] = found[name] + change.reshape(found[name].shape)
        return found


def merged(tiny: Tiny, *loras: tuple[Lora, float]) -> Merged:
    """Return a tiny model with adapters merged into it."""
    fields = {name: getattr(tiny, name) for name in tiny.__dataclass_fields__}
    return Merged(**fields, loras=loras)


@dataclass(frozen=True)
class Case:
    """A model and the adapters that it wears, each with the user's scale."""

    tiny: Tiny
    loras: tuple[tuple[Lora, float], ...]


def _case(arch: str, *loras: tuple[Lora, float], **options: object) -> Case:
    return Case(Tiny(arch, weight_format="f32", **options), loras)  # type: ignore[arg-type]


EMBEDDINGS = (*MATRICES, "token_embd.weight", "output.weight")
CASES = {
    "llama": _case("llama", (Lora(targets=EMBEDDINGS), 1.0), seed=201),
    "llama_two": _case(
        "llama",
        (Lora(rank=5, seed=101), 0.5),
        (Lora(rank=16, alpha=None, seed=102, targets=("attn_q", "ffn_down")), -0.75),
        seed=202,
        biases=True,
    ),
    "gemma3": _case("gemma3", (Lora(rank=8, alpha=16.0), 1.0), seed=203, n_layers=3),
    "phi3": _case("phi3", (Lora(rank=8), 1.5), seed=204),
    "phi2": _case("phi2", (Lora(rank=1), 0.5), seed=205, n_rot=16, n_kv_heads=4),
    "qwen3moe": _case("qwen3moe", (Lora(), 1.0), seed=206),
    "qwen2moe": _case("qwen2moe", (Lora(rank=6), 1.0), seed=207, biases=True),
    "granitemoe": _case("granitemoe", (Lora(), 1.0), seed=208),
}


def adapter_files(folder: Path, case: Case) -> list[tuple[Path, float]]:
    """Write a case's adapters; return their files and scales."""
    return [
        (write_adapter(folder / f"{number}.lora.gguf", case.tiny, lora), scale)
        for number, (lora, scale) in enumerate(case.loras)
    ]


def reference_logits(
    path: Path,
    adapters: list[tuple[Path, float]],
    tokens: list[int],
    rows: list[int],
    **options: object,
) -> F32:
    """Return the NumPy executor's logits of a model that wears adapters."""
    with with_adapters(open_checkpoint(path), adapters) as checkpoint:
        sizing = size_model(checkpoint, context=len(tokens))
        executor = ReferenceExecutor(
            sizing.plan,
            checkpoint.tensor,
            context=len(tokens),
            **options,  # type: ignore[arg-type]
        )
        return logits(executor, tokens, rows)
