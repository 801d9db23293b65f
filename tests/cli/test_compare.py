"""`compare` from the words typed to what is printed, on tiny models; NumPy computes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from source_tree import ROOT
from tiny import write_tiny

from quantcli.cli.app import main

Pair = tuple[Path, Path]


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Pair:
    """Return the same weights in 8 bits and in 4."""
    folder = tmp_path_factory.mktemp("models")
    options = {"seed": 3, "context": 4096}
    fine = write_tiny(folder / "fine.gguf", "llama", weight_format="q8_0", **options)
    return fine, write_tiny(folder / "rough.gguf", "llama", weight_format="q4_0", **options)


@pytest.fixture(autouse=True)
def reference(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compile nothing."""
    monkeypatch.setenv("QUANTCLI_BACKEND", "reference")
    monkeypatch.setenv("NO_COLOR", "")


def run(capsys: pytest.CaptureFixture[str], *words: object) -> tuple[int, str, str]:
    code = main(["compare", *map(str, words)])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def document(capsys: pytest.CaptureFixture[str], *words: object) -> dict[str, Any]:
    code, out, err = run(capsys, *words, "--json")
    assert (code, err) == (0, "")
    return json.loads(out)  # type: ignore[no-any-return]


PROMPT = ("-p", "hello", "-c", 256, "--ignore-eos")


def test_both_answers_are_those_of_run(pair: Pair, capsys: pytest.CaptureFixture[str]) -> None:
    found = document(capsys, *pair, *PROMPT, "-n", 12)
    for side, path in zip("ab", pair, strict=True):
        words = ["run", str(path), *map(str, PROMPT), "-n", "12", "--temp", "0", "--json"]
        assert main(words) == 0
        alone = json.loads(capsys.readouterr().out)
        assert found[side]["tokens"] == alone["tokens"]
        assert found[side]["text"] == alone["text"]
        assert found["prompt_tokens"] == alone["prompt_tokens"]
        assert found[side]["model"] == path.name


def test_positions_are_aligned_and_greedy(pair: Pair, capsys: pytest.CaptureFixture[str]) -> None:
    found = document(capsys, *pair, *PROMPT, "-n", 20)
    a, b, n = found["a"]["tokens"], found["b"]["tokens"], found["n_common"]
    assert a[:n] == b[:n]
    assert n < 20, "these two should part"
    assert a[n] != b[n]
    assert [p["token"] for p in found["along_a"]] == a
    assert [p["top"][0] for p in found["along_a"]] == a
    assert [(p["index"], p["token"]) for p in found["along_b"]] == list(enumerate(b))[n:]
    assert [p["top"][1] for p in found["along_b"]] == b[n:]
    at_parting = found["along_a"][n]
    assert at_parting["top"] == [a[n], b[n]]
    assert at_parting["kl"] == pytest.approx(found["along_b"][0]["kl"], rel=1e-4)
    for position in found["along_a"]:
        assert 0 <= position["p"][0] <= 1
        assert position["p"][0] == position["p_top_a"][0]
        assert position["p_top_b"][1] >= position["p"][1]
    summary = found["summary_a"]
    assert summary["n_tokens"] == 20
    assert summary["kl_mean"] == pytest.approx(sum(p["kl"] for p in found["along_a"]) / 20)


def test_the_table_has_a_row_a_token_and_no_colours_in_a_pipe(
    pair: Pair, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, err = run(capsys, *pair, *PROMPT, "-n", 20)
    assert (code, err) == (0, "")
    assert "\x1b" not in out
    lines = out.splitlines()
    assert lines[:2] == ["A  fine.gguf", "B  rough.gguf"]
    n = document(capsys, *pair, *PROMPT, "-n", 20)["n_common"]
    assert f"the answers part at token {n + 1}" in lines
    start = lines.index("along A's answer")
    assert lines[start + 1].split()[:2] == ["#", "token"]
    assert [line.split()[0] for line in lines[start + 2 : start + 22]] == [
        str(i) for i in range(1, 21)
    ]
    assert f"along B's answer, from token {n + 1} on" in lines
    assert sum(line.startswith("KL divergence of B from A: mean") for line in lines) == 2


def test_a_terminal_shows_differences_in_colour_unless_told_not_to(
    pair: Pair, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    words = (*pair, *PROMPT, "-n", 8)
    plain = run(capsys, *words)[1]
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")
    coloured = run(capsys, *words)[1]
    assert "\x1b[33m" in coloured
    assert len(coloured.splitlines()) == len(plain.splitlines())
    monkeypatch.setenv("NO_COLOR", "1")
    assert run(capsys, *words)[1] == plain


def test_one_model_under_two_settings(pair: Pair, capsys: pytest.CaptureFixture[str]) -> None:
    found = document(capsys, pair[0], *PROMPT, "-n", 8, "--kv-type-b", "q8_0")
    assert found["a"]["model"] == "fine.gguf (kv f16)"
    assert found["b"]["model"] == "fine.gguf (kv q8_0)"
    assert 0 < found["summary_a"]["kl_max"] < 0.1


def test_kinds_of_cache_and_threads_change_nothing(
    pair: Pair, capsys: pytest.CaptureFixture[str]
) -> None:
    words = (pair[1], *PROMPT, "-n", 8, "--cache-b", "paged", "--threads-b", 3)
    found = document(capsys, *words)
    assert found["a"]["tokens"] == found["b"]["tokens"]
    assert found["summary_a"]["kl_max"] == 0
    assert found["along_b"] == []
    assert "the answers are the same, 8 tokens" in run(capsys, *words)[1].splitlines()


def test_a_seed_gives_both_the_same_chances(pair: Pair, capsys: pytest.CaptureFixture[str]) -> None:
    words = (pair[0], pair[0], *PROMPT, "-n", 12, "--temp", 1.5, "--seed", 7)
    found = document(capsys, *words)
    assert found["a"]["tokens"] == found["b"]["tokens"]
    assert any(p["token"] != p["top"][0] for p in found["along_a"])
    assert document(capsys, *words)["a"] == found["a"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("-p", "x"), "nothing to compare A with"),
        (("-p", "x", "--kv-type-b", "f16"), "nothing to compare A with"),
        (("-p", "x", "--kv-type-b", "f8"), "unknown KV cache type 'f8'"),
        (("-p", "x", "--backend-b", "gpu"), "unknown backend 'gpu'"),
        (("-p", "x", "--cache-b", "ring"), "unknown cache 'ring'"),
        (("-p", "", "--kv-type-b", "q8_0"), "the prompt is empty"),
        (("-p", "x", "--kv-type-b", "q8_0", "--temp", "-1"), "temperature is -1.0"),
        (("-p", "x", "--kv-type-b", "q8_0", "-n", "0"), "'0' must be 1 or more"),
        (("-p", "word " * 300, "--kv-type-b", "q8_0", "-c", "32"), "the prompt has"),
        (("-p", "x", "--no-chat", "--system", "y", "--kv-type-b", "q8_0"), "--system is part"),
    ],
)
def test_bad_usage_is_one_sentence(
    pair: Pair, capsys: pytest.CaptureFixture[str], words: tuple[str, ...], message: str
) -> None:
    code, out, err = run(capsys, pair[0], *words)
    assert (code, out) == (2, "")
    assert err.startswith("error: ")
    assert message in err
    assert err.count("\n") == 1


def test_different_vocabularies_are_refused_before_anything_is_loaded(
    pair: Pair, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = write_tiny(tmp_path / "other.gguf", "gemma3")
    code, out, err = run(capsys, pair[0], other, "-p", "x")
    assert (code, out) == (2, "")
    assert "fine.gguf has a vocabulary of " in err
    assert "and other.gguf one of " in err


@pytest.mark.skipif(sys.platform == "win32", reason="no SIGINT to a child there")
def test_ctrl_c_shows_what_there_is(pair: Pair) -> None:
    command = [sys.executable, "-m", "quantcli", "compare", *map(str, pair), "-p", "hello", "-v"]
    child = subprocess.Popen(
        [*command, "-n", "4000", "--ignore-eos"],
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, "QUANTCLI_BACKEND": "reference"},
    )
    assert child.stderr is not None
    for line in child.stderr:
        if line == b"A answers\n":
            break
    child.send_signal(signal.SIGINT)
    out, err = child.communicate(timeout=120)
    assert child.returncode == 130
    assert out.startswith(b"A  fine.gguf\nB  rough.gguf\n\nA     ")
    assert b"part at" not in out
    assert b"Traceback" not in err


def test_a_real_model_in_half_the_cache_is_close_and_in_pages_the_same(
    smollm2_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("QUANTCLI_BACKEND")
    words = (smollm2_path, "-p", "The capital of France is", "--no-chat", "-c", 128, "-n", 6)
    half = document(capsys, *words, "--kv-type-b", "q8_0")
    assert 0 < half["summary_a"]["kl_mean"] < 0.05
    assert " Paris" in half["a"]["text"]
    same = document(capsys, *words, "--cache-b", "paged", "--threads-b", 1)
    assert same["a"]["tokens"] == same["b"]["tokens"] == half["a"]["tokens"]
    assert same["summary_a"]["kl_max"] == 0
