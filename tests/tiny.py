"""Random tiny models as GGUF files: every architecture, format and option, made in milliseconds.

    path = write_tiny(tmp_path / "m.gguf", "qwen3", weight_format="q4_k", tied=True)

The weights come from a generator whose stream NumPy has frozen, so that goldens stay valid. What a
file must hold is written down here a second time, apart from `quantcli.arch`, on purpose.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from codebook_pictures import set_iq1_m_scales
from gguf import GGMLQuantizationType, GGUFWriter
from tiny_archs import EXPERTS, OWN_WIDTH, arch_keys, layer_shapes, words
from tiny_vocab import Vocabulary, byte_level_bpe, spm

from quantcli import formats
from quantcli.formats import F32, BlockFormat

K_QUANTS = ("q2_k", "q3_k", "q4_k", "q5_k", "q6_k", "iq4_xs", "tq1_0", "tq2_0")
CODEBOOKS = ("iq1_m", "iq1_s", "iq2_s", "iq2_xs", "iq2_xxs", "iq3_s", "iq3_xxs")
MIX = ("q4_0", "q8_0", "q5_1", "f16", "q4_1", "q5_0", "bf16", "f32")
MIX_256 = ("q4_k", "q6_k", "q5_k", "q8_0", "q3_k", "q2_k", "q4_0")


@dataclass(frozen=True)
class Tiny:
    """What a tiny model is like. Sizes left at 0 are chosen to fit the weight format.

    weight_format   a format for all matrices, or several, taken in turn ("mix" and "mix_256" name
                    two such lists)
    window          keys a windowed layer sees, where an architecture has windows
    window_pattern  as in the file's key; None leaves the key out
    rope_freqs      whether the file has factors for the RoPE frequencies
    n_experts       0: as many as the architecture has, which may be none
    fused_qkv       whether q, k and v are one matrix, as they may be everywhere
    long_factors    whether the file has longrope's factors
    q_latent, is_apart   latent attention: whether q has a latent, and k and v matrices of their own
    extra           further keys, without the architecture's prefix
    """

    arch: str
    seed: int = 0
    weight_format: str | tuple[str, ...] = "q4_0"
    n_layers: int = 2
    d_model: int = 0
    n_heads: int = 0
    n_kv_heads: int = 2
    head_dim: int = 32
    d_ff: int = 0
    n_rot: int = 0
    context: int = 512
    tied: bool = False
    biases: bool = False
    freq_base: float = 10000.0
    rope_freqs: bool = False
    rope_scaling: str = ""
    rope_factor: float = 4.0
    original_context: int = 64
    window: int = 16
    window_pattern: int | tuple[bool, ...] | None = None
    attn_softcap: float = 0.0
    logit_softcap: float = 0.0
    n_experts: int = 0
    n_used: int = 2
    fused_qkv: bool = False
    long_factors: bool = False
    q_latent: bool = True
    is_apart: bool = True
    tokenizer: str = ""
    extra: tuple[tuple[str, object], ...] = ()

    def __post_init__(self) -> None:
        """Give architectures with experts some."""
        if self.arch in EXPERTS and not self.n_experts:
            object.__setattr__(self, "n_experts", 4)

    @property
    def formats(self) -> tuple[str, ...]:
        """The formats of the matrices, in turn."""
        named = {"mix": MIX, "mix_256": MIX_256}.get(str(self.weight_format), self.weight_format)
        return (named,) if isinstance(named, str) else named

    @property
    def is_gemma(self) -> bool:
        """Whether the model has Gemma's vocabulary."""
        return self.arch.startswith("gemma")

    @property
    def has_gelu(self) -> bool:
        """Whether the MLPs have GELU, which llama.cpp looks up in a table of halves."""
        return self.is_gemma or self.arch in ("starcoder2", "phi2", "gptneox")

    @property
    def has_windows(self) -> bool:
        """Whether the file names a window."""
        always = ("gemma2", "gemma3", "cohere2", "gpt-oss")
        return self.arch in always or self.window_pattern is not None

    def sizes(self) -> tuple[int, int, int]:
        """Return d_model, n_heads, d_ff."""
        wide = any(name in (*K_QUANTS, *CODEBOOKS, "nvfp4") for name in self.formats)
        return (
            self.d_model or (256 if wide else 128),
            self.n_heads or (8 if wide else 4),
            self.d_ff or (512 if wide else 192),
        )

    def expert_width(self) -> int:
        """Return the width of an expert; where it has no key, that of an MLP."""
        d_ff = self.sizes()[2]
        return d_ff // 2 if self.arch in OWN_WIDTH else d_ff

    def vocabulary(self) -> Vocabulary:
        """Return the tokens and their kinds."""
        kind = self.tokenizer or ("spm" if self.is_gemma else "bpe")
        return spm() if kind == "spm" else byte_level_bpe("qwen2" if "qwen" in self.arch else "")

    def metadata(self) -> dict[str, object]:
        """Return the file's keys, without the vocabulary's."""
        d_model, n_heads, d_ff = self.sizes()
        keys: dict[str, object] = {
            "context_length": self.context,
            "embedding_length": d_model,
            "block_count": self.n_layers,
            "feed_forward_length": d_ff,
            "attention.head_count": n_heads,
            "attention.head_count_kv": self.n_kv_heads,
            "attention.key_length": self.head_dim,
            "attention.value_length": self.head_dim,
            "rope.freq_base": self.freq_base,
        }
        keys |= arch_keys(self)
        optional: dict[str, object] = {
            "rope.dimension_count": self.n_rot,
            "rope.scaling.type": self.rope_scaling,
            "rope.scaling.factor": self.rope_factor if self.rope_scaling else 0.0,
            "rope.scaling.original_context_length": self.original_context
            if self.rope_scaling
            else 0,
            "attention.sliding_window": self.window if self.has_windows else 0,
            "attn_logit_softcapping": self.attn_softcap,
            "final_logit_softcapping": self.logit_softcap,
        }
        keys |= {key: value for key, value in optional.items() if value}
        if self.window_pattern is not None:
            pattern = self.window_pattern
            keys["attention.sliding_window_pattern"] = (
                list(pattern) if isinstance(pattern, tuple) else pattern
            )
        keys |= dict(self.extra)
        return {f"{self.arch}.{key}": value for key, value in keys.items()}

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Return every tensor's shape by name, in the order of the file."""
        d_model = self.sizes()[0]
        n_vocab = len(self.vocabulary().tokens)
        shapes: dict[str, tuple[int, ...]] = {"token_embd.weight": (n_vocab, d_model)}
        n_rot = self.n_rot or self.head_dim
        if self.rope_freqs:
            shapes["rope_freqs.weight"] = (n_rot // 2,)
        if self.long_factors:
            shapes |= {f"rope_factors_{kind}.weight": (n_rot // 2,) for kind in ("long", "short")}
        for i in range(self.n_layers):
            layer = layer_shapes(self, i)
            shapes |= {f"blk.{i}.{name}": shape for name, shape in layer.items()}
        shapes["output_norm.weight"] = (d_model,)
        has = words(self)
        if "norm_bias" in has:
            shapes["output_norm.bias"] = (d_model,)
        if not self.tied and "tied" not in has:
            shapes["output.weight"] = (n_vocab, d_model)
            if self.arch == "phi2":
                shapes["output.bias"] = (n_vocab,)
        return shapes

    def weights(self) -> dict[str, F32]:
        """Return every tensor in f32, on a scale that keeps logits lively."""
        random = np.random.RandomState(self.seed)
        return {name: self._weight(name, shape, random) for name, shape in self.shapes().items()}

    def _weight(self, name: str, shape: tuple[int, ...], random: np.random.RandomState) -> F32:
        if name.startswith("rope_"):
            most = 2.0 if "short" in name else 8.0
            return np.linspace(1.0, most, shape[0], dtype=np.float32)
        noise = random.standard_normal(shape).astype(np.float32)
        if name.endswith("bias"):
            return noise * np.float32(0.3)
        if "ffn_gate_inp." in name:
            return noise * np.float32(4.0 / math.sqrt(shape[-1]))  # few ties among experts
        if name.endswith("attn_sinks.weight"):
            return noise
        if len(shape) == 1 and "norm" not in name:
            return noise * np.float32(1.0 / math.sqrt(shape[0]))
        if len(shape) == 1:
            return 1 + noise * np.float32(0.2)
        if name in ("token_embd.weight", "output.weight"):
            return noise * np.float32(0.25)
        return noise * np.float32(1.0 / math.sqrt(shape[-1]))


def write_tiny(path: Path, arch: str, **options: object) -> Path:
    """Write a random tiny model; `options` are the fields of `Tiny`."""
    return write_model(path, Tiny(arch, **options))  # type: ignore[arg-type]


def write_model(path: Path, tiny: Tiny) -> Path:
    """Write a tiny model as a GGUF file."""
    writer = GGUFWriter(path, tiny.arch)
    for key, value in (tiny.metadata() | tiny.vocabulary().metadata()).items():
        add_value(writer, key, value)
    random = np.random.RandomState(tiny.seed + 1)
    n_matrices = 0
    for name, weight in tiny.weights().items():
        name_of_format = "f32"
        if weight.ndim > 1 and not name.endswith("bias") and "ffn_gate_inp" not in name:
            name_of_format = tiny.formats[n_matrices % len(tiny.formats)]
            if weight.shape[-1] % formats.get(name_of_format).weights_per_block:
                name_of_format = "q8_0"
            n_matrices += 1
        add_weight(writer, name, weight, formats.get(name_of_format), random)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def add_value(writer: GGUFWriter, key: str, value: object) -> None:
    """Add a key with GGUF's type for a Python value: u32, f32, bool, string or an array."""
    if isinstance(value, bool):
        writer.add_bool(key, value)
    elif isinstance(value, int):
        writer.add_uint32(key, value)
    elif isinstance(value, float):
        writer.add_float32(key, value)
    elif isinstance(value, str):
        writer.add_string(key, value)
    else:
        assert isinstance(value, list), (key, value)
        writer.add_array(key, value)


def add_weight(
    writer: GGUFWriter,
    name: str,
    weight: F32,
    fmt: BlockFormat,
    random: np.random.RandomState,
) -> None:
    """Add a tensor in a format; random blocks of the same scale where nothing encodes it yet."""
    if fmt.name == "f32":
        writer.add_tensor(name, weight)
        return
    if fmt.encode is None:
        blocks = random_blocks(fmt, weight.size // fmt.weights_per_block, weight.std(), random)
    else:
        blocks = fmt.encode(weight.reshape(-1, fmt.weights_per_block))
    data = np.ascontiguousarray(blocks).view(np.uint8).reshape(*weight.shape[:-1], -1)
    writer.add_tensor(name, data, raw_dtype=GGMLQuantizationType(fmt.ggml_id))


def random_blocks(
    fmt: BlockFormat, n_blocks: int, std: float, random: np.random.RandomState
) -> np.ndarray:
    """Return blocks of random codes and sub-scales whose weights have mean about 0."""
    data = random.randint(0, 256, (n_blocks, fmt.block_nbytes), np.uint8)
    blocks = data.view(fmt.block).reshape(n_blocks)
    if "e" in (fmt.block.names or ()):
        blocks["e"] = 128
        exponent = 128 + round(math.log2(std / float(fmt.decode(blocks).std())))
        blocks["e"] = random.randint(exponent - 1, exponent + 2, n_blocks)
        return blocks
    if fmt.name == "nvfp4":
        blocks["scales"] = 0x38  # one; eight more is twice as much
        nearest = 0x38 + 8 * round(math.log2(std / float(fmt.decode(blocks).std())))
        blocks["scales"] = random.randint(nearest - 4, nearest + 5, (n_blocks, 4))
        return blocks
    if fmt.name == "iq1_m":
        set_iq1_m_scales(blocks, np.ones(n_blocks, np.float16))
        scale = std / float(fmt.decode(blocks).std())
        set_iq1_m_scales(blocks, (scale * random.uniform(0.7, 1.3, n_blocks)).astype(np.float16))
        return blocks
    blocks["d"] = 1.0
    if "dmin" in (fmt.block.names or ()):
        blocks["dmin"] = 0.0
        above = float(fmt.decode(blocks).mean())
        blocks["d"], blocks["dmin"] = 0.0, 1.0
        below = -float(fmt.decode(blocks).mean())
        blocks["d"], blocks["dmin"] = 1.0, above / below
    scale = std / float(fmt.decode(blocks).std())
    for field in ("d", "dmin"):
        if field in (fmt.block.names or ()):
            spread = random.uniform(0.7, 1.3, n_blocks)  # no two blocks alike
            blocks[field] = blocks[field] * scale * spread
    return blocks
