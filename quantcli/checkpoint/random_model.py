"""Model files of random weights: as large and as fast as a real model, and nothing to download."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod, sqrt
from pathlib import Path

import numpy as np

from quantcli import formats
from quantcli.checkpoint.home import require_space, write_errors
from quantcli.formats import BlockFormat

_SCALES = ("d", "dmin", "m")  # the fields of blocks that are floats

# Bytes of four ternary codes: the fourth value that two bits have is not one of them.
_TERNARY = np.array([b for b in range(256) if all(b >> s & 3 < 3 for s in (0, 2, 4, 6))], np.uint8)
_FREE = {"tq2_0": {"qs": _TERNARY}}  # fields whose bytes are not just anything
_STEPS = {"mxfp4": "e", "nvfp4": "scales"}  # fields of bytes that stand for floats


@dataclass(frozen=True, slots=True)
class Shape:
    """How large a model is. Its output matrix is its embedding."""

    n_layers: int
    d_model: int
    n_heads: int
    n_kv_heads: int
    head_dim: int
    d_ff: int
    n_vocab: int
    context: int

    def tensors(self) -> dict[str, tuple[int, ...]]:
        """Return every tensor's shape by name."""
        q, kv = self.n_heads * self.head_dim, self.n_kv_heads * self.head_dim
        layer = {
            "attn_norm": (self.d_model,),
            "attn_q": (q, self.d_model),
            "attn_k": (kv, self.d_model),
            "attn_v": (kv, self.d_model),
            "attn_output": (self.d_model, q),
            "ffn_norm": (self.d_model,),
            "ffn_gate": (self.d_ff, self.d_model),
            "ffn_up": (self.d_ff, self.d_model),
            "ffn_down": (self.d_model, self.d_ff),
        }
        shapes: dict[str, tuple[int, ...]] = {"token_embd.weight": (self.n_vocab, self.d_model)}
        for i in range(self.n_layers):
            shapes |= {f"blk.{i}.{name}.weight": shape for name, shape in layer.items()}
        return shapes | {"output_norm.weight": (self.d_model,)}

    def keys(self) -> dict[str, int]:
        """Return the whole numbers of the metadata, less the architecture before their names."""
        return {
            "block_count": self.n_layers,
            "context_length": self.context,
            "embedding_length": self.d_model,
            "feed_forward_length": self.d_ff,
            "attention.head_count": self.n_heads,
            "attention.head_count_kv": self.n_kv_heads,
            "attention.key_length": self.head_dim,
            "attention.value_length": self.head_dim,
            "rope.dimension_count": self.head_dim,
            "vocab_size": self.n_vocab,
        }


SMOLLM2_135M = Shape(
    n_layers=30,
    d_model=576,
    n_heads=9,
    n_kv_heads=3,
    head_dim=64,
    d_ff=1536,
    n_vocab=49152,
    context=8192,
)


def write_random_model(
    path: Path,
    shape: Shape,
    *,
    arch: str,
    title: str = "random weights",
    weight_format: str = "q4_0",
    embedding_format: str = "q8_0",
    same_layers: bool = False,
) -> Path:
    """Write a GGUF file of random weights without a vocabulary, and return its path.

    arch          the architecture's name; one without biases and without norms of heads
    same_layers   make each shape's weights once, which is much faster and takes less memory

    The same arguments give the same bytes. Raises ResourceError if the disk is too small.
    """
    from gguf import GGUFWriter

    chosen = {name: _format(name, s, weight_format, embedding_format) for name, s in _items(shape)}
    nbytes = sum(chosen[name].row_nbytes(s[-1]) * prod(s[:-1]) for name, s in _items(shape))
    require_space(path.parent, nbytes, "a model of random weights")
    random = np.random.default_rng(0)
    made: dict[tuple[str, tuple[int, ...]], np.ndarray] = {}
    with write_errors(path.parent, path):
        writer = GGUFWriter(path, arch)
        writer.add_string("general.name", title)
        for key, value in shape.keys().items():
            writer.add_uint32(f"{arch}.{key}", value)
        writer.add_float32(f"{arch}.attention.layer_norm_rms_epsilon", 1e-5)
        writer.add_string("tokenizer.ggml.model", "no_vocab")
        for name, s in _items(shape):
            fmt = chosen[name]
            if len(s) == 1:
                writer.add_tensor(name, np.ones(s, np.float32))
                continue
            data = made.get((fmt.name, s))
            if data is None:
                data = random_rows(fmt, s, random)
            if same_layers:
                made[fmt.name, s] = data
            writer.add_tensor(name, data, raw_dtype=_gguf_type(fmt))
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
    return path


def random_rows(
    fmt: BlockFormat, shape: tuple[int, ...], random: np.random.Generator
) -> np.ndarray:
    """Return rows of random codes with scales that keep sums near 1: u8 (n_out, row bytes).

    The weights' root mean square is 1 / sqrt(n_in), as in a network that was just initialised.
    In mxfp4 and nvfp4 it is as near as one scale for all gets.
    """
    n_out, n_in = shape
    fmt.row_nbytes(n_in)  # refuses a row that is not whole blocks
    if fmt.weights_per_block == 1:
        weights = random.standard_normal((n_out * n_in, 1), np.float32) / np.float32(sqrt(n_in))
        assert fmt.encode is not None, fmt.name
        return fmt.encode(weights).view(np.uint8).reshape(n_out, -1)
    n_blocks = n_out * n_in // fmt.weights_per_block
    blocks = np.frombuffer(random.bytes(n_blocks * fmt.block_nbytes), fmt.block).copy()
    for field, valid in _FREE.get(fmt.name, {}).items():
        blocks[field] = valid[random.integers(0, len(valid), blocks[field].shape)]
    _set_scales(fmt, blocks, 1 / sqrt(n_in))
    return blocks.view(np.uint8).reshape(n_out, -1)


def _set_scales(fmt: BlockFormat, blocks: np.ndarray, rms: float) -> None:
    """Set what scales blocks, so that weights have this root mean square."""
    sample = blocks[:256].copy()
    if fmt.name in _STEPS:
        blocks[_STEPS[fmt.name]] = _nearest_step(fmt, sample, rms)
    elif fmt.name == "iq1_m":  # an f16 in four parts
        sample["scales"] = _with_f16(sample["scales"], 1.0)
        blocks["scales"] = _with_f16(blocks["scales"], rms / float(np.std(fmt.decode(sample))))
    else:
        for field, value in _scales(fmt, sample, rms).items():
            blocks[field] = value


def _nearest_step(fmt: BlockFormat, sample: np.ndarray, rms: float) -> int:
    """Return the byte below 127 with which weights come nearest to a root mean square."""
    found = []
    for byte in range(127):
        sample[_STEPS[fmt.name]] = byte
        found.append(float(np.std(fmt.decode(sample), dtype=np.float64)))
    return int(np.argmin(np.abs(np.array(found) - rms)))


def _with_f16(scales: np.ndarray, value: float) -> np.ndarray:
    """Return iq1_m's scales, u16 (n_blocks, 4), with a main scale in their top bits."""
    bits = int(np.float16(value).view(np.uint16))
    parts = np.array([(bits >> 4 * c & 15) << 12 for c in range(4)], np.uint16)
    return scales & np.uint16(0xFFF) | parts


def _scales(fmt: BlockFormat, blocks: np.ndarray, rms: float) -> dict[str, float]:
    """Return the fields of a block that are floats, so that weights have mean 0 and this rms."""
    fields = [field for field in _SCALES if field in (fmt.block.names or ())]
    units = {}
    for field in fields:  # weights are a sum of one term for each of the fields
        for other in fields:
            blocks[other] = float(other == field)
        units[field] = fmt.decode(blocks).astype(np.float64)
    values = {"d": 1.0}
    for field in fields[1:]:
        values[field] = -units["d"].mean() / units[field].mean()
    total = sum(values[field] * units[field] for field in fields)
    factor = rms / float(np.std(total))
    return {field: value * factor for field, value in values.items()}


def _items(shape: Shape) -> list[tuple[str, tuple[int, ...]]]:
    return list(shape.tensors().items())


def _format(name: str, shape: tuple[int, ...], weight: str, embedding: str) -> BlockFormat:
    if len(shape) == 1:
        return formats.get("f32")
    return formats.get(embedding if name == "token_embd.weight" else weight)


def _gguf_type(fmt: BlockFormat) -> object:
    from gguf import GGMLQuantizationType

    return GGMLQuantizationType(fmt.ggml_id)
