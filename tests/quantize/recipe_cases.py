"""Models whose mixes are compared with llama.cpp's, and the mixes."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from quantcli.formats import BlockFormat, get
from quantcli.quantize.mixes import MIXES

# Ours alone: llama.cpp has no file type of this name.
THEIRS = tuple(row.name for row in MIXES if row.name != "mxfp4")


@dataclass(frozen=True)
class Case:
    """A model as far as its shape decides about formats.

    width, d_ff   row lengths of the matrices that read the residual stream, and of ffn_down
    fused         whether q, k and v are one matrix
    """

    arch: str
    n_layers: int
    n_heads: int = 4
    n_kv_heads: int = 4
    n_experts: int = 0
    tied: bool = False
    width: int = 256
    d_ff: int = 512
    fused: bool = False

    def tensors(self) -> dict[str, tuple[int, ...]]:
        """Return shapes (n_out, n_in) by name; there are as few rows as a matrix can have."""
        wide, deep = (2, self.width), (2, self.d_ff)
        shapes: dict[str, tuple[int, ...]] = {"token_embd.weight": wide}
        if not self.tied:
            shapes["output.weight"] = wide
        shapes["output_norm.weight"] = (self.width,)
        qkv = ("attn_qkv",) if self.fused else ("attn_q", "attn_k", "attn_v")
        for i in range(self.n_layers):
            layer = {f"{name}.weight": wide for name in (*qkv, "attn_output")}
            layer["attn_norm.weight"] = (self.width,)
            if self.n_experts:
                layer["ffn_gate_inp.weight"] = wide
                layer["ffn_gate_exps.weight"] = (self.n_experts, *wide)
                layer["ffn_up_exps.weight"] = (self.n_experts, *wide)
                layer["ffn_down_exps.weight"] = (self.n_experts, *deep)
            else:
                layer |= {"ffn_gate.weight": wide, "ffn_up.weight": wide, "ffn_down.weight": deep}
            shapes |= {f"blk.{i}.{name}": shape for name, shape in layer.items()}
        return shapes

    def metadata(self) -> dict[str, str | int | float]:
        """Return the keys that llama.cpp asks for."""
        keys: dict[str, int | float] = {
            "context_length": 128,
            "embedding_length": self.width,
            "block_count": self.n_layers,
            "feed_forward_length": self.d_ff,
            "attention.head_count": self.n_heads,
            "attention.head_count_kv": self.n_kv_heads,
            "rope.dimension_count": self.width // self.n_heads,
            "attention.layer_norm_rms_epsilon": 1e-5,
        }
        if self.n_experts:
            keys |= {"expert_count": self.n_experts, "expert_used_count": 2}
        return {
            "general.architecture": self.arch,
            **{f"{self.arch}.{key}": value for key, value in keys.items()},
        }


@dataclass(frozen=True)
class Stored:
    """A tensor of a source."""

    shape: tuple[int, ...]
    format: BlockFormat


def stored(case: Case) -> dict[str, Stored]:
    """Return a case's tensors as the script writes them: matrices in F16, vectors in F32."""
    return {
        name: Stored(shape, get("f16" if len(shape) > 1 else "f32"))
        for name, shape in case.tensors().items()
    }


def zeros(shape: tuple[int, ...]) -> np.ndarray:
    """Return a tensor's values in its type."""
    return np.zeros(shape, np.float16 if len(shape) > 1 else np.float32)


CASES = {
    "llama_32": Case("llama", 32),
    "llama_36_tied": Case("llama", 36, n_heads=8, n_kv_heads=4, tied=True),
    "llama_30_gqa4": Case("llama", 30, n_heads=8, n_kv_heads=2),
    "llama_5_gqa8_tied": Case("llama", 5, n_heads=8, n_kv_heads=1, tied=True),
    "llama_70b": Case("llama", 80, n_heads=16, n_kv_heads=2),
    "llama_65b": Case("llama", 80),
    "qwen2_80": Case("qwen2", 80, n_heads=8, n_kv_heads=2),
    "qwen3_28_tied": Case("qwen3", 28, n_heads=4, n_kv_heads=2, tied=True),
    "gemma3_26_tied": Case("gemma3", 26, n_heads=4, n_kv_heads=1, tied=True),
    "mixtral_32": Case("llama", 32, n_heads=8, n_kv_heads=2, n_experts=8),
    "experts_16": Case("llama", 24, n_heads=4, n_kv_heads=4, n_experts=16),
    "width_576": Case("llama", 30, n_heads=9, n_kv_heads=3, tied=True, width=576, d_ff=1536),
    "width_896": Case("qwen2", 24, n_heads=14, n_kv_heads=2, width=896, d_ff=4864),
    "width_40": Case("llama", 3, n_heads=4, n_kv_heads=4, width=40, d_ff=160),
    "phi3_32_fused": Case("phi3", 32, n_heads=4, n_kv_heads=4, fused=True),
}
# Options of llama-quantize, for one model.
OPTIONS_CASE = "llama_36_tied"
OPTIONS = {
    "pure": ["--pure"],
    "output": ["--output-tensor-type", "q5_k"],
    "embedding": ["--token-embedding-type", "q8_0"],
    "both": ["--output-tensor-type", "q4_k", "--token-embedding-type", "q3_k"],
    "ffn": ["--tensor-type", "ffn_up=q8_0", "--tensor-type", "ffn_(gate|up)=q3_k"],
}
