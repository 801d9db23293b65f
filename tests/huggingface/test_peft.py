"""LoRA adapters in PEFT's folders: the logits of the adapters in GGUF that they would become."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from hf_folders import as_dtype, write_safetensors
from lora_cases import EMBEDDINGS, Lora, reference_logits, write_adapter
from tiny import Tiny, write_model

from quantcli.errors import CheckpointError, ModelError, UnsupportedModel
from quantcli.formats import F32
from quantcli.runtime.adapters import open_adapted

# Hugging Face's modules of the matrices of tests/lora_cases.py.
MODULES = {
    "token_embd": "model.embed_tokens",
    "output": "lm_head",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
TOKENS = [11, 45, 7, 99, 23]
TINY = Tiny("llama", weight_format="f32")
CONFIG = {"peft_type": "LORA", "r": 4, "lora_alpha": 8, "bias": "none", "use_rslora": False}


def halves(rows: F32, n_heads: int) -> F32:
    """Return rows of q or k in Hugging Face's order: halves, where GGUF has pairs."""
    order = np.arange(len(rows)).reshape(n_heads, -1, 2).transpose(0, 2, 1).reshape(-1)
    return rows[order]


def as_peft(matrices: dict[str, F32], tiny: Tiny) -> dict[str, F32]:
    """Return an adapter's matrices by PEFT's names, in PEFT's order of rows."""
    found = {}
    for name, matrix in matrices.items():
        target, _, half = name.rpartition(".weight.lora_")
        layer, part = target.split(".")[1:] if target.startswith("blk.") else ("", target)
        module = f"model.layers.{layer}.{MODULES[part]}" if layer else MODULES[part]
        values = matrix
        if half == "b" and part in ("attn_q", "attn_k") and tiny.arch == "llama":
            values = halves(matrix, tiny.sizes()[1] if part == "attn_q" else tiny.n_kv_heads)
        suffix = f"lora_{half.upper()}.weight"
        if part == "token_embd":
            values, suffix = (matrix.T if half == "a" else matrix), f"lora_embedding_{half.upper()}"
        found[f"base_model.model.{module}.{suffix}"] = np.ascontiguousarray(values)
    return found


def write_peft(folder: Path, tensors: dict[str, F32], dtype: str = "F32", **config: object) -> Path:
    folder.mkdir()
    stored = {n: (dtype, t.shape, as_dtype(t, dtype)) for n, t in tensors.items()}
    write_safetensors(folder / "adapter_model.safetensors", stored)
    text = json.dumps(CONFIG | config)
    (folder / "adapter_config.json").write_text(text, encoding="utf-8")
    return folder


@pytest.mark.parametrize(("arch", "dtype"), [("llama", "F32"), ("llama", "BF16"), ("qwen2", "F32")])
def test_a_folder_gives_the_logits_of_the_adapter_in_gguf(
    arch: str, dtype: str, tmp_path: Path
) -> None:
    tiny = Tiny(arch, weight_format="f32")
    lora = Lora(targets=EMBEDDINGS, weight_format=dtype.lower())
    path = write_model(tmp_path / "m.gguf", tiny)
    file = write_adapter(tmp_path / "a.gguf", tiny, lora)
    folder = write_peft(tmp_path / "peft", as_peft(lora.matrices(tiny), tiny), dtype)
    found = [reference_logits(path, [(a, 0.5)], TOKENS, [0, 4]) for a in (file, folder)]
    assert found[0].tobytes() == found[1].tobytes()


def test_rank_stabilized_adapters_are_divided_by_the_root_of_the_rank(tmp_path: Path) -> None:
    path = write_model(tmp_path / "m.gguf", TINY)
    tensors = as_peft(Lora().matrices(TINY), TINY)
    plain = write_peft(tmp_path / "plain", tensors)
    stable = write_peft(tmp_path / "stable", tensors, use_rslora=True)
    found = [
        reference_logits(path, [(folder, scale)], TOKENS, [4])
        for folder, scale in ((plain, 2.0), (stable, 1.0))  # 8 / sqrt(4) is twice 8 / 4
    ]
    assert found[0].tobytes() == found[1].tobytes()


Q = "base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight"
BAD = {
    "another kind": ({"peft_type": "IA3"}, {}, "peft_type is 'IA3'"),
    "dora": ({"use_dora": True}, {}, "use_dora is true"),
    "transposed": ({"fan_in_fan_out": True}, {}, "fan_in_fan_out is true"),
    "biases": ({"bias": "all"}, {}, "bias is 'all'"),
    "alphas": ({"alpha_pattern": {"q_proj": 3}}, {}, "alpha_pattern is an object of 1"),
    "no alpha": ({"lora_alpha": "x"}, {}, "'lora_alpha' is 'x'"),
    "no rank": ({"use_rslora": True, "r": 0}, {}, "'r' is 0"),
    "whole layers": ({}, {"base_model.model.lm_head.weight": (3, 4)}, "is no matrix of a LoRA"),
    "unknown module": ({}, {Q.replace("q_proj", "z_proj"): (4, 128)}, "has no place in this"),
    "half": ({}, {Q: (4, 128)}, "q.weight.lora_b' is missing"),
    "vector": ({}, {Q: (4,)}, "which is no matrix"),
    "empty": ({}, {}, "holds no matrices"),
}


@pytest.mark.parametrize("name", BAD)
def test_a_bad_folder_is_refused_by_name(name: str, tmp_path: Path) -> None:
    config, shapes, message = BAD[name]
    path = write_model(tmp_path / "m.gguf", TINY)
    tensors = {n: np.ones(shape, np.float32) for n, shape in shapes.items()}
    folder = write_peft(tmp_path / "peft", tensors, **config)
    with pytest.raises(ModelError) as caught:
        open_adapted(path, [(folder, 1.0)])
    said = str(caught.value)
    assert said.startswith(str(folder))
    assert message in said
    assert "\n" not in said


def test_what_folders_do_not_say_is_converted_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = write_peft(tmp_path / "peft", as_peft(Lora().matrices(TINY), TINY))
    other = write_model(tmp_path / "o.gguf", Tiny("phi3", weight_format="f32"))
    with monkeypatch.context() as patch:
        patch.setattr("quantcli.arch.in_folders", lambda name: None)
        with pytest.raises(UnsupportedModel, match=r"for phi3; convert it .*convert_lora_to_gguf"):
            open_adapted(other, [(folder, 1.0)])
    (folder / "adapter_model.safetensors").unlink()
    path = write_model(tmp_path / "m.gguf", TINY)
    with pytest.raises(CheckpointError, match=r"has no adapter_model\.safetensors"):
        open_adapted(path, [(folder, 1.0)])
