"""`bench` from the words typed to what is printed, on tiny models; NumPy computes but once."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from fake_llama_cpp import Library
from source_tree import ROOT
from tiny import write_tiny

from quantcli.checkpoint import open_checkpoint
from quantcli.cli.app import main
from quantcli.cli.bench import chosen
from quantcli.cli.render import StatusLine


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny(tmp_path_factory.mktemp("models") / "tiny.gguf", "llama", context=64)


@pytest.fixture(autouse=True)
def reference(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compile nothing."""
    monkeypatch.setenv("QUANTCLI_BACKEND", "reference")


def run(capsys: pytest.CaptureFixture[str], *words: object) -> tuple[int, str, str]:
    """Run `bench`; return its exit code and what it printed."""
    code = main(["bench", *map(str, words)])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def documents(capsys: pytest.CaptureFixture[str], *words: object) -> list[dict[str, object]]:
    code, out, err = run(capsys, *words, "--json")
    assert (code, err) == (0, "")
    return json.loads(out)  # type: ignore[no-any-return]


def refused(capsys: pytest.CaptureFixture[str], *words: object, code: int = 2) -> str:
    """Run `bench`, which must fail with one sentence, and return that."""
    got, out, err = run(capsys, *words)
    assert (got, out) == (code, "")
    assert err.startswith("error: ")
    assert err.count("\n") == 1
    return err


def test_every_test_is_run_under_every_setting(
    tiny: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = documents(
        capsys, tiny, "-p", 8, "-n", 3, "-b", "1,2", "-t", "1,2", "--kv-type", "f16,q8_0", "-r", 1
    )
    keys = ("type_k", "n_threads", "n_prompt", "n_gen", "n_sequences")
    assert [tuple(e[key] for key in keys) for e in found] == [
        (kv_type, n_threads, *test)
        for kv_type in ("f16", "q8_0")
        for n_threads in (1, 2)
        for test in ((8, 0, 1), (0, 3, 1), (0, 3, 2))
    ]
    for entry in found:
        total = entry["n_prompt"] or entry["n_gen"] * entry["n_sequences"]  # type: ignore[operator]
        assert entry["avg_ts"] == pytest.approx(1e9 * total / entry["avg_ns"], rel=1e-6)  # type: ignore[operator]


def test_load_first_token_and_memory_are_measured_too(
    tiny: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (entry, _) = documents(capsys, tiny, "-p", 8, "-n", 2, "-r", 2)
    assert entry["load_s"] > 0  # type: ignore[operator]
    assert entry["first_token_s"] > 0  # type: ignore[operator]
    assert entry["first_token_prompt"] == 8
    assert entry["peak_memory_nbytes"] > 10_000_000  # type: ignore[operator]
    assert entry["read_share"] is entry["dot_share"] is None  # NumPy is not held against them
    _, out, _ = run(capsys, tiny, "-p", 8, "-n", 2, "-r", 2)
    assert "first token of a 8-token prompt after" in out.splitlines()[-1]


@pytest.mark.jit
def test_compiled_kernels_are_held_against_the_machine(
    tiny: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    prompt, generation = documents(
        capsys, tiny, "-p", 8, "-n", 2, "-r", 2, "--backend", "compiled", "-t", 1
    )
    assert 0 < prompt["dot_share"] < 1  # type: ignore[operator]
    assert prompt["read_share"] is None
    assert 0 < generation["read_share"] < 1  # type: ignore[operator]
    assert generation["read_nbytes_per_s"] > 1e6  # type: ignore[operator]


def test_saved_results_can_be_compared_with(
    tiny: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "old.json"
    words = (tiny, "-p", 8, "-n", 2, "-r", 1)
    assert run(capsys, *words, "--save", path)[0] == 0
    saved = json.loads(path.read_text(encoding="utf-8"))
    assert [entry["n_prompt"] for entry in saved] == [8, 0]
    now = documents(capsys, *words, "--compare", path)
    assert now[0]["then_ts"] == saved[0]["median_ts"]
    assert now[0]["ratio"] == pytest.approx(now[0]["median_ts"] / saved[0]["median_ts"])  # type: ignore[operator]
    code, out, err = run(capsys, *words, "-p", "8,4", "--compare", path)
    assert (code, err) == (0, "")
    lines = [line for line in out.splitlines() if "not in the file" in line]
    assert len(lines) == 1
    assert "pp4" in lines[0]


def test_save_replaces_no_file_unless_told_to(
    tiny: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "old.json"
    path.write_text("mine", encoding="utf-8")
    words = (tiny, "-p", 4, "-n", 0, "-r", 1, "--save", path)
    assert "exists" in refused(capsys, *words)
    assert path.read_text(encoding="utf-8") == "mine"
    assert run(capsys, *words, "--force")[0] == 0
    assert json.loads(path.read_text(encoding="utf-8"))
    assert "no folder" in refused(capsys, tiny, "--save", tmp_path / "none" / "x.json")


def test_a_context_that_is_too_short_is_refused_with_the_numbers(
    tiny: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    err = refused(capsys, tiny, "-p", 60, "-n", 4, "-d", "0,10")
    assert "pp60 @ d10 needs a context of 70 tokens, and tiny.gguf was made for 64" in err
    assert "--ctx 70" in err
    err = refused(capsys, tiny, "-p", 8, "-n", 33, "--ctx", 32)
    assert "tg33 needs a context of 33 tokens, and --ctx is 32" in err
    assert run(capsys, tiny, "-p", 70, "-n", 0, "-r", 1, "--ctx", 80)[0] == 0


def test_full_leaves_out_what_the_context_has_no_room_for(
    tiny: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, err = run(capsys, tiny, "--full", "-p", 4, "-n", 2, "-r", 1)
    assert code == 0
    tests = [line.split(" | ")[5] for line in out.splitlines()[2:] if line.startswith("| ")]
    assert tests == ["pp4", "tg2", "tg2 x2", "tg2 x4", "tg2 x8", "tg2 x16"]
    assert err.startswith("tiny.gguf has room for 64 tokens; left out: pp4 @ d2048, tg2 @ d2048")


def test_more_sequences_than_a_step_or_the_memory_holds_are_refused(
    tiny: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    err = refused(capsys, tiny, "-p", 0, "-n", 2, "-b", 300)
    assert "tg2 x300 needs steps of 300 rows, and 256 is the most" in err
    words = ("-p", 0, "-n", 2, "-b", 256, "--ctx", 1 << 30)
    err = refused(capsys, tiny, *words, code=1)
    assert "KV cache of 256 x 1073741824 tokens" in err


def test_all_models_are_checked_before_any_is_measured(
    tiny: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bad = tmp_path / "bad.gguf"
    bad.write_bytes(b"GGUF")
    assert "bad.gguf" in refused(capsys, tiny, bad, "-p", 4, "-n", 0, code=1)


def test_a_peer_takes_turns_and_has_its_own_records(
    tiny: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    library = Library()
    monkeypatch.setitem(sys.modules, "llama_cpp", library)
    words = (tiny, "-p", 8, "-n", 2, "-r", 2, "--peer", "llama-cpp-python")
    found = documents(capsys, *words)
    assert [entry["program"].split()[0] for entry in found] == [  # type: ignore[attr-defined]
        "quantcli",
        "llama-cpp-python",
    ] * 2
    assert [entry["n_prompt"] for entry in found] == [8, 8, 0, 0]
    assert found[1]["samples_ts"] != found[0]["samples_ts"]
    assert found[0]["peak_memory_nbytes"] is None  # nobody can tell whose it is
    assert library.freed == ["batch", "context", "model"]
    code, out, _ = run(capsys, *words)
    assert code == 0
    assert out.splitlines()[0].endswith("| of limit | peer t/s | ratio |")


def test_a_peer_that_is_not_there_is_said_before_anything_is_measured(
    tiny: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "llama_cpp", None)
    assert "pip install" in refused(capsys, tiny, "--peer", "llama-cpp-python")
    assert "unknown peer 'vllm'" in refused(capsys, tiny, "--peer", "vllm")


def test_without_a_model_random_weights_are_measured(capsys: pytest.CaptureFixture[str]) -> None:
    with chosen([], StatusLine()) as paths:
        (path,) = paths
        with open_checkpoint(path) as checkpoint:
            assert checkpoint.n_params == 134_515_008
    assert not path.exists()
    assert "no model is installed, so this measures random weights" in capsys.readouterr().err


@pytest.mark.skipif(sys.platform == "win32", reason="no SIGINT to a child there")
def test_ctrl_c_prints_and_saves_what_there_is(tiny: Path, tmp_path: Path) -> None:
    path = tmp_path / "part.json"
    command = [sys.executable, "-m", "quantcli", "bench", str(tiny), "--save", str(path)]
    child = subprocess.Popen(
        [*command, "-p", "2", "-n", "60", "-r", "200"],
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, "QUANTCLI_BACKEND": "reference"},
    )
    assert child.stdout is not None
    lines = [child.stdout.readline() for _ in range(3)]
    assert b"| pp2 |" in lines[-1]
    child.send_signal(signal.SIGINT)
    out, err = child.communicate(timeout=120)
    assert child.returncode == 130
    assert b"first token of a 2-token prompt" in out
    assert err == b""
    assert json.loads(path.read_text(encoding="utf-8"))[0]["n_prompt"] == 2
