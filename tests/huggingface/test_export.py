"""Exported folders: read back word by word, by our own reader, and complete."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy
import unpackers
from hf_cases import CASES, Case
from hf_folders import write_folder
from ml_dtypes import bfloat16
from tiny import write_tiny

from quantcli.checkpoint import open_checkpoint
from quantcli.errors import ResourceError, ShapeError, UnknownName, UnsupportedModel, UsageError
from quantcli.formats import F32
from quantcli.huggingface.export import exporting, plan_export, require_folder
from quantcli.huggingface.folder import FolderCheckpoint, open_model
from quantcli.huggingface.scheme import ExportScheme, QuantizedLinear, problems

LLAMA = Case("LlamaForCausalLM", "F16", n_layers=2, tokenizer={"chat_template": "x"})
QWEN = Case("Qwen2ForCausalLM", n_layers=1, tied=True, biases=True, vocabulary="spm")
SCHEMES = {
    "gptq": ExportScheme("gptq", group=32),
    "gptq-8": ExportScheme("gptq", bits=8, group=32),
    "gptq-asym": ExportScheme("gptq", group=32, symmetric=False),
    "gptq-order": ExportScheme("gptq", group=32, act_order=True),
    "gptq-all": ExportScheme("gptq", group=-1),
    "awq": ExportScheme("awq", group=32),
    "awq-asym": ExportScheme("awq", group=32, symmetric=False),
    "ct": ExportScheme("compressed-tensors", group=32),
    "ct-8": ExportScheme("compressed-tensors", bits=8, group=32),
    "ct-asym": ExportScheme("compressed-tensors", group=32, symmetric=False),
    "ct-all": ExportScheme("compressed-tensors", group=-1),
    "ct-order": ExportScheme("compressed-tensors", group=32, act_order=True),
    "ct-bf16": ExportScheme("compressed-tensors", group=32, scale_dtype="BF16"),
}
PARTS = ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down")


def linears_of(source: FolderCheckpoint) -> list[str]:
    """Return the weights that are quantized: all of the layers."""
    names = {f"blk.{i}.{part}.weight" for i in range(9) for part in PARTS}
    return [name for name in source.tensors if name in names]


def linear_of(scheme: ExportScheme, name: str, shape: tuple[int, ...]) -> QuantizedLinear:
    """Return integers that differ from linear to linear."""
    random = np.random.default_rng(list(name.encode()))
    n_out, n_in = shape
    n_groups = scheme.n_groups(n_in)
    codes = random.integers(0, 1 << scheme.bits, shape, np.uint8)
    scales = (random.integers(1, 255, (n_out, n_groups)) / 1024).astype(np.float32)
    zeros = random.integers(1, 1 << scheme.bits, scales.shape, np.uint8)
    order = np.repeat(np.arange(n_groups, dtype=np.int32), n_in // n_groups)
    return QuantizedLinear(
        codes,
        scales,
        None if scheme.symmetric else zeros,
        random.permutation(order) if scheme.act_order else None,
    )


def weights_of(scheme: ExportScheme, linear: QuantizedLinear) -> F32:
    """Return what the integers stand for, in GGUF's order of rows."""
    n_out, n_in = linear.codes.shape
    groups = linear.g_idx
    if groups is None:
        groups = np.arange(n_in) // (n_in if scheme.group == -1 else scheme.group)
    zeros = linear.zeros if linear.zeros is not None else np.full((n_out, 1), scheme.half)
    zeros = np.broadcast_to(zeros, linear.scales.shape)
    whole = linear.codes.astype(np.float32) - zeros[:, groups]
    return whole * linear.scales[:, groups]


def exported(tmp_path: Path, case: Case, scheme: ExportScheme, **options: int) -> Path:
    """Export all linears of a folder with integers made up."""
    folder = write_folder(tmp_path / "source", case)
    with open_model(folder) as source:
        plan = plan_export(source, scheme, linears_of(source))
        with exporting(source, tmp_path / "out", plan, **options) as writer:  # type: ignore[arg-type]
            for name in reversed(plan.linears):  # in any order
                writer.put_linear(name, linear_of(scheme, name, source.tensors[name].shape))
    return tmp_path / "out"


def arrays_of(folder: Path) -> dict[str, np.ndarray]:
    """Return every tensor as the format's own library reads it; bf16 as f32."""
    found: dict[str, np.ndarray] = {}
    for path in sorted(folder.glob("*.safetensors")):
        with safetensors.safe_open(path, "np") as file:
            found |= {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    wide = {name: a.astype(np.float32) for name, a in found.items() if a.dtype == bfloat16}
    return found | wide


@pytest.mark.parametrize("name", SCHEMES)
@pytest.mark.parametrize("case", [LLAMA, QWEN], ids=["llama", "qwen2"])
def test_our_reader_gets_back_the_weights_bit_for_bit(
    name: str, case: Case, tmp_path: Path
) -> None:
    scheme = SCHEMES[name]
    out = exported(tmp_path, case, scheme)
    with open_checkpoint(tmp_path / "source") as source, open_checkpoint(out) as found:
        assert list(found.tensors) == list(source.tensors)
        for tensor in source.tensors:
            if tensor.split(".")[-2] in PARTS and tensor.endswith("weight"):
                shape = source.tensors[tensor].shape
                want = weights_of(scheme, linear_of(scheme, tensor, shape))
                assert np.array_equal(found.tensor(tensor).dequantize(), want), tensor
            else:
                want = source.tensor(tensor).data.tobytes()  # type: ignore[assignment]
                assert found.tensor(tensor).data.tobytes() == want, tensor
        for key in set(source.metadata) - {"general.name"}:
            assert np.array_equal(
                np.asarray(found.metadata[key]), np.asarray(source.metadata[key])
            ), key


UNPACKERS: dict[str, Callable[[dict[str, np.ndarray], str], F32]] = {
    "gptq": lambda t, base: unpackers.gptq(t, base, 4),
    "gptq-8": lambda t, base: unpackers.gptq(t, base, 8),
    "gptq-asym": lambda t, base: unpackers.gptq(t, base, 4),
    "gptq-order": lambda t, base: unpackers.gptq(t, base, 4),
    "awq": lambda t, base: unpackers.awq(t, base, 32),
    "awq-asym": lambda t, base: unpackers.awq(t, base, 32),
    "ct": lambda t, base: unpackers.compressed(t, base, 4, 32),
    "ct-8": lambda t, base: unpackers.compressed(t, base, 8, 32),
    "ct-asym": lambda t, base: unpackers.compressed(t, base, 4, 32),
}


@pytest.mark.parametrize("name", UNPACKERS)
def test_words_undone_one_by_one_give_the_same(name: str, tmp_path: Path) -> None:
    scheme = SCHEMES[name]
    tensors = arrays_of(exported(tmp_path, replace(LLAMA, n_layers=1, d_ff=32), scheme))
    for module, ours in (("self_attn.v_proj", "attn_v"), ("mlp.down_proj", "ffn_down")):
        found = UNPACKERS[name](tensors, f"model.layers.0.{module}")
        linear = linear_of(scheme, f"blk.0.{ours}.weight", found.shape)
        assert np.array_equal(found, weights_of(scheme, linear))


def test_rows_of_q_and_k_are_put_back_in_hugging_faces_order(tmp_path: Path) -> None:
    scheme = SCHEMES["ct"]
    tensors = arrays_of(exported(tmp_path, LLAMA, scheme))
    found = unpackers.compressed(tensors, "model.layers.0.self_attn.q_proj", 4, 32)
    ours = weights_of(scheme, linear_of(scheme, "blk.0.attn_q.weight", found.shape))
    head = LLAMA.head_dim
    for h in range(LLAMA.n_heads):
        for i in range(head // 2):
            for half in range(2):
                theirs = found[h * head + half * head // 2 + i]
                assert np.array_equal(theirs, ours[h * head + 2 * i + half])


@pytest.mark.parametrize("name", SCHEMES)
def test_a_reader_by_slabs_gets_the_same(name: str, tmp_path: Path) -> None:
    out = exported(tmp_path, replace(QWEN, n_layers=1), SCHEMES[name])
    with open_checkpoint(out) as found:
        for tensor in ("blk.0.ffn_up.weight", "blk.0.ffn_down.weight", "blk.0.attn_q.weight"):
            whole = found.tensor(tensor).data
            parts = [
                np.empty(min(1000, whole.size - i), np.uint8) for i in range(0, whole.size, 1000)
            ]
            for i, part in enumerate(parts):
                found.read_into(tensor, part, 1000 * i)
            assert np.concatenate(parts).tobytes() == whole.tobytes()


def test_a_folder_is_complete(tmp_path: Path) -> None:
    out = exported(
        tmp_path, replace(LLAMA, files={"generation_config.json": "{}"}), SCHEMES["gptq"]
    )
    assert sorted(os.listdir(out)) == [
        "config.json",
        "generation_config.json",
        "model.safetensors",
        "quantize_config.json",
        "tokenizer.json",
        "tokenizer_config.json",
    ]
    config = json.loads((out / "config.json").read_text(encoding="utf-8"))
    assert config["torch_dtype"] == "float16"
    assert config["architectures"] == ["LlamaForCausalLM"]
    assert (
        json.loads((out / "quantize_config.json").read_text(encoding="utf-8"))
        == (config["quantization_config"])
    )
    names = arrays_of(out)
    assert "model.layers.0.mlp.up_proj.qweight" in names
    assert "model.layers.0.mlp.up_proj.weight" not in names
    assert "lm_head.weight" in names


def test_what_is_said_of_the_weights_is_what_other_programs_read() -> None:
    gptq = SCHEMES["gptq"].config(["lm_head", "model.layers.1.mlp.up_proj"])
    want = {"quant_method": "gptq", "bits": 4, "group_size": 32, "desc_act": False, "sym": True}
    assert want.items() <= gptq.items()
    assert gptq["checkpoint_format"] == "gptq"
    assert gptq["dynamic"] == {"-:^model[.]layers[.]1[.]mlp[.]up_proj$": {}}
    awq = SCHEMES["awq-asym"].config(["lm_head"])
    assert awq == {
        "quant_method": "awq", "bits": 4, "group_size": 32, "zero_point": True,
        "version": "gemm", "modules_to_not_convert": None,
    }  # fmt: skip
    ct = SCHEMES["ct-8"].config(["lm_head"])
    assert ct["format"] == "pack-quantized"
    assert ct["ignore"] == ["lm_head"]
    weights = ct["config_groups"]["group_0"]["weights"]  # type: ignore[index]
    assert (weights["num_bits"], weights["strategy"], weights["group_size"]) == (8, "group", 32)
    everything = SCHEMES["ct-all"].config([])["config_groups"]["group_0"]["weights"]  # type: ignore[index]
    assert (everything["strategy"], everything["group_size"]) == ("channel", None)


def test_a_large_model_comes_in_several_files_with_an_index(tmp_path: Path) -> None:
    scheme = SCHEMES["ct-asym"]
    one = exported(tmp_path / "one", LLAMA, scheme)
    many = exported(tmp_path / "many", LLAMA, scheme, shard_nbytes=20_000)
    files = sorted(path.name for path in many.glob("*.safetensors"))
    assert len(files) > 2
    assert files[0] == f"model-00001-of-{len(files):05d}.safetensors"
    index = json.loads((many / "model.safetensors.index.json").read_text(encoding="utf-8"))
    a, b = arrays_of(one), arrays_of(many)
    assert a.keys() == b.keys() == index["weight_map"].keys()
    assert all(np.array_equal(a[name], b[name]) for name in a)
    assert index["metadata"]["total_size"] == sum(array.nbytes for array in a.values())
    with open_checkpoint(many) as checkpoint:
        assert len(checkpoint.paths) == len(files)


def test_tensors_lie_aligned(tmp_path: Path) -> None:
    out = exported(tmp_path, LLAMA, SCHEMES["ct-asym"])
    with open_model(out) as source:
        for tensor in source.files.tensors.values():
            item = tensor.nbytes // max(1, int(np.prod(tensor.shape)))
            assert tensor.offset % item == 0, tensor


def test_changed_tensors_go_back_to_the_folders_own_form(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "source", replace(CASES["gemma3"], n_layers=1))
    norm, scheme = "blk.0.attn_norm.weight", SCHEMES["gptq"]
    values = np.linspace(0.5, 2, 64, dtype=np.float32)
    with open_model(folder) as source:
        plan = plan_export(source, scheme, linears_of(source), changed=[norm])
        with exporting(source, tmp_path / "out", plan) as writer:
            writer.put_changed(norm, values)
            for name in plan.linears:
                writer.put_linear(name, linear_of(scheme, name, source.tensors[name].shape))
    stored = arrays_of(tmp_path / "out")["model.layers.0.input_layernorm.weight"]
    assert np.array_equal(stored, values - np.float32(1))
    with open_checkpoint(tmp_path / "out") as found:
        assert np.allclose(found.tensor(norm).dequantize(), values, rtol=0, atol=2**-23)


def test_linears_left_alone_are_said_so_and_kept(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "source", QWEN)
    scheme = SCHEMES["ct"]
    with open_model(folder) as source:
        chosen = [name for name in linears_of(source) if "ffn_down" not in name]
        plan = plan_export(source, scheme, chosen)
        assert plan.skipped == ("lm_head", "model.layers.0.mlp.down_proj")
        with exporting(source, tmp_path / "out", plan) as writer:
            for name in plan.linears:
                writer.put_linear(name, linear_of(scheme, name, source.tensors[name].shape))
        before = source.tensor("blk.0.ffn_down.weight").data
    with open_checkpoint(tmp_path / "out") as found:
        assert found.tensor("blk.0.ffn_down.weight").data.tobytes() == before.tobytes()


def test_nothing_is_left_when_it_breaks_off(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "source", QWEN)
    with open_model(folder) as source:
        plan = plan_export(source, SCHEMES["gptq"], linears_of(source))
        with pytest.raises(KeyboardInterrupt), exporting(source, tmp_path / "out", plan):
            raise KeyboardInterrupt
        with (
            pytest.raises(AssertionError, match=r"attn_q\.weight was not put"),
            exporting(source, tmp_path / "out", plan),
        ):
            pass
    assert os.listdir(tmp_path) == ["source"]


def test_a_folder_that_is_there_is_kept_unless_forced(tmp_path: Path) -> None:
    exported(tmp_path, QWEN, SCHEMES["gptq"])
    with pytest.raises(UsageError, match="exists; name another folder, or use --force"):
        exported(tmp_path, QWEN, SCHEMES["gptq"])
    exported(tmp_path, QWEN, SCHEMES["awq"], force=True)
    assert not (tmp_path / "out" / "quantize_config.json").exists()


def test_too_small_a_disk_is_told_beforehand(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from types import SimpleNamespace

    from quantcli.checkpoint import drafts

    monkeypatch.setattr(drafts.shutil, "disk_usage", lambda path: SimpleNamespace(free=1000))
    with pytest.raises(ResourceError, match="not enough disk space"):
        exported(tmp_path, QWEN, SCHEMES["gptq"])


def test_a_gguf_file_cannot_be_exported(tmp_path: Path) -> None:
    with (
        open_checkpoint(write_tiny(tmp_path / "m.gguf", "llama")) as checkpoint,
        pytest.raises(UnsupportedModel, match=r"neither config\.json nor tokenizer\.json"),
    ):
        require_folder(checkpoint)


def test_a_quantized_folder_cannot_be_exported_again(tmp_path: Path) -> None:
    out = exported(tmp_path, QWEN, SCHEMES["gptq"])
    with (
        open_model(out) as source,
        pytest.raises(UnsupportedModel, match="is packed integers already"),
    ):
        plan_export(source, SCHEMES["gptq"], linears_of(source))


@pytest.mark.parametrize(
    ("arguments", "match"),
    [
        ({"format": "exl2"}, "unknown export format 'exl2'"),
        ({"format": "awq", "bits": 8}, "awq with 8 bits; it must be 4"),
        ({"format": "gptq", "bits": 3}, "must be 4 or 8"),
        ({"format": "gptq", "group": 0}, "a group of 0 inputs"),
        ({"format": "awq", "act_order": True}, "awq has no order of inputs"),
        ({"format": "gptq", "scale_dtype": "BF16"}, "gptq has scales in F16"),
    ],
)
def test_schemes_that_a_format_lacks_are_refused(arguments: dict[str, object], match: str) -> None:
    with pytest.raises((UsageError, UnknownName), match=match):
        ExportScheme(**arguments)  # type: ignore[arg-type]


def shapes(**parts: tuple[int, int]) -> dict[str, tuple[int, int]]:
    """Return shapes by GGUF name of a first layer."""
    return {f"blk.0.{part}.weight": shape for part, shape in parts.items()}


FITTING = shapes(attn_q=(128, 128), attn_k=(64, 128), attn_v=(64, 128))


def test_shapes_that_a_format_cannot_hold_are_refused() -> None:
    with pytest.raises(ShapeError, match=r"blk\.0\.attn_q\.weight has 100 inputs; gptq in groups"):
        problems(ExportScheme("gptq"), shapes(attn_q=(128, 100)))
    with pytest.raises(ShapeError, match=r"has 12 outputs; awq .* multiple of 8"):
        problems(ExportScheme("awq", group=32), shapes(attn_q=(12, 64)))
    with pytest.raises(ShapeError, match="has 12 outputs; gptq"):
        problems(ExportScheme("gptq", group=32), shapes(attn_q=(12, 64)))


def test_shapes_that_vllms_kernels_refuse_are_said() -> None:
    assert problems(ExportScheme("gptq"), FITTING) == []
    assert "asymmetric GPTQ" in problems(ExportScheme("gptq", symmetric=False), FITTING)[0]
    assert "groups of 16" in problems(ExportScheme("gptq", group=16), FITTING)[0]
    (narrow,) = problems(ExportScheme("gptq", group=64), shapes(ffn_down=(576, 1600)))
    assert "blk.0.ffn_down.weight (576 x 1600)" in narrow
    assert "inputs of 128" in narrow
    two = {**FITTING, "blk.0.attn_output.weight": (32, 64), "blk.1.attn_output.weight": (32, 64)}
    assert "and 1 more" in problems(ExportScheme("gptq", group=64), two)[0]


def test_parts_of_what_vllm_joins_must_be_quantized_together() -> None:
    (problem,) = problems(ExportScheme("gptq"), shapes(ffn_up=(128, 128), ffn_down=(128, 128)))
    assert problem.startswith("blk.0.ffn_gate is not quantized, but others of ffn_gate, ffn_up are")


def test_scales_that_would_be_rounded_are_a_mistake() -> None:
    scheme = ExportScheme("gptq", group=32)
    linear = linear_of(scheme, "x", (8, 32))
    third = QuantizedLinear(linear.codes, np.full_like(linear.scales, 1 / 3))
    with pytest.raises(AssertionError, match="f16 rounds"):
        scheme.arrays(third)
    with pytest.raises(AssertionError, match="bf16 rounds"):
        replace(scheme, format="compressed-tensors", scale_dtype="BF16").arrays(third)
