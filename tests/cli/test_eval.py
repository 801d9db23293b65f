"""quantcli eval on tiny models, from the words typed to what is printed; NumPy computes."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from source_tree import ROOT
from tiny import write_tiny

from quantcli.checkpoint import open_checkpoint
from quantcli.cli.app import main
from quantcli.evaluate import perplexity
from quantcli.evaluate.corpus import read_text
from quantcli.evaluate.protocol import cut, protocol
from quantcli.runtime.model import Model
from quantcli.text import from_metadata

TEXT = ROOT / "CONTRIBUTING.md"  # any text will do, and a short one is soon tokenized
SMALL = ("--ctx", 32, "--chunks", 3, "--text", TEXT)
N_CHUNKS, N_SCORED = 3, 3 * 15


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    for name in ("f32", "q8_0", "q4_0"):
        write_tiny(folder / f"{name}.gguf", "llama", weight_format=name, context=128)
    write_tiny(folder / "other.gguf", "gemma3", context=128)
    return folder


@pytest.fixture(autouse=True)
def reference(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compile nothing."""
    monkeypatch.setenv("QUANTCLI_BACKEND", "reference")


def run(capsys: pytest.CaptureFixture[str], *words: object) -> tuple[int, str, str]:
    """Run `quantcli eval`; return its exit code and what it printed."""
    code = main(["eval", *map(str, words)])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def good(capsys: pytest.CaptureFixture[str], *words: object) -> str:
    """Run `quantcli eval`, and return what it printed after checking that nothing went wrong."""
    code, out, err = run(capsys, *words)
    assert (code, err) == (0, "")
    return out


def parsed(capsys: pytest.CaptureFixture[str], *words: object) -> dict:  # type: ignore[type-arg]
    document = json.loads(good(capsys, *words, "--json"))
    assert isinstance(document, dict)
    return document


def test_perplexity_is_the_default_and_the_text_is_named(
    models: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = (models / "q4_0.gguf", "--ctx", 32, "--chunks", 3)
    out = good(capsys, *words)
    assert out == good(capsys, *words, "--ppl")
    table, text, how = re.split("\n(?=text|protocol)", out.rstrip("\n"))
    assert [line.split()[0] for line in table.split("\n")] == ["model", "q4_0"]
    assert text.startswith("text: sotu-1990-2020.txt (State of the Union")
    assert how == f"protocol: llama.cpp, 3 chunks of 32 tokens, {N_SCORED} scored"


def test_numbers_are_the_librarys(models: Path, capsys: pytest.CaptureFixture[str]) -> None:
    document = parsed(capsys, models / "other.gguf", *SMALL)
    with open_checkpoint(models / "other.gguf") as checkpoint:
        tokenizer = from_metadata(checkpoint.metadata)
        tokens = tokenizer.encode(read_text(TEXT).content)
        chunks = cut(tokens, protocol(context=32), tokenizer.bos, n_chunks=3)
        model = Model.load(checkpoint, context=32, backend="reference")
        expected = perplexity.summarize(list(perplexity.score(model, chunks, name="m")))
        n_bytes = sum(len(tokenizer.token_bytes(t)) for c in chunks for t in c.targets)
        n_params, nbytes = checkpoint.n_params, checkpoint.nbytes
    (found,) = document["models"]
    value = found["perplexity"]["value"]
    assert value == {"value": expected.value.value, "error": expected.value.error}
    bits = expected.nll.value * N_SCORED / np.log(2) / n_bytes
    assert found["perplexity"]["bits_per_byte"] == pytest.approx(bits)
    assert found["bits_per_weight"] == 8 * nbytes / n_params
    assert (found["n_chunks"], found["n_chunks_done"], found["is_complete"]) == (3, 3, True)
    assert document["text"]["sha256"] == read_text(TEXT).sha256
    assert document["protocol"] == {
        "name": "llama.cpp",
        "context": 32,
        "replaces": True,
        "first_row": 16,
        "n_scored": 15,
    }


def test_several_models_of_any_vocabulary_make_one_table(
    models: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = good(capsys, models / "q4_0.gguf", models / "other.gguf", *SMALL)
    assert [line.split()[0] for line in out.splitlines()[:3]] == ["model", "q4_0", "other"]


def test_two_files_of_one_name_are_told_apart(
    models: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    copy = tmp_path / "q4_0.gguf"
    copy.write_bytes((models / "q4_0.gguf").read_bytes())
    document = parsed(capsys, models / "q4_0.gguf", copy, *SMALL)
    assert [m["name"] for m in document["models"]] == [str(models / "q4_0.gguf"), str(copy)]


def test_the_literatures_protocol_scores_all_but_the_first(
    models: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ("--protocol", "full", *SMALL)
    document = parsed(capsys, models / "q4_0.gguf", *words)
    assert document["protocol"]["n_scored"] == 31
    code, _, err = run(capsys, models / "other.gguf", *words)
    assert code == 0
    assert "other wants BOS at the start of every text" in err
    assert run(capsys, models / "other.gguf", *words, "--bos")[2] == ""


def test_a_chunk_longer_than_the_training_context_is_remarked(
    models: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    long = (*SMALL, "--ctx", 160, "--chunks", 1)
    code, _, err = run(capsys, models / "q4_0.gguf", *long)
    assert code == 0
    assert err.startswith("q4_0 was trained with 128 tokens, and chunks are 160")
    assert run(capsys, models / "q4_0.gguf", *long, "--quiet")[2] == ""


def test_models_are_compared_with_a_base_in_one_table_and_one_page(
    models: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = tmp_path / "page.html"
    quantized = (models / "q4_0.gguf", models / "q8_0.gguf", models / "f32.gguf")
    words = (*quantized, "--against", models / "f32.gguf", *SMALL)
    out = good(capsys, *words, "--html", page)
    lines = out.splitlines()
    assert lines[0].split() == ["q4_0", "q8_0", "f32"]
    kl = next(line for line in lines if line.startswith("KL divergence, mean"))
    assert kl.split()[3:][::3][-1] == "0.000000"  # from itself
    assert "base: f32" in lines
    html = page.read_text(encoding="utf-8")
    assert html.count("<svg") == 3
    assert all(name in html for name in ("q4_0", "q8_0", "bits per weight"))
    found = {m["name"]: m["divergence"] for m in parsed(capsys, *words)["models"]}
    assert found["q4_0"]["kl"]["value"] > found["q8_0"]["kl"]["value"] > 0
    assert found["f32"]["kl"] == {"value": 0, "error": 0}
    assert found["f32"]["ratio"] == {"value": 1, "error": 0}
    assert all(m["is_exact"] for m in found.values())


def test_a_file_of_logits_is_made_once_and_gives_nearly_the_same(
    models: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    logits = tmp_path / "base.logits"
    words = (models / "q4_0.gguf", "--against", models / "f32.gguf", *SMALL)
    (exact,) = parsed(capsys, *words)["models"]
    (first,) = parsed(capsys, *words, "--logits", logits, "--top-k", 50)["models"]
    made = logits.stat().st_mtime_ns
    (second,) = parsed(capsys, *words, "--logits", logits)["models"]
    assert logits.stat().st_mtime_ns == made
    assert first == second
    assert not first["divergence"]["is_exact"]
    assert 0 < first["divergence"]["rest"] < 0.5
    assert first["divergence"]["kl"]["value"] <= exact["divergence"]["kl"]["value"]
    for name in ("perplexity", "base_perplexity", "same_top"):
        assert first["divergence"][name] == pytest.approx(exact["divergence"][name], rel=1e-9)
    good(capsys, *words, "--chunks", 2, "--logits", logits)  # it has as many, and more
    out = good(capsys, *words, "--logits", logits)
    assert ">= 0." in out
    assert "exactness: KL from a file is a lower bound" in out
    out = good(capsys, models / "q4_0.gguf", "--against", logits, *SMALL)  # the file is the base
    assert "base: f32" in out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--against", "q8_0.gguf"), "of another model: f32, not q8_0"),
        (("--ctx", 16), "of chunks of another length: 32, not 16"),
        (("--protocol", "full"), "of another protocol: llama.cpp, not full"),
        (("--text", "README.md"), "of another text: CONTRIBUTING.md, not README.md"),
        (("--chunks", 4), "of fewer chunks: 3, not 4"),
        (("--kv-type", "q8_0"), "another KV cache type: f16, not q8_0"),
        (("--top-k", 7), "another number of tokens a position: 9, not 7"),
    ],
)
def test_a_stale_file_of_logits_is_refused_by_what_differs(
    models: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    words: tuple[object, ...],
    message: str,
) -> None:
    logits = tmp_path / "base.logits"
    base = ("--against", models / "f32.gguf", "--logits", logits)
    good(capsys, models / "q4_0.gguf", *base, *SMALL, "--top-k", 9)
    changed = [models / word if str(word).endswith(".gguf") else word for word in words]
    changed = [ROOT / word if str(word).endswith(".md") else word for word in changed]
    code, out, err = run(capsys, models / "q4_0.gguf", *base, *SMALL, *changed)
    assert (code, out) == (2, "")
    assert message in err
    assert err.count("\n") == 1
    code, _, err = run(capsys, models / "q4_0.gguf", *base, *SMALL, *changed, "--force")
    assert (code, err) == (0, "")


def questions(path: Path, *records: object) -> Path:
    path.write_text("\n".join(map(json.dumps, records)), encoding="utf-8")
    return path


def test_multiple_choice_counts_both_ways(
    models: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = questions(
        tmp_path / "q.jsonl",
        {"context": "The sky is", "choices": ["blue", "green", "red"], "answer": 0},
        {"ctx": "He", "endings": ["ran away", "ran"], "label": 1},
    )
    out = good(capsys, models / "q4_0.gguf", models / "other.gguf", "--choices", file)
    assert out.splitlines()[0].split()[:3] == ["model", "size", "bits/weight"]
    assert "questions: 2 of q.jsonl, 41.7% by guessing" in out
    assert "text:" not in out
    document = parsed(capsys, models / "q4_0.gguf", "--choices", file, "--ppl", *SMALL)
    (found,) = document["models"]
    assert found["multiple_choice"]["n_questions"] == 2
    assert found["multiple_choice"]["acc"]["value"] in (0, 0.5, 1)
    assert found["perplexity"]["n_tokens"] == N_SCORED
    document = parsed(capsys, models / "q4_0.gguf", "--choices", file, "--questions", 1)
    assert document["models"][0]["n_questions"] == 1


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--text", "none.txt"), "no such file or directory: none.txt"),
        (("--choices", "none.jsonl"), "no such file or directory: none.jsonl"),
        (("--protocol", "half"), "unknown protocol 'half'"),
        (("--ctx", 2), "--ctx 2 is too short"),
        (("--logits", "x"), "--logits is about a comparison. Add --against"),
        (("--html", "x"), "--html is about a comparison. Add --against"),
        (("--top-k", 5), "--top-k is about the file of logits"),
        (("--questions", 5), "--questions is about multiple choice"),
        (("--against", "x.gguf"), "x.gguf"),
        (("--against", "{}/other.gguf"), "q4_0 has a vocabulary of"),
        (("--against", "{}/f32.gguf", "--html", "{}/f32.gguf"), "f32.gguf exists. Name another"),
        (("--against", "{}/f32.gguf", "--html", "{}/no/x.html"), "there is no folder"),
        (("--against", "{}/f32.gguf", "--logits", "{}/q8_0.gguf"), "is not a file of logits"),
    ],
)
def test_what_cannot_be_done_is_one_sentence(
    models: Path, capsys: pytest.CaptureFixture[str], words: tuple[object, ...], message: str
) -> None:
    filled = [str(word).replace("{}", str(models)) for word in words]
    code, out, err = run(capsys, models / "q4_0.gguf", *filled)
    assert code in (1, 2)
    assert out == ""
    assert err.startswith("error: ")
    assert message in err
    assert err.count("\n") == 1


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "is empty: there is no text"),
        (b"a\xff", "not valid UTF-8: byte 0xff at offset 1"),
        (b"Too short.", "tokens, and a chunk 512. Use a longer text or a smaller --ctx."),
    ],
)
def test_a_bad_text_is_refused_with_the_numbers(
    models: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], data: bytes, message: str
) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes(data)
    code, out, err = run(capsys, models / "q4_0.gguf", "--text", path)
    assert (code, out) == (2, "")
    assert message in err


def test_a_model_must_be_named(capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = run(capsys)
    assert code == 2
    assert "MODEL" in err


@pytest.mark.skipif(sys.platform == "win32", reason="no SIGINT to a child there")
@pytest.mark.parametrize("as_json", [False, True])
def test_ctrl_c_prints_what_was_measured(models: Path, tmp_path: Path, as_json: bool) -> None:
    words = [str(models / "q4_0.gguf"), "--against", str(models / "f32.gguf"), "--ctx", "64"]
    page = tmp_path / "page.html"
    words += ["--html", str(page), "--logits", str(tmp_path / "logits"), "--verbose"]
    child = subprocess.Popen(
        [sys.executable, "-m", "quantcli", "eval", *words, *(["--json"] if as_json else [])],
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, "QUANTCLI_BACKEND": "reference"},
    )
    assert child.stderr is not None
    while b"logits of f32" not in (line := child.stderr.readline()):
        assert line, "it ended before it began"
    child.send_signal(signal.SIGINT)
    out, err = child.communicate(timeout=120)
    assert child.returncode == 130
    assert b"Traceback" not in err
    assert list(tmp_path.iterdir()) == []  # neither a file of logits nor a page, nor drafts
    if as_json:
        (found,) = json.loads(out)["models"]
        assert not found["is_complete"]
        assert found["n_chunks_done"] < found["n_chunks"]
    else:
        assert re.search(rb"q4_0: interrupted after \d+ of \d+ chunks", out)
