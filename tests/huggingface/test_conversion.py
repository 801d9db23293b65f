"""Folders converted to GGUF: what llama.cpp converts them to, key by key and byte by byte."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from gguf_contents import contents
from hf_archs import CASES
from hf_cases import Case
from hf_folders import write_folder
from loaded_model import loaded, step
from tokenizers import Tokenizer

from quantcli.checkpoint import open_checkpoint
from quantcli.errors import UnknownName, UsageError
from quantcli.huggingface.convert import Converted, convert, plan_conversion
from quantcli.huggingface.folder import open_model
from quantcli.text.hf_pre import PRE_OF_HASH, TEXT, hash_of

GOLDENS = json.loads(
    (Path(__file__).parent.parent / "goldens" / "convert.json").read_text(encoding="utf-8")
)
PRE = "gpt-2"
SMALL = Case("Qwen3ForCausalLM", qk_norm=True, vocabulary="spm")


def converted(folder: Path, type_name: str = "auto") -> Path:
    """Convert a folder beside itself and return the file."""
    path = folder.parent / "out.gguf"
    with open_model(folder, pre=PRE) as checkpoint:
        convert(checkpoint, plan_conversion(checkpoint, path, type_name))
    return path


@pytest.mark.parametrize("name", GOLDENS)
def test_keys_and_tensors_are_those_of_llama_cpps_converter(name: str, tmp_path: Path) -> None:
    case, _, type_name = name.rpartition("-")
    folder = write_folder(tmp_path / case, CASES[case])
    found = json.loads(json.dumps(contents(converted(folder, type_name))))
    want = GOLDENS[name]
    if case == "gptneox":  # whose converter forgets it
        want["keys"]["general.file_type"] = found["keys"]["general.file_type"]
    assert found["keys"] == want["keys"]
    assert found["tensors"] == want["tensors"]


def test_the_hash_of_a_vocabulary_is_the_converters(tmp_path: Path) -> None:
    n_checked = 0
    for name, golden in GOLDENS.items():
        case = name.rpartition("-")[0]
        if "hash" in golden and not (tmp_path / case).exists():
            folder = write_folder(tmp_path / case, CASES[case])
            pipeline = Tokenizer.from_file(str(folder / "tokenizer.json"))
            assert hash_of(pipeline.encode(TEXT).ids) == golden["hash"]
            n_checked += 1
    assert n_checked >= 4


def test_the_table_of_hashes_holds_hashes() -> None:
    assert all(len(key) == 64 and set(key) <= set("0123456789abcdef") for key in PRE_OF_HASH)
    assert {"llama-bpe", "qwen2", "gpt-2", "smollm", "tekken"} <= set(PRE_OF_HASH.values())


@pytest.mark.parametrize("name", ["llama3", "llama2", "qwen2", "qwen3", "gemma3", "gpt_oss"])
def test_a_folder_is_the_file_that_it_converts_to(name: str, tmp_path: Path) -> None:
    folder = write_folder(tmp_path / name, CASES[name])
    path = converted(folder)
    with open_model(folder, pre=PRE) as ours, open_checkpoint(path) as file:
        assert dict(ours.metadata).keys() == dict(file.metadata).keys()
        for key in file.metadata:
            assert np.array_equal(np.asarray(ours.metadata[key]), np.asarray(file.metadata[key]))
            assert ours.metadata.type_name(key) == file.metadata.type_name(key), key
        assert list(ours.tensors) == list(file.tensors)
        for tensor in file.tensors:
            a, b = ours.tensor(tensor), file.tensor(tensor)
            assert (a.shape, a.format.name) == (b.shape, b.format.name)
            assert a.data.tobytes() == b.data.tobytes(), tensor


@pytest.mark.parametrize(
    "name", ["llama3", "gemma3", "llama_biases", "gpt_oss", "gptneox", "deepseek3", "granitemoe"]
)
def test_any_range_of_bytes_is_that_part_of_the_whole(name: str, tmp_path: Path) -> None:
    folder = write_folder(tmp_path / name, CASES[name])
    random = np.random.default_rng(3)
    with open_model(folder, pre=PRE) as checkpoint:
        for info in checkpoint.tensors.values():
            whole = checkpoint.tensor(info.name).data
            for _ in range(4):
                start, stop = sorted(random.integers(0, info.nbytes + 1, 2).tolist())
                part = np.empty(stop - start, np.uint8)
                checkpoint.read_into(info.name, part, start)
                assert part.tobytes() == whole[start:stop].tobytes(), info.name


@pytest.mark.jit
@pytest.mark.parametrize("name", ["llama2", "gpt_oss"])
def test_a_model_runs_from_its_folder_as_from_its_file(name: str, tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "m", CASES[name])
    tokens = [1, 40, 50, 60, 70]
    logits = []
    for path in (folder, converted(folder)):
        with loaded(path, context=32) as model:
            logits.append(step(model, [(0, 0, tokens)]))
    assert np.isfinite(logits[0]).all()
    assert logits[0].tobytes() == logits[1].tobytes()


def test_memory_holds_slabs_and_not_the_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from quantcli.huggingface import convert as module

    folder = write_folder(tmp_path / "m", replace(SMALL, n_vocab=3000, dtype="F32"))
    whole = converted(folder).read_bytes()
    monkeypatch.setattr(module, "_SLAB_NBYTES", 5000)
    largest = 0
    with open_model(folder) as checkpoint:
        plan = plan_conversion(checkpoint, tmp_path / "slabs.gguf", "auto")
        for spec in plan.tensors:
            largest = max(largest, *(slab.nbytes for slab in module._slabs(checkpoint, spec)))
        convert(checkpoint, plan)
    assert largest <= 64 * 64 * 4  # the rows of a head, which are read together
    assert (tmp_path / "slabs.gguf").read_bytes() == whole


def planned(folder: Path, type_name: str, path: Path | None = None) -> Converted:
    """Return what a conversion would write."""
    with open_model(folder, pre=PRE) as checkpoint:
        return plan_conversion(checkpoint, path, type_name)


@pytest.mark.parametrize(
    ("dtype", "type_name", "chosen"),
    [
        ("BF16", "auto", "bf16"),
        ("F16", "auto", "f16"),
        ("F32", "auto", "f16"),
        ("F64", "auto", "f16"),
        ("F32", "bf16", "bf16"),
        ("F32", "f32", "f32"),
        ("BF16", "q8_0", "q8_0"),
    ],
)
def test_auto_is_the_models_own_16_bit_type(
    dtype: str, type_name: str, chosen: str, tmp_path: Path
) -> None:
    folder = write_folder(tmp_path / "My-Model", replace(SMALL, dtype=dtype))
    plan = planned(folder, type_name)
    assert plan.type == chosen
    assert plan.path == Path(f"My-Model-{chosen.upper()}.gguf")
    path = converted(folder, type_name)
    assert path.stat().st_size == plan.nbytes
    with open_checkpoint(path) as checkpoint:
        formats = {t.format.name for t in checkpoint.tensors.values() if len(t.shape) > 1}
        assert formats == {chosen}


def test_rows_that_are_not_whole_blocks_stay_in_16_bits(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "m", replace(SMALL, d_ff=72))
    plan = planned(folder, "q8_0")
    formats = {spec.name: spec.format.name for spec in plan.tensors}
    assert formats["blk.0.ffn_down.weight"] == "f16"
    assert formats["blk.0.ffn_up.weight"] == "q8_0"


def test_another_type_is_refused_with_those_there_are(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "m", SMALL)
    with pytest.raises(UnknownName, match=r"unknown type 'q4_k'.*Known: auto, bf16, f16, f32"):
        planned(folder, "q4_k")


def test_f32_and_f64_weights_survive_as_they_are_until_converted(tmp_path: Path) -> None:
    for dtype in ("F32", "F64"):
        folder = write_folder(tmp_path / dtype, replace(SMALL, dtype=dtype))
        with open_checkpoint(folder) as checkpoint:
            assert {t.format.name for t in checkpoint.tensors.values()} == {"f32"}
            assert checkpoint.metadata["general.file_type"] == 0


def test_a_file_that_is_there_is_kept(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "m", SMALL)
    converted(folder)
    with pytest.raises(UsageError, match="exists; name another file, or use --force"):
        converted(folder)
    assert sorted(os.listdir(tmp_path)) == ["m", "out.gguf"]
