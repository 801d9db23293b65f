"""quantcli quantize on tiny models, from the words typed to the file written."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tiny import write_tiny

from quantcli.checkpoint import open_checkpoint
from quantcli.cli.app import main
from quantcli.cli.quantize_run import default_output
from quantcli.quantize import sensitivity

pytestmark = pytest.mark.jit


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    write_tiny(folder / "m-F16.gguf", "llama", weight_format="f16", context=128)
    write_tiny(folder / "wide.gguf", "qwen3", weight_format="bf16", d_model=256, d_ff=512)
    write_tiny(folder / "q8.gguf", "llama", weight_format="q8_0", context=128)
    return folder


@pytest.fixture(autouse=True)
def reference(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compile no model."""
    monkeypatch.setenv("QUANTCLI_BACKEND", "reference")


def run(capsys: pytest.CaptureFixture[str], *words: object) -> tuple[int, str, str]:
    code = main(["quantize", *map(str, words)])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def parsed(capsys: pytest.CaptureFixture[str], *words: object) -> dict[str, Any]:
    code, out, err = run(capsys, *words, "--json", "--quiet")
    assert (code, err) == (0, "")
    document = json.loads(out)
    assert isinstance(document, dict)
    return document


def refused(capsys: pytest.CaptureFixture[str], *words: object) -> str:
    """Run what must fail with one line; return it after checking that it is one."""
    code, out, err = run(capsys, *words, "--quiet")
    assert code in (1, 2), (code, err)
    assert out == ""
    assert err.count("\n") == 1, err
    return f"{code} {err}"


def test_a_model_is_quantized_and_the_report_is_what_the_file_holds(
    models: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out, page = tmp_path / "out.gguf", tmp_path / "out.html"
    report = parsed(
        capsys, models / "m-F16.gguf", "--type", "Q4_0", "-o", out, "--html", page, "-t", 2
    )
    with open_checkpoint(out) as written:
        assert [t["name"] for t in report["tensors"]] == list(written.tensors)
        assert [t["format"] for t in report["tensors"]] == [
            t.format.name for t in written.tensors.values()
        ]
        assert report["nbytes"] == written.nbytes
        assert written.metadata["general.file_type"] == 2
    assert report["verification"]["kl"]["value"] > 0
    assert report["verification"]["sample"].startswith("Once upon a time")
    text = page.read_text(encoding="utf-8")
    assert "Error by layer" in text
    assert "<script" not in text
    assert not re.search(r'(src|href)="', text)


def test_the_default_type_is_q4_k_m_and_the_name_says_so(
    models: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = tmp_path / "wide.gguf"
    source.write_bytes((models / "wide.gguf").read_bytes())
    report = parsed(capsys, source, "--no-verify")
    assert report["output"] == str(tmp_path / "wide-q4_k_m.gguf")
    with open_checkpoint(tmp_path / "wide-q4_k_m.gguf") as written:
        assert written.metadata["general.file_type"] == 15
        assert written.tensors["blk.0.ffn_up.weight"].format.name == "q4_k"


def test_a_dry_run_shows_what_a_run_then_does_and_writes_nothing(
    models: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = (models / "wide.gguf", "--type", "q3_k_m", "-o", tmp_path / "out.gguf")
    plan = parsed(capsys, *words, "--dry-run")
    assert list(tmp_path.iterdir()) == []
    report = parsed(capsys, *words, "--no-verify")
    assert plan["nbytes"] == report["nbytes"]
    assert {t["name"]: t["format"] for t in plan["tensors"]} == {
        t["name"]: t["format"] for t in report["tensors"]
    }
    assert sum(row["nbytes"] for row in plan["kinds"]) == plan["nbytes"]
    assert plan["memory_nbytes"] > 0
    assert plan["seconds"] > 0


def test_a_dry_run_for_people_names_sizes_fallbacks_memory_and_time(
    models: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, err = run(capsys, models / "m-F16.gguf", "--dry-run")
    assert (code, err) == (0, "")
    assert re.search(r"attn_q +128 x 128 +2 +f16 +q5_0 +5\.500 .*128 is no multiple of 256", out)
    assert re.search(r"memory +\d+ MB of ", out)
    assert re.search(r"time +about \d+ s with", out)
    assert re.search(r"q4_k_m grows from 5\.\d+ to 6\.\d+ bits per weight", out)


def test_a_dry_run_goes_on_where_a_run_would_not_and_says_so(
    models: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "out.gguf"
    output.write_bytes(b"mine")
    words = (models / "wide.gguf", "-o", output)
    assert run(capsys, *words)[0] == 2
    code, out, err = run(capsys, *words, "--dry-run")
    assert code == 0
    assert "out.gguf exists" in err
    assert "q4_k_m" in out
    assert output.read_bytes() == b"mine"


def test_a_type_can_keep_its_size_where_rows_fit_no_block(
    models: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = (
        models / "m-F16.gguf", "-o", tmp_path / "o.gguf", "--dry-run", "--fallback", "size",
        "--no-probe",
    )  # fmt: skip
    plan = parsed(capsys, *words)
    assert plan["bits_per_weight"] <= plan["nominal_bits_per_weight"]
    assert any("as --fallback llama.cpp does" in line for line in plan["remarks"])
    code, out, _ = run(capsys, *words, "--type", "q2_k")
    assert code == 0
    assert "small enough for q2_k" in out


def test_formats_can_be_asked_for_one_by_one(
    models: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    report = parsed(
        capsys, models / "wide.gguf", "-o", tmp_path / "o.gguf", "--dry-run", "--tensor-type",
        "ffn_down=Q8_0", "--output-tensor-type", "f16", "--token-embedding-type", "q8_0",
    )  # fmt: skip
    formats = {t["name"]: t["format"] for t in report["tensors"]}
    assert formats["blk.1.ffn_down.weight"] == "q8_0"
    assert formats["output.weight"] == "f16"
    assert formats["token_embd.weight"] == "q8_0"


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("--type", "q4km"), "2 error: unknown type 'q4km'. Did you mean q4_k_m?"),
        (("--tensor-type", "x"), "2 error: --tensor-type 'x' is not REGEX=TYPE"),
        (("--tensor-type", "x=q9"), "2 error: unknown format 'q9'"),
        (("--fallback", "none"), "2 error: unknown fallback policy 'none'"),
        (("--keep-output", "--output-tensor-type", "q8_0"), "2 error: --keep-output and"),
        (("--threads", "0"), "2 error: -t, --threads: '0' must be 1 or more"),
        (("-o", "no/such/folder/x.gguf"), "2 error: no/such/folder/x.gguf: there is no folder"),
        (("--html", "no/such/x.html"), "2 error: --html no/such/x.html: there is no folder"),
        (("--backend", "gpu"), "2 error: unknown backend 'gpu'"),
        (("--gptq", "--calib-tokens", "9"), "2 error: 9 tokens are too few to calibrate on"),
        (("--calib-tokens", "9"), "2 error: --calib-tokens is about calibration"),
        (("--calib", "no/such/text"), "1 error: no such file or directory: no/such/text"),
    ],
)
def test_what_is_wrong_is_said_in_a_line(
    models: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    words: tuple[str, ...],
    expected: str,
) -> None:
    given = words if "-o" in words else (*words, "-o", tmp_path / "out.gguf")
    assert refused(capsys, models / "wide.gguf", *given).startswith(expected)
    assert list(tmp_path.iterdir()) == []


def test_a_source_that_is_quantized_is_refused_without_permission(
    models: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out.gguf"
    words = (models / "q8.gguf", "--type", "q4_0", "-o", out)
    assert "--allow-requantize" in refused(capsys, *words)
    code, _, err = run(capsys, *words, "--allow-requantize", "--no-verify")
    assert code == 0
    assert "rounded for the second time (q8_0)" in err
    assert out.exists()


def test_an_output_in_the_way_is_not_replaced(
    models: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out.gguf"
    out.write_bytes(b"mine")
    assert "exists; name another file" in refused(capsys, models / "m-F16.gguf", "-o", out)
    assert out.read_bytes() == b"mine"
    mine = tmp_path / "m.gguf"
    mine.write_bytes((models / "m-F16.gguf").read_bytes())
    assert "is the model itself" in refused(capsys, mine, "-o", mine, "--force")


def test_a_file_that_is_no_model_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "x.gguf"
    path.write_bytes(b"not a model at all")
    assert refused(capsys, path).startswith("1 error:")
    assert refused(capsys, tmp_path / "missing.gguf").startswith("2 error:")


def test_weights_that_are_not_finite_are_refused(
    models: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes((models / "m-F16.gguf").read_bytes())
    with open_checkpoint(path) as model:
        offset = model.tensors["blk.1.attn_v.weight"].offset
    raw = bytearray(path.read_bytes())
    raw[offset + 2 : offset + 4] = np.float16(np.nan).tobytes()
    path.write_bytes(raw)
    said = refused(capsys, path, "--type", "q8_0", "-o", tmp_path / "out.gguf")
    assert said.startswith("1 error: blk.1.attn_v.weight: the weight at row 0, column 1 is nan")
    assert {p.name for p in tmp_path.iterdir()} == {"m.gguf"}


@pytest.mark.skipif(os.name == "nt", reason="a console of its own is needed to send Ctrl-C")
def test_ctrl_c_keeps_what_is_done_and_resume_ends_in_the_same_bytes(
    models: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [models / "wide.gguf", "--type", "q4_k_m", "--no-verify"]
    whole, out = tmp_path / "whole.gguf", tmp_path / "out.gguf"
    parsed(capsys, *words, "-o", whole)
    script = (
        "import os, signal, sys\n"
        "from quantcli.checkpoint.gguf_draft import GGUFDraft\n"
        "write, n = GGUFDraft.write, [0]\n"
        "def slow(self, slabs):\n"
        "    write(self, slabs)\n"
        "    n[0] += 1\n"
        "    if n[0] == 9:\n"
        "        os.kill(os.getpid(), signal.SIGINT)\n"
        "        import time; time.sleep(1)\n"
        "GGUFDraft.write = slow\n"
        "from quantcli.cli.app import main\n"
        "sys.exit(main(sys.argv[1:]))\n"
    )
    command = [sys.executable, "-c", script, "quantize", *map(str, words), "-o", str(out)]
    child = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert child.returncode == 128 + signal.SIGINT, child.stderr
    assert "Add --resume to go on" in child.stderr
    assert not out.exists()
    assert "--resume to go on, or --force" in refused(capsys, *words, "-o", out)
    parsed(capsys, *words, "-o", out, "--resume")
    assert out.read_bytes() == whole.read_bytes()
    assert {p.name for p in tmp_path.iterdir()} == {"whole.gguf", "out.gguf"}


@pytest.mark.parametrize(
    ("given", "expected"),
    [("m-F16.gguf", "m-q8_0.gguf"), ("wide.gguf", "wide-q8_0.gguf"), ("q8.gguf", "q8-q8_0.gguf")],
)
def test_the_default_name_leaves_the_sources_quantization_out(
    models: Path, given: str, expected: str
) -> None:
    with open_checkpoint(models / given) as checkpoint:
        beside = default_output(str(models / given), checkpoint, "q8_0")
        elsewhere = default_output("some-name", checkpoint, "q8_0")
    assert beside == models / expected
    assert elsewhere == Path(expected)


@pytest.mark.parametrize("bits", [4.6, 5.0, 7.25])
def test_bits_per_weight_are_never_exceeded_and_all_but_used_up(
    models: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], bits: float
) -> None:
    out = tmp_path / "out.gguf"
    words = (models / "wide.gguf", "--bpw", bits, "--no-probe", "-o", out)
    plan = parsed(capsys, *words, "--dry-run")
    assert bits - 0.05 < plan["bits_per_weight"] <= bits
    report = parsed(capsys, *words, "--no-verify")
    with open_checkpoint(out) as written:
        assert report["bits_per_weight"] == 8 * written.nbytes / written.n_params
    assert report["bits_per_weight"] == plan["bits_per_weight"]
    assert report["type"] == f"{bits:g}bpw"


def test_a_size_that_cannot_be_reached_is_refused_with_the_least(
    models: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = (models / "wide.gguf", "--bpw", 1.5, "--no-probe", "-o", tmp_path / "out.gguf")
    assert re.search(
        r"2 error: 1\.5 bits per weight cannot be reached: .* at least \d\.\d+",
        refused(capsys, *words),
    )
    said = refused(capsys, models / "wide.gguf", "--bpw", 4, "--type", "q4_0")
    assert said.startswith("2 error: --bpw chooses the formats itself")


def test_a_model_is_probed_before_formats_are_chosen_for_a_size(
    models: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sensitivity, "_LEAST_TOKENS", 8)
    monkeypatch.setattr(sensitivity, "_MOST_TOKENS", 8)
    words = (models / "m-F16.gguf", "--bpw", 5.5, "-o", tmp_path / "o.gguf", "--dry-run")
    probed, guessed = parsed(capsys, *words), parsed(capsys, *words, "--no-probe")
    assert 5.4 < probed["bits_per_weight"] <= 5.5
    assert probed["tensors"] != guessed["tensors"]
