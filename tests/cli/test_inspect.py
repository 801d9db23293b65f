"""`inspect`: what is in a file, in any of its states, and the memory that running it will take."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import gguf
import pytest
from gguf_builder import GGUF, Tensor, key
from tiny import Tiny, write_model, write_tiny

from quantcli.arch import get
from quantcli.checkpoint import open_checkpoint
from quantcli.cli.app import main
from quantcli.cli.doctor import plan_facts
from quantcli.runtime.model import Model
from quantcli.runtime.sizing import size_model


def run(capsys: pytest.CaptureFixture[str], *words: object) -> tuple[int, str, str]:
    code = main(["inspect", *map(str, words)])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def document(capsys: pytest.CaptureFixture[str], *words: object) -> dict[str, Any]:
    code, out, err = run(capsys, *words, "--json")
    assert (code, err) == (0, "")
    return json.loads(out)  # type: ignore[no-any-return]


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("models") / "tiny.gguf"
    return write_tiny(path, "llama", weight_format=("q4_0", "q8_0"), context=256)


def test_counts_agree_with_another_reader(tiny: Path, capsys: pytest.CaptureFixture[str]) -> None:
    reader = gguf.GGUFReader(tiny)
    found = document(capsys, tiny)
    n_params = sum(int(t.n_elements) for t in reader.tensors)
    nbytes = sum(int(t.n_bytes) for t in reader.tensors)
    summary = found["summary"]
    assert summary["parameters"] == n_params
    assert summary["weights_nbytes"] == nbytes
    assert summary["bits_per_weight"] == round(8 * nbytes / n_params, 3)
    theirs = {
        t.name: (list(map(int, reversed(t.shape))), t.tensor_type.name) for t in reader.tensors
    }
    ours = {t["name"]: (t["shape"], t["format"].upper()) for t in found["tensors"]}
    assert ours == theirs
    assert found["metadata"]["llama.block_count"] == 2


@pytest.mark.parametrize("kv_type", ["f16", "q8_0"])
@pytest.mark.parametrize("context", [64, 200])
def test_the_memory_is_what_loading_the_model_says(
    tiny: Path, capsys: pytest.CaptureFixture[str], context: int, kv_type: str
) -> None:
    found = document(capsys, tiny, "--ctx", context, "--kv-type", kv_type)["memory"]
    with open_checkpoint(tiny) as checkpoint:
        model = Model.load(checkpoint, context=context, kv_type=kv_type, backend="reference")
        want = plan_facts(model.memory)
        model.close()
    assert found.pop("kv_type") == kv_type
    for facts in (found, want):
        facts.pop("available_nbytes")  # changes from one moment to the next
    assert found == want
    assert found["context"] == context
    assert found["kv_nbytes"] == context * found["kv_nbytes_per_token"]


def test_the_plan_is_the_one_that_runs(tiny: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = document(capsys, tiny, "--plan")["plan"]
    with open_checkpoint(tiny) as checkpoint:
        assert found == list(size_model(checkpoint).plan.lines())
    assert "plan" not in document(capsys, tiny)
    lines = run(capsys, tiny, "--plan")[1].splitlines()
    assert [line.strip() for line in lines[lines.index("plan") + 1 :]] == found


def test_the_chat_template_is_shown_on_a_sample(
    tiny: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = document(capsys, tiny)
    assert found["summary"]["chat_template"] is True
    sample = found["chat_template_sample"]
    for text in ("You are a helpful assistant.", "Hello", "Hi there", "How are you?"):
        assert text in sample
    out = run(capsys, tiny, "--template")[1]
    assert out.split("a chat in it\n")[1].rstrip("\n") == sample.rstrip("\n")


def test_a_template_that_fails_is_shown_with_the_reason(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "m.gguf"
    keys = [
        key("general.architecture", "llama"),
        key("tokenizer.chat_template", "{{ raise_exception('no system') }}"),
    ]
    path.write_bytes(GGUF(keys, [Tensor("w", (32,))]).build())
    code, out, err = run(capsys, path, "--template")
    assert (code, err) == (0, "")
    assert "no system" in out.split("a chat in it\n")[1]


def test_licence_and_tokenizer_are_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "m.gguf"
    keys = [
        key("general.architecture", "llama"),
        key("general.license", "other"),
        key("general.license.name", "Some terms"),
        key("general.license.link", "https://example.com/terms"),
        key("tokenizer.ggml.model", "gpt2"),
        key("tokenizer.ggml.pre", "smollm"),
    ]
    path.write_bytes(GGUF(keys, [Tensor("w", (32,))]).build())
    summary = document(capsys, path)["summary"]
    assert summary["licence"] == "other (Some terms)"
    assert summary["licence_link"] == "https://example.com/terms"
    assert summary["tokenizer"] == "gpt2 (smollm)"
    assert summary["chat_template"] is False


def test_without_a_licence_it_says_none(tiny: Path, capsys: pytest.CaptureFixture[str]) -> None:
    summary = document(capsys, tiny)["summary"]
    assert summary["licence"] is None
    assert "licence_link" not in summary
    lines = run(capsys, tiny)[1].splitlines()
    assert [line.split() for line in lines if line.startswith("  licence")] == [["licence", "none"]]


def test_formats_are_counted_with_their_bits(
    tiny: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = run(capsys, tiny)[1].splitlines()
    table = [line.split() for line in lines[lines.index("formats") + 1 :]]
    assert table[0][:2] == ["format", "tensors"]
    bits = {row[0]: row[-1] for row in table[1:]}
    assert bits == {"f32": "32", "q4_0": "4.5", "q8_0": "8.5"}
    n_tensors = len(document(capsys, tiny)["tensors"])
    assert sum(int(row[1]) for row in table[1:]) == n_tensors


def split(tiny: Path, folder: Path, n: int) -> list[Path]:
    """Write a model's tensors into n files, as llama-gguf-split does."""
    reader = gguf.GGUFReader(tiny)
    tensors = reader.tensors
    paths = []
    for number in range(n):
        path = folder / f"tiny-{number + 1:05d}-of-{n:05d}.gguf"
        writer = gguf.GGUFWriter(path, "llama")
        if number == 0:
            for name, field in reader.fields.items():
                if not name.startswith("GGUF.") and name != "general.architecture":
                    sub = field.types[-1] if len(field.types) > 1 else None
                    writer.add_key_value(name, field.contents(), field.types[0], sub)
        writer.add_uint16("split.no", number)
        writer.add_uint16("split.count", n)
        writer.add_int32("split.tensors.count", len(tensors))
        for tensor in tensors[number::n]:
            writer.add_tensor(tensor.name, tensor.data, raw_dtype=tensor.tensor_type)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        paths.append(path)
    return paths


def test_a_split_model_is_one_model_whichever_part_is_named(
    tiny: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    paths = split(tiny, tmp_path, 3)
    whole, parts = document(capsys, tiny), document(capsys, paths[0])
    assert parts["summary"]["files"] == [path.name for path in paths]
    for name in ("parameters", "weights_nbytes", "bits_per_weight", "layers"):
        assert parts["summary"][name] == whole["summary"][name]
    assert {t["name"]: t for t in parts["tensors"]} == {t["name"]: t for t in whole["tensors"]}
    assert parts["memory"]["total_nbytes"] == whole["memory"]["total_nbytes"]
    code, out, err = run(capsys, paths[0])
    assert (code, err) == (0, "")
    assert f"3 items: {paths[0].name}" in out


@pytest.mark.parametrize("plan", [(), ("--plan",)])
def test_an_architecture_we_do_not_run_is_shown_with_the_reason(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], plan: tuple[str, ...]
) -> None:
    path = tmp_path / "m.gguf"
    keys = [key("general.architecture", "mamba"), key("mamba.block_count", 3)]
    path.write_bytes(GGUF(keys, [Tensor("blk.0.ssm_a", (32, 4))]).build())
    code, out, err = run(capsys, path, "--tensors", *plan)
    assert (code, err) == (0, "")
    assert "not supported    architecture 'mamba' is not supported; quantcli runs" in out
    assert "blk.0.ssm_a" in out
    found = document(capsys, path, *plan)
    assert found["summary"]["not_supported"].startswith("architecture 'mamba'")
    assert found["memory"]["none"].startswith("architecture 'mamba'")
    assert found["metadata"]["mamba.block_count"] == 3


def test_a_known_architecture_with_a_tensor_too_many_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    class Strange(Tiny):
        def shapes(self) -> dict[str, tuple[int, ...]]:
            return {**super().shapes(), "blk.0.attn_sinks.weight": (4,)}

    path = write_model(tmp_path / "m.gguf", Strange("llama"))
    found = document(capsys, path)
    assert "attention sinks are not supported" in found["summary"]["not_supported"]
    assert found["summary"]["layers"] == 2
    assert "attention sinks" in found["memory"]["none"]


def test_a_context_that_does_not_fit_is_said_with_the_numbers(
    tiny: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = document(capsys, tiny, "--ctx", 1 << 40)
    assert "a context of 1099511627776 tokens needs" in found["memory"]["none"]
    assert "not_supported" not in found["summary"]


def test_what_a_file_says_cannot_steer_the_terminal(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "m.gguf"
    keys = [key("general.architecture", "llama"), key("general.name", "a\x1b[2Jb\r\u202ec")]
    path.write_bytes(GGUF(keys, [Tensor("w", (32,))]).build())
    out = run(capsys, path, "--tensors", "--template")[1]
    assert not set("\x1b\r\u202e") & set(out)
    assert "\\x1b[2J" in out


@pytest.mark.parametrize("arch", ["gemma3", "llama", "qwen2", "qwen3"])
def test_every_architecture_has_a_plan_and_a_memory_need(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], arch: str
) -> None:
    path = write_tiny(tmp_path / "m.gguf", arch)
    found = document(capsys, path, "--plan", "--ctx", 64)
    assert get(arch).name == found["summary"]["architecture"]
    assert found["memory"]["fits"] is True
    assert found["memory"]["kv_nbytes_per_token"] == 2 * 2 * 2 * 32 * 2
    assert any("attention" in line for line in found["plan"])


def test_weights_that_are_unpacked_are_remarked_here_and_by_doctor(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write_tiny(tmp_path / "m.gguf", "llama", weight_format=("iq3_s", "iq1_m", "q8_0"))
    remark = "weights in iq1_m, iq3_s are unpacked in memory, without loss: they take "
    assert remark in document(capsys, path)["summary"]["notes"]
    assert main(["doctor", str(path), "--json"]) == 0
    assert remark in json.loads(capsys.readouterr().out)["model"]["notes"]
