"""Folders of packed integers as input: versions of zeros told apart, bad parts refused by name."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy
from hf_cases import Case
from hf_folders import dump, write_folder

from quantcli.checkpoint import open_checkpoint
from quantcli.errors import CheckpointError, ModelError, UnsupportedModel
from quantcli.formats import F32
from quantcli.huggingface.export import exporting, plan_export
from quantcli.huggingface.folder import open_model
from quantcli.huggingface.scheme import ExportScheme, QuantizedLinear

CASE = Case("Qwen3ForCausalLM", "F16", n_layers=1, tied=True, qk_norm=True, vocabulary="spm")
UP = "model.layers.0.mlp.up_proj"
GPTQ = ExportScheme("gptq", group=32)


def packed(tmp_path: Path, scheme: ExportScheme) -> Path:
    """Return a folder whose up matrix is packed."""
    folder = write_folder(tmp_path / "source", CASE)
    random = np.random.default_rng(0)
    codes = random.integers(0, 1 << scheme.bits, (96, 64), np.uint8)
    scales = (random.integers(1, 99, (96, 2)) / 256).astype(np.float32)
    zeros = None if scheme.symmetric else random.integers(1, 16, (96, 2), np.uint8)
    with open_model(folder) as source:
        plan = plan_export(source, scheme, ["blk.0.ffn_up.weight"])
        with exporting(source, tmp_path / "m", plan) as writer:
            writer.put_linear("blk.0.ffn_up.weight", QuantizedLinear(codes, scales, zeros))
    return tmp_path / "m"


def up(folder: Path) -> F32:
    """Return the weights of the packed matrix."""
    with open_checkpoint(folder) as checkpoint:
        return checkpoint.tensor("blk.0.ffn_up.weight").dequantize()


def change(folder: Path, **changes: object) -> None:
    """Change quantization_config."""
    table = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    table["quantization_config"].update(changes)
    dump(folder / "config.json", table)


def rewrite(folder: Path, edit: Callable[[dict[str, Any]], object]) -> None:
    """Change the tensors."""
    tensors = safetensors.numpy.load_file(folder / "model.safetensors")
    edit(tensors)
    safetensors.numpy.save_file(tensors, folder / "model.safetensors")


def plus_one(tensors: dict[str, Any]) -> None:
    """Store zeros as version 2 does: as they are."""
    tensors[f"{UP}.qzeros"] += np.int32(0x11111111)


@pytest.mark.parametrize("symmetric", [True, False])
def test_version_2_stores_zeros_as_they_are(tmp_path: Path, symmetric: bool) -> None:
    folder = packed(tmp_path, replace(GPTQ, symmetric=symmetric))
    before = up(folder)
    rewrite(folder, plus_one)
    change(folder, checkpoint_format="gptq_v2")
    assert np.array_equal(up(folder), before)


def test_symmetric_zeros_give_away_a_version_that_is_misstated(tmp_path: Path) -> None:
    folder = packed(tmp_path, GPTQ)
    before = up(folder)
    change(folder, checkpoint_format="gptq_v2")  # but stored as version 1
    assert np.array_equal(up(folder), before)
    rewrite(folder, plus_one)
    change(folder, checkpoint_format="gptq")  # but stored as version 2
    assert np.array_equal(up(folder), before)


def test_a_zero_of_16_is_not_wrapped(tmp_path: Path) -> None:
    folder = packed(tmp_path, replace(GPTQ, symmetric=False))
    rewrite(folder, lambda t: t.update({f"{UP}.qzeros": t[f"{UP}.qzeros"] | np.int32(-1)}))
    tensors = safetensors.numpy.load_file(folder / "model.safetensors")
    code = int(tensors[f"{UP}.qweight"][0, 0]) & 15
    assert up(folder)[0, 0] == (code - 16) * np.float32(tensors[f"{UP}.scales"][0, 0])


def test_an_order_of_inputs_may_be_missing(tmp_path: Path) -> None:
    folder = packed(tmp_path, GPTQ)
    before = up(folder)
    rewrite(folder, lambda tensors: tensors.pop(f"{UP}.g_idx"))
    assert np.array_equal(up(folder), before)


@pytest.mark.parametrize(("scheme", "name"), [("gptq", "quantize_config"), ("awq", "quant_config")])
def test_older_folders_say_it_in_a_file_of_its_own(tmp_path: Path, scheme: str, name: str) -> None:
    folder = packed(tmp_path, ExportScheme(scheme, group=32))
    before = up(folder)
    table = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    said = table.pop("quantization_config")
    said.pop("quant_method")
    if scheme == "awq":
        said = {"w_bit": said["bits"], "q_group_size": said["group_size"], "version": "GEMM"}
    dump(folder / "config.json", table)
    dump(folder / f"{name}.json", said)
    assert np.array_equal(up(folder), before)


@pytest.mark.parametrize(
    ("method", "changes", "match"),
    [
        ("gptq", {"quant_method": "bitsandbytes"}, "quant_method is 'bitsandbytes'"),
        ("gptq", {"quant_method": None}, "quant_method is 'None'"),
        ("gptq", {"bits": 3}, "gptq with bits 3"),
        ("gptq", {"bits": "4"}, "gptq with bits '4'"),
        ("gptq", {"group_size": "x"}, "group_size 'x'"),
        ("awq", {"bits": 8}, "awq with bits 8"),
        ("awq", {"version": "gemv"}, "AWQ of version 'gemv'; quantcli reads gemm"),
        ("compressed-tensors", {"format": "float-quantized"}, "'float-quantized'; quantcli reads"),
    ],
)
def test_other_ways_of_packing_are_refused_by_name(
    tmp_path: Path, method: str, changes: dict[str, object], match: str
) -> None:
    folder = packed(tmp_path, ExportScheme(method, group=32))
    change(folder, **changes)
    with pytest.raises(UnsupportedModel, match=match):
        open_checkpoint(folder)


def put(name: str, array: np.ndarray) -> Callable[[dict[str, Any]], object]:
    """Return an edit that replaces a tensor of the packed matrix."""
    return lambda tensors: tensors.update({f"{UP}.{name}": array})


def dropped(name: str) -> Callable[[dict[str, Any]], object]:
    """Return an edit that leaves a tensor out."""
    return lambda tensors: tensors.pop(f"{UP}.{name}")


@pytest.mark.parametrize(
    ("method", "edit", "match"),
    [
        ("gptq", dropped("scales"), r"has no tensor 'model.*up_proj\.scales'"),
        ("gptq", dropped("qzeros"), r"has no tensor 'model.*up_proj\.qzeros'"),
        ("gptq", dropped("qweight"), "qzeros' has no place|scales' has no place|g_idx' has no"),
        ("gptq", put("scales", np.ones((3, 96), np.float16)), "qzeros' has shape .* must be 3 x"),
        (
            "gptq",
            put("scales", np.ones((2, 95), np.float16)),
            "scales' has shape .* must be . x 96",
        ),
        (
            "gptq",
            put("scales", np.ones((2, 96), np.int32)),
            "scales' is I32; it must be BF16 or F16",
        ),
        ("gptq", put("g_idx", np.ones(63, np.int32)), r"g_idx' has shape \[63\]; it must be 64"),
        ("gptq", put("qweight", np.ones((8, 96, 1), np.int32)), "qweight' has shape"),
        ("gptq", put("qweight", np.ones((16, 96), np.int32)), "make 4|must be 128"),
        ("awq", put("qzeros", np.ones((2, 11), np.int32)), "qzeros' has shape"),
        ("compressed-tensors", dropped("weight_shape"), "has no tensor .*weight_shape"),
        ("compressed-tensors", put("weight_shape", np.array([96, 65])), "in 2, 4, 8 bits"),
        ("compressed-tensors", put("weight_shape", np.array([-96, 64])), "in 2, 4, 8 bits"),
        ("compressed-tensors", put("weight_shape", np.array([1 << 60, 64])), "in 2, 4, 8 bits"),
        ("compressed-tensors", put("weight_scale", np.ones((96, 99), np.float16)), "99 groups"),
    ],
)
def test_parts_that_do_not_fit_are_refused_by_name(
    tmp_path: Path, method: str, edit: Callable[[dict[str, Any]], object], match: str
) -> None:
    folder = packed(tmp_path, ExportScheme(method, group=32))
    rewrite(folder, edit)
    with pytest.raises(ModelError, match=match) as caught:
        open_checkpoint(folder)
    assert str(caught.value).startswith(str(folder))


def test_a_group_that_does_not_exist_is_refused_when_it_is_read(tmp_path: Path) -> None:
    folder = packed(tmp_path, GPTQ)
    rewrite(folder, put("g_idx", np.full(64, 2, np.int32)))
    with open_checkpoint(folder) as checkpoint:  # noqa: SIM117
        with pytest.raises(CheckpointError, match="goes from 2 to 2; there are 2 groups"):
            checkpoint.tensor("blk.0.ffn_up.weight")


def test_what_was_rounded_before_is_said(tmp_path: Path) -> None:
    with open_model(packed(tmp_path, GPTQ)) as checkpoint:
        assert checkpoint.packed == ("blk.0.ffn_up.weight",)
        (note,) = checkpoint.notes
        assert note.endswith("blk.0.ffn_up.weight and others are quantized in the folder; they are "
                             "read as f32.")  # fmt: skip
    with open_model(tmp_path / "source") as checkpoint:
        assert checkpoint.packed == checkpoint.notes == ()


def test_a_quantized_folder_converts_to_a_file(tmp_path: Path) -> None:
    from quantcli.huggingface.convert import convert, plan_conversion

    folder = packed(tmp_path, GPTQ)
    with open_model(folder) as checkpoint:
        plan = plan_conversion(checkpoint, tmp_path / "out.gguf", "f32")
        convert(checkpoint, plan)
    with open_checkpoint(tmp_path / "out.gguf") as file:
        assert np.array_equal(file.tensor("blk.0.ffn_up.weight").dequantize(), up(folder))
