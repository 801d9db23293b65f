"""Commands on a tiny model, from the words typed to what is printed; NumPy computes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from source_tree import ROOT
from tiny import write_tiny

from quantcli.cli.app import main


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny(tmp_path_factory.mktemp("models") / "tiny.gguf", "llama", context=256)


@pytest.fixture(autouse=True)
def reference(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compile nothing."""
    monkeypatch.setenv("QUANTCLI_BACKEND", "reference")


def run(capsys: pytest.CaptureFixture[str], *words: object) -> tuple[int, str, str]:
    """Run a command line; return its exit code and what it printed."""
    code = main([str(word) for word in words])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def test_the_answer_is_the_same_each_time_and_alone(
    tiny: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ("run", tiny, "-p", "hello", "-n", 8, "--seed", 1)
    code, first, err = run(capsys, *words)
    assert (code, err) == (0, "")
    assert run(capsys, *words) == (0, first, "")
    assert first.endswith("\n")


def test_llama_cpps_spelling_gives_the_same(tiny: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ours = ("--prompt", "hello", "--max-tokens", 6, "--seed", 3, "--no-chat", "--kv-type", "q8_0")
    theirs = ("-p", "hello", "--n-predict", 6, "-s", 3, "-no-cnv", "-ctk", "q8_0", "-ctv", "q8_0")
    answer = run(capsys, "run", tiny, *ours)
    assert answer == run(capsys, "run", "-m", tiny, *theirs)
    assert answer[0] == 0
    assert len(answer[1]) > 1


def test_json_holds_text_tokens_and_timings(tiny: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ("run", tiny, "-p", "hello", "-n", 5, "--temp", 0, "--ignore-eos")
    code, out, err = run(capsys, *words, "--json")
    document = json.loads(out)
    assert (code, err) == (0, "")
    assert len(document["tokens"]) == 5
    assert document["finish"] == "length"
    assert document["settings"]["temperature"] == 0
    assert document["timings"]["n_generated"] == 5
    plain = run(capsys, *words)[1]
    assert plain.removesuffix("\n") == document["text"].removesuffix("\n")


def test_cache_kinds_and_the_length_of_the_context_do_not_change_the_answer(
    tiny: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ("run", tiny, "-p", "hello", "-n", 6, "--temp", 0, "--ignore-eos")
    answers = {
        run(capsys, *words, *more)
        for more in ((), ("--cache", "paged"), ("--ctx", 64), ("--threads", 1))
    }
    assert len(answers) == 1


def test_a_logit_bias_decides(tiny: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = run(capsys, "run", tiny, "-p", "a", "-n", 3, "--temp", 0, "-l", "7+1000", "--json")[1]
    assert json.loads(out)["tokens"] == [7, 7, 7]


def test_no_tokens_are_an_empty_answer(tiny: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(capsys, "run", tiny, "-p", "hello", "-n", 0) == (0, "\n", "")


def test_a_prompt_longer_than_the_context_gives_both_counts(
    tiny: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ("run", tiny, "-p", "word " * 300, "-c", 32, "-n", 4)
    code, out, err = run(capsys, *words)
    assert (code, out) == (2, "")
    assert err.startswith("error: the prompt has ")
    assert "the context 32" in err
    assert "--context-shift" in err
    code, out, err = run(capsys, *words, "--context-shift")
    assert (code, err) == (0, "")


def test_a_full_context_ends_the_answer_and_says_so(
    tiny: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, _, err = run(capsys, "run", tiny, "-p", "hello", "-c", 32, "--ignore-eos", "-s", 1)
    assert code == 0
    assert err.startswith("the context of 32 tokens is full.")


def test_verbose_says_what_it_took(tiny: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = run(capsys, "run", tiny, "-p", "hello", "-n", 4, "--verbose")
    assert code == 0
    assert "prompt " in err
    assert "generated " in err
    assert "peak memory" in err


def test_tokenize_gives_ids_pieces_and_json(tiny: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, ids, err = run(capsys, "tokenize", tiny, "hello you", "--ids", "--no-bos")
    assert (code, err) == (0, "")
    tokens = [int(word) for word in ids.split()]
    document = json.loads(run(capsys, "tokenize", tiny, "hello you", "--json", "--no-bos")[1])
    assert [token["id"] for token in document["tokens"]] == tokens
    assert b"".join(bytes.fromhex(t["bytes"]) for t in document["tokens"]) == b"hello you"
    lines = run(capsys, "tokenize", "-m", tiny, "hello you", "--no-bos")[1].splitlines()
    assert [int(line.split()[0]) for line in lines] == tokens


def test_inspect_counts_what_is_in_the_file(tiny: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capsys, "inspect", tiny, "--json", "--plan", "--ctx", 128)
    document = json.loads(out)
    assert (code, err) == (0, "")
    tensors = document["tensors"]
    assert document["summary"]["weights_nbytes"] == sum(t["nbytes"] for t in tensors)
    assert document["summary"]["layers"] == 2
    # 2 x layers x kv heads x head dim x bytes of an f16
    assert document["memory"]["kv_nbytes_per_token"] == 2 * 2 * 2 * 32 * 2
    assert document["memory"]["kv_nbytes"] == 128 * 512
    assert any("attention" in line for line in document["plan"])
    half = json.loads(run(capsys, "inspect", tiny, "--json", "--kv-type", "q8_0")[1])
    assert half["memory"]["kv_nbytes_per_token"] == 512 * 34 // 64


def test_inspect_for_people_has_every_section(
    tiny: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, _ = run(capsys, "inspect", tiny, "--tensors", "--plan", "--template")
    assert code == 0
    lines = out.splitlines()
    for title in ("summary", "memory", "metadata", "formats", "tensors", "plan", "chat template"):
        assert title in lines
    assert "blk.1.ffn_down.weight" in out


def test_inspect_shows_a_model_that_cannot_be_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write_tiny(tmp_path / "other.gguf", "llama", n_layers=1)
    path.write_bytes(path.read_bytes().replace(b"llama", b"mamba"))
    code, out, err = run(capsys, "inspect", path)
    assert (code, err) == (0, "")
    assert "architecture 'mamba' is not supported" in out
    assert "blk.0" not in out
    assert run(capsys, "run", path, "-p", "x")[0] == 1


def test_doctor_knows_the_machine_and_what_a_model_takes(
    tiny: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, err = run(capsys, "doctor", tiny, "--json", "--ctx", 64)
    document = json.loads(out)
    assert (code, err) == (0, "")
    assert document["processor"]["default_threads"] >= 1
    assert document["processor"]["instruction_set"] in document["processor"]["usable"]
    assert 0 < document["memory"]["available_nbytes"] <= document["memory"]["total_nbytes"]
    assert document["model"]["context"] == 64
    assert document["model"]["fits"] is True
    code, out, _ = run(capsys, "doctor")
    assert code == 0
    assert out.splitlines()[0] == "software"


@pytest.mark.parametrize("kind", ["md", "json", "csv"])
def test_bench_measures_what_was_asked(
    tiny: Path, capsys: pytest.CaptureFixture[str], kind: str
) -> None:
    words = ("bench", tiny, "-p", "8,12", "-n", 3, "-d", "0,4", "-r", 2, "-o", kind)
    code, out, err = run(capsys, *words)
    assert (code, err) == (0, "")
    if kind == "json":
        tests = [(e["n_prompt"], e["n_gen"], e["n_depth"]) for e in json.loads(out)]
        assert tests == [(8, 0, 0), (12, 0, 0), (0, 3, 0), (8, 0, 4), (12, 0, 4), (0, 3, 4)]
        assert all(len(e["samples_ts"]) == 2 and e["avg_ts"] > 0 for e in json.loads(out))
    elif kind == "csv":
        assert len(out.splitlines()) == 7
        assert out.startswith("quantcli,")
    else:
        lines = out.splitlines()
        assert [line.split(" | ")[5].strip() for line in lines[2:] if line.startswith("|")] == [
            "pp8",
            "pp12",
            "tg3",
            "pp8 @ d4",
            "pp12 @ d4",
            "tg3 @ d4",
        ]


@pytest.mark.parametrize("command", ["run", "bench", "inspect", "tokenize", "doctor"])
@pytest.mark.parametrize("bad", ["missing", "folder", "empty", "page"])
def test_what_is_no_model_is_one_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], command: str, bad: str
) -> None:
    path = tmp_path / "m.gguf"
    if bad == "folder":
        path.mkdir()
    elif bad == "empty":
        path.write_bytes(b"")
    elif bad == "page":
        path.write_bytes(b"<!DOCTYPE html><html></html>" * 9)
    text = {"run": ("-p", "x"), "tokenize": ("x",)}.get(command, ())
    code, out, err = run(capsys, command, path, *text)
    assert code in (1, 2)
    assert out == ""
    assert err.startswith("error: ")
    assert err.count("\n") == 1
    assert "m.gguf" in err


def process(tiny: Path, *words: str) -> subprocess.Popen[bytes]:
    """Start a command that answers without end."""
    command = [sys.executable, "-m", "quantcli", "run", str(tiny), "-p", "hello", "--ignore-eos"]
    return subprocess.Popen(
        [*command, "-n", "-1", "--context-shift", *words],
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, "QUANTCLI_BACKEND": "reference"},
    )


@pytest.mark.skipif(sys.platform == "win32", reason="no SIGINT to a child there")
def test_ctrl_c_while_answering_prints_what_there_is(tiny: Path) -> None:
    child = process(tiny, "--verbose")
    assert child.stdout is not None
    assert child.stdout.read(1)
    child.send_signal(signal.SIGINT)
    out, err = child.communicate(timeout=120)
    assert child.returncode == 130
    assert out.endswith(b"\n")
    assert b"generated" in err
    assert b"Traceback" not in err
    assert b"error" not in err


@pytest.mark.skipif(sys.platform == "win32", reason="no SIGINT to a child there")
@pytest.mark.parametrize("after_s", [0.05, 0.15, 0.3, 0.5, 0.8])
def test_ctrl_c_at_any_time_is_quiet(tiny: Path, after_s: float) -> None:
    child = process(tiny)
    time.sleep(after_s)
    child.send_signal(signal.SIGINT)
    _, err = child.communicate(timeout=120)
    if child.returncode == 130:
        assert err == b""
    else:  # before we had a say: Python was still starting
        assert child.returncode in (1, -signal.SIGINT)
        assert b"in main" not in err


@pytest.mark.skipif(sys.platform == "win32", reason="no POSIX shell")
def test_a_reader_that_goes_away_ends_the_answer_quietly(tiny: Path) -> None:
    child = process(tiny)
    assert child.stdout is not None
    assert child.stdout.read(1)
    child.stdout.close()
    child.stdout = None
    _, err = child.communicate(timeout=120)
    assert child.returncode == 141
    assert err == b""
