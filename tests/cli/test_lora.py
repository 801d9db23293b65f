"""`--lora` on the command line: what it does to each command, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from lora_cases import EMBEDDINGS, Lora, keys, merged, write_adapter, write_pairs
from tiny import Tiny, write_model

from quantcli.cli.adapters import split_scale
from quantcli.cli.app import main
from quantcli.errors import UsageError

TINY = Tiny("llama", weight_format="f32", context=256)
LORA = Lora(targets=EMBEDDINGS)
SMALL = ("--temp", 0, "--ignore-eos", "-n", 6, "-p", "hello", "-c", 64)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with a model, an adapter, and the model with the adapter merged at 0.5."""
    path = tmp_path_factory.mktemp("models")
    write_model(path / "m.gguf", TINY)
    write_adapter(path / "a.gguf", TINY, LORA)
    write_model(path / "merged.gguf", merged(TINY, (LORA, 0.5)))
    return path


@pytest.fixture(autouse=True)
def reference(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compile nothing."""
    monkeypatch.setenv("QUANTCLI_BACKEND", "reference")
    monkeypatch.setenv("NO_COLOR", "")


def run(capsys: pytest.CaptureFixture[str], *words: object) -> tuple[int, str, str]:
    code = main([str(word) for word in words])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def document(capsys: pytest.CaptureFixture[str], *words: object) -> dict[str, Any]:
    code, out, err = run(capsys, *words, "--json")
    assert (code, err) == (0, "")
    return json.loads(out)  # type: ignore[no-any-return]


def test_a_scale_stands_behind_the_last_colon(tmp_path: Path) -> None:
    assert split_scale("a.gguf") == ("a.gguf", 1.0)
    assert split_scale("a.gguf:0.5") == ("a.gguf", 0.5)
    assert split_scale("a.gguf:-2e-1") == ("a.gguf", -0.2)
    assert split_scale(r"C:\x.gguf") == (r"C:\x.gguf", 1.0)
    assert split_scale(r"C:\x.gguf:0.5") == (r"C:\x.gguf", 0.5)
    assert split_scale("org/repo:Q8_0") == ("org/repo:Q8_0", 1.0)
    assert split_scale(":0.5") == (":0.5", 1.0)
    for bad in ("nan", "inf", "-inf", "1e999"):
        with pytest.raises(UsageError, match=f"the scale is {bad}"):
            split_scale(f"a.gguf:{bad}")
    there = tmp_path / "a.gguf"
    there.write_bytes(b"")
    with pytest.raises(UsageError, match=r"the scale is 'half'; give a number"):
        split_scale(f"{there}:half")


@pytest.mark.skipif("sys.platform == 'win32'", reason="no such name there")
def test_a_file_whose_name_ends_in_a_number_is_that_file(tmp_path: Path) -> None:
    path = tmp_path / "a.gguf:2"
    path.write_bytes(b"")
    assert split_scale(str(path)) == (str(path), 1.0)
    assert split_scale(f"{path}:3") == (str(path), 3.0)


def test_run_answers_as_merged_weights_do(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lora = f"{folder / 'a.gguf'}:0.5"
    found = document(capsys, "run", folder / "m.gguf", *SMALL, "--lora", lora)
    assert found["settings"]["lora"] == [{"id": 0, "path": str(folder / "a.gguf"), "scale": 0.5}]
    expected = document(capsys, "run", folder / "merged.gguf", *SMALL)
    assert found["tokens"] == expected["tokens"]
    without = document(capsys, "run", folder / "m.gguf", *SMALL)
    assert found["tokens"] != without["tokens"]
    assert without["settings"]["lora"] == []
    scaled = document(capsys, "run", folder / "m.gguf", *SMALL, "--lora-scaled", lora)
    assert scaled["tokens"] == found["tokens"]


def test_compare_puts_it_on_one_side(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ("compare", folder / "m.gguf", "-p", "hello", "-c", 64, "--ignore-eos", "-n", 6)
    found = document(capsys, *words, "--lora-b", f"{folder / 'a.gguf'}:0.5")
    assert found["a"]["tokens"] != found["b"]["tokens"]
    expected = document(capsys, "run", folder / "merged.gguf", *SMALL)
    assert found["b"]["tokens"] == expected["tokens"]
    turned = document(capsys, *words, "--lora", f"{folder / 'a.gguf'}:0.5", "--lora-b", "none")
    assert (turned["a"]["tokens"], turned["b"]["tokens"]) == (
        found["b"]["tokens"],
        found["a"]["tokens"],
    )


def test_eval_puts_it_on_models_and_not_on_the_base(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ("eval", folder / "m.gguf", "-c", 32, "--chunks", 1, "--against", folder / "m.gguf")
    (found,) = document(capsys, *words, "--lora", f"{folder / 'a.gguf'}:0.5")["models"]
    (expected,) = document(capsys, "eval", folder / "merged.gguf", *words[2:])["models"]
    assert found["name"] == "m + a.gguf:0.5"
    kl = found["divergence"]["kl"]["value"]
    assert kl > 0.01
    assert kl == pytest.approx(expected["divergence"]["kl"]["value"], rel=1e-3)


def test_bench_measures_with_it(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ("bench", folder / "m.gguf", "-p", 4, "-n", 2, "-r", 1, "-o", "json", "-q")
    code, out, err = run(capsys, *words, "--lora", folder / "a.gguf")
    assert (code, err) == (0, "")
    assert "a" in json.loads(out)[0]["model_type"].split(" + ")


def test_inspect_counts_it(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ("inspect", folder / "m.gguf", "--plan")
    without = document(capsys, *words)
    found = document(capsys, *words, "--lora", folder / "a.gguf")
    assert found["memory"]["weights_nbytes"] > without["memory"]["weights_nbytes"]
    assert found["summary"]["adapters"] == ["a.gguf"]
    assert any("lora0.blk.0.attn_q.weight.lora_a" in line for line in found["plan"])
    assert not any("lora" in line for line in without["plan"])


def test_inspect_says_what_an_adapter_is(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = document(capsys, "inspect", folder / "a.gguf")
    summary = found["summary"]
    assert (summary["kind"], summary["architecture"]) == ("LoRA adapter", "llama")
    assert (summary["rank"], summary["alpha"], summary["layers"]) == (4, 8.0, 2)
    assert summary["targets"][:2] == ["token_embd", "attn_q"]
    assert len(found["tensors"]) == 2 * summary["matrices"]
    code, out, _ = run(capsys, "inspect", folder / "a.gguf", "--tensors")
    assert code == 0
    assert "blk.1.ffn_down.weight.lora_b" in out
    assert "--lora" in out


def refused(capsys: pytest.CaptureFixture[str], *words: object) -> tuple[int, str]:
    code, out, err = run(capsys, *words)
    assert out == ""
    assert err.startswith("error: ")
    assert err.count("\n") == 1
    return code, err


@pytest.mark.parametrize("command", ["run", "quantize", "eval", "bench", "imatrix", "tokenize"])
def test_an_adapter_is_no_model(
    command: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    more = {"run": ("-p", "x"), "quantize": ("--type", "q4_0"), "tokenize": ("x",)}
    code, said = refused(capsys, command, folder / "a.gguf", *more.get(command, ()))
    assert code == 1
    assert "a.gguf: is a LoRA adapter, not a language model" in said


def test_what_is_wrong_is_one_line_and_a_code(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ("run", folder / "m.gguf", "-p", "x", "-n", 1)
    a = folder / "a.gguf"

    def with_lora(*values: object) -> tuple[int, str]:
        return refused(capsys, *words, *(w for value in values for w in ("--lora", value)))

    code, said = with_lora(folder / "b.gguf")
    assert (code, "no such file" in said) == (2, True)
    code, said = with_lora(f"{a}:nan")
    assert (code, "the scale is nan" in said) == (2, True)
    code, said = with_lora(f"{a}:1e300")
    assert (code, "a.gguf: with a scale of 1e+300 it is multiplied by 2e+300" in said) == (2, True)
    code, said = with_lora(a, f"{a}:0.5")
    assert (code, "is given twice" in said) == (2, True)
    code, said = with_lora(f"{a},{a}")
    assert (code, "a --lora of its own" in said) == (2, True)
    code, said = with_lora(folder / "m.gguf")
    assert (code, "is a model, not a LoRA adapter" in said) == (1, True)
    other = write_pairs(tmp_path / "o.gguf", "qwen2", LORA.matrices(TINY), keys("qwen2", 1.0))
    code, said = with_lora(a, other)
    assert (code, "o.gguf: is made for qwen2 models" in said) == (1, True)
