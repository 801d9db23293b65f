"""Tiny Hugging Face folders of random weights: every architecture, tokenizer and number format.

    folder = write_folder(tmp_path / "Tiny-Llama", CASES["llama3"])

The weights come from a generator whose stream NumPy has frozen, so that goldens stay valid. What a
folder must hold is written down here apart from `quantcli`, on purpose. What llama.cpp's converter
makes of the same folders comes from scripts/make_goldens_convert.
"""

from __future__ import annotations

import json
import re
import struct
from collections.abc import Mapping
from math import prod
from pathlib import Path

import numpy as np
from hf_cases import BOS, BYTE_LEVEL, EOS, PAD, Case, Table
from tiny_vocab import WORDS, byte_alphabet

from quantcli.formats import bf16
from quantcli.text.spm import model_proto
from quantcli.text.vocabulary import Kind

Shapes = dict[str, tuple[int, ...]]
N_EXPERTS = 4
BYTE_MERGES = [*WORDS, "\u0120 the", "\u0120 a", "\u0120 s", "\u0120 an"]


def write_folder(folder: Path, case: Case, seed: int = 0) -> Path:
    """Write a folder and return its path."""
    folder.mkdir(parents=True, exist_ok=True)
    n_tokens = write_vocabulary(folder, case)
    config = config_of(case, case.n_vocab or n_tokens)
    dump(folder / "config.json", config)
    for name, text in case.files.items():
        (folder / name).write_text(text, encoding="utf-8")
    rows = case.n_rows or case.n_vocab or n_tokens
    write_weights(folder, weights_of(case, rows, seed), case.dtype, case.n_files)
    return folder


def config_of(case: Case, n_vocab: int) -> Table:
    """Return config.json."""
    numbers: Table = {
        "vocab_size": n_vocab,
        "hidden_size": case.d_model,
        "intermediate_size": case.d_ff,
        "num_hidden_layers": case.n_layers,
        "num_attention_heads": case.n_heads,
        "num_key_value_heads": case.n_kv_heads,
        "head_dim": case.head_dim,
        "max_position_embeddings": 512,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "bos_token_id": 266 if case.vocabulary == "bpe" else 1,
        "eos_token_id": 267 if case.vocabulary == "bpe" else 2,
        "tie_word_embeddings": case.tied,
    } | case.config
    numbers = {key: value for key, value in numbers.items() if value is not None}
    kind = case.class_name.removesuffix("ForCausalLM").lower()
    if "Conditional" in case.class_name:
        nested = {**numbers, "model_type": "gemma3_text"}
        return {
            "architectures": [case.class_name],
            "model_type": "gemma3",
            "text_config": nested,
            "vision_config": {"model_type": "siglip_vision_model"},
        }
    kind = "gemma3_text" if kind == "gemma3" else kind
    return {"architectures": [case.class_name], "model_type": kind, **numbers}


def shapes_of(case: Case, n_rows: int) -> dict[str, tuple[int, ...]]:
    """Return every tensor's shape by Hugging Face's name, less the prefix."""
    if case.layer:
        return _spelled_out(case, n_rows)
    d, q, kv = case.d_model, case.n_heads * case.head_dim, case.n_kv_heads * case.head_dim
    shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (n_rows, d)}
    norms = ["input_layernorm", "post_attention_layernorm"]
    if case.post_norms:
        norms += ["pre_feedforward_layernorm", "post_feedforward_layernorm"]
    layer: dict[str, tuple[int, ...]] = {f"{norm}.weight": (d,) for norm in norms}
    layer |= {
        f"self_attn.{name}_proj.weight": (n, d) for name, n in (("q", q), ("k", kv), ("v", kv))
    }
    layer |= {"self_attn.o_proj.weight": (d, q), "mlp.down_proj.weight": (d, case.d_ff)}
    layer |= {f"mlp.{name}_proj.weight": (case.d_ff, d) for name in ("gate", "up")}
    if case.biases:
        layer |= {
            f"self_attn.{name}_proj.bias": (n,) for name, n in (("q", q), ("k", kv), ("v", kv))
        }
    if case.qk_norm:
        layer |= {f"self_attn.{name}_norm.weight": (case.head_dim,) for name in "qk"}
    for i in range(case.n_layers):
        shapes |= {f"model.layers.{i}.{name}": shape for name, shape in layer.items()}
    shapes["model.norm.weight"] = (d,)
    return shapes if case.tied else shapes | {"lm_head.weight": (n_rows, d)}


def _spelled_out(case: Case, n_rows: int) -> Shapes:
    """Return the shapes of a case that lists its tensors."""
    sizes = {"d": case.d_model, "f": case.d_ff, "h": case.n_heads, "w": case.head_dim}
    sizes |= {"q": case.n_heads * case.head_dim, "k": case.n_kv_heads * case.head_dim}
    sizes |= {"e": N_EXPERTS, "m": 48, "v": n_rows, "": 1}
    words = [(word, "") for word in case.top.split()]
    for i in range(case.n_layers):
        words += [(word, f"{case.layers}.{i}.") for word in case.layer.split()]
    shapes: Shapes = {}
    for word, prefix in words:
        name, kind, dims = re.split("([:=])", word)
        shape = tuple(
            int(times or 1) * sizes[letter]
            for times, letter in re.findall(r"(\d*)([a-z]?)(?:,|\+|$)", dims)[: dims.count(",") + 1]
        )
        for i in range(N_EXPERTS if "*" in name else 1):
            full = prefix + name.replace("*", str(i))
            shapes[full + ".weight" if kind == ":" else full] = shape
            if dims.endswith("+"):
                shapes[full + ".bias"] = shape[:1]
    return shapes


def weights_of(case: Case, n_rows: int, seed: int = 0) -> dict[str, np.ndarray]:
    """Return the weights by name: f32."""
    random = np.random.default_rng(seed)
    weights: dict[str, np.ndarray] = {}
    shapes = {case.prefix + name: shape for name, shape in shapes_of(case, n_rows).items()}
    for name, shape in (shapes | dict(case.other_tensors)).items():
        if name.endswith(("_blocks", "_scales")):  # of MXFP4; exponents not far from 1
            low, high = (0, 256) if name.endswith("_blocks") else (118, 126)
            weights[name] = random.integers(low, high, shape, np.uint8)
            continue
        values = random.standard_normal(shape, np.float32)
        # on a sane scale: norms near 1 (0 where a model adds 1), matrices as when just initialised
        if case.zero_biases and name.endswith("bias"):
            values[:] = 0
        elif len(shape) > 1:
            values /= np.float32(shape[-1] ** 0.5)
        elif name.endswith("norm.weight"):
            values = values * np.float32(0.1) + np.float32(not (case.post_norms or case.shifted))
        weights[name] = values.astype(np.float32)
    return weights


def as_dtype(values: np.ndarray, dtype: str) -> bytes:
    """Return f32 values as the bytes of a safetensors dtype."""
    if dtype == "U8":
        return values.tobytes()
    if dtype == "BF16":
        return bf16.encode(np.ascontiguousarray(values, np.float32).reshape(-1, 1)).tobytes()
    return values.astype({"F16": "<f2", "F32": "<f4", "F64": "<f8"}[dtype]).tobytes()


def write_weights(
    folder: Path, weights: Mapping[str, np.ndarray], dtype: str, n_files: int = 1
) -> None:
    """Write weights in one file, or in several with an index."""
    stored = {}
    for name, values in weights.items():
        own = "U8" if values.dtype == np.uint8 else dtype
        stored[name] = (own, values.shape, as_dtype(values, own))
    names = list(stored)
    if n_files == 1:
        write_safetensors(folder / "model.safetensors", stored)
        return
    weight_map = {}
    for i in range(n_files):
        file = f"model-{i + 1:05d}-of-{n_files:05d}.safetensors"
        part = {name: stored[name] for name in names[i::n_files]}
        write_safetensors(folder / file, part)
        weight_map |= dict.fromkeys(part, file)
    index = {"metadata": {"total_size": sum(len(s[2]) for s in stored.values())}}
    dump(folder / "model.safetensors.index.json", index | {"weight_map": weight_map})


def write_safetensors(
    path: Path, tensors: Mapping[str, tuple[str, tuple[int, ...], bytes]]
) -> None:
    """Write one file from dtype, shape and bytes by name."""
    header: Table = {"__metadata__": {"format": "pt"}}
    at = 0
    for name, (dtype, shape, data) in tensors.items():
        entry = {"dtype": dtype, "shape": list(shape), "data_offsets": [at, at + len(data)]}
        header[name] = entry
        at += len(data)
    raw = json.dumps(header).encode()
    raw += b" " * (-len(raw) % 8)
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(raw)) + raw)
        file.write(b"".join(data for _, _, data in tensors.values()))


def write_vocabulary(folder: Path, case: Case) -> int:
    """Write the tokenizer's files and return how many tokens there are."""
    n = _write_bpe(folder, case) if case.vocabulary == "bpe" else _write_spm(folder, case)
    usual: Table = {"tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": 512}
    names = {"bos_token": BOS, "eos_token": EOS} if case.vocabulary == "bpe" else {
        "bos_token": "<bos>", "eos_token": "<eos>", "unk_token": "<unk>"}  # fmt: skip
    dump(folder / "tokenizer_config.json", usual | names | case.tokenizer)
    return n


def _write_bpe(folder: Path, case: Case) -> int:
    """Write tokenizer.json of a byte-level BPE: 256 bytes, merges, three control tokens, a word."""
    texts = [*byte_alphabet(), *(merge.replace(" ", "") for merge in BYTE_MERGES)][:266]
    merges = BYTE_MERGES[: 266 - 256]
    more = [(BOS, True), (EOS, True), (PAD, False), ("<tool>", False)]
    added = [
        {"id": 266 + i, "content": text, "special": special, "normalized": False,
         "single_word": False, "lstrip": False, "rstrip": False}
        for i, (text, special) in enumerate(more)
    ]  # fmt: skip
    table: Table = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": added,
        "normalizer": None,
        "pre_tokenizer": BYTE_LEVEL,
        "post_processor": None,
        "decoder": BYTE_LEVEL,
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": False,
            "vocab": {text: i for i, text in enumerate(texts)},
            "merges": [merge.split(" ") for merge in merges],
        },
    }
    dump(folder / "tokenizer.json", table | case.pipeline)
    return 270


SPM_PIECES = [word.replace(" ", "") for word in WORDS]
SPM_LETTERS = "\u2581abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.,!?'"


def spm_pieces() -> list[tuple[str, float, Kind]]:
    """Return texts, scores and kinds: specials, 256 bytes, pieces, letters, two turns."""
    rows: list[tuple[str, float, Kind]] = [("<unk>", 0.0, Kind.UNKNOWN)]
    rows += [(text, 0.0, Kind.CONTROL) for text in ("<bos>", "<eos>", "<pad>")]
    rows += [(f"<0x{byte:02X}>", 0.0, Kind.BYTE) for byte in range(256)]
    pieces = [*SPM_PIECES, "\u2581the", "\u2581a", "\u2581t", "\u2581th"]
    rows += [(piece, float(-i), Kind.NORMAL) for i, piece in enumerate(pieces)]
    n = len(pieces)
    rows += [(letter, float(-n - i), Kind.NORMAL) for i, letter in enumerate(SPM_LETTERS)]
    return [*rows, ("<turn>", 0.0, Kind.USER_DEFINED), ("<gone>", 0.0, Kind.UNUSED)]


def _write_spm(folder: Path, case: Case) -> int:
    rows = spm_pieces()
    texts, scores, kinds = zip(*rows, strict=True)
    proto = model_proto(texts, np.array(scores, np.float32), bytes(kinds))
    (folder / "tokenizer.model").write_bytes(proto)
    listed = {
        i: {"content": text, "special": kind == Kind.CONTROL, "normalized": False,
            "single_word": False, "lstrip": False, "rstrip": False}
        for i, (text, _, kind) in enumerate(rows) if kind in (Kind.CONTROL, Kind.USER_DEFINED)
    }  # fmt: skip
    case.tokenizer.setdefault("added_tokens_decoder", {str(i): row for i, row in listed.items()})
    return len(rows)


def dump(path: Path, table: object) -> None:
    """Write JSON."""
    path.write_text(json.dumps(table, indent=1), encoding="utf-8")


def nbytes_of(shape: tuple[int, ...], dtype: str) -> int:
    """Return the bytes of a tensor."""
    return prod(shape) * {"BF16": 2, "F16": 2, "F32": 4, "F64": 8}[dtype]
