"""quantcli imatrix, from the command line to the file."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from imatrix_cases import TEXT, write_case

from quantcli.cli.app import main
from quantcli.quantize.imatrix import read_imatrix

pytestmark = pytest.mark.jit


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    write_case(tmp_path / "model.gguf", "llama")
    (tmp_path / "text.txt").write_text(TEXT, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_text_becomes_a_file_named_after_the_model(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    line = ["imatrix", "model.gguf", "--calib", "text.txt", "--calib-tokens", "1024", "-t", "2"]
    assert main(line) == 0
    assert capsys.readouterr() == ("model.imatrix.gguf\n", "")
    first = read_imatrix(folder / "model.imatrix.gguf")
    assert first.n_chunks == 2
    assert first.datasets == ("text.txt",)
    assert main(line) == 2
    assert "model.imatrix.gguf exists" in capsys.readouterr().err
    assert main([*line, "--force", "--in-file", "model.imatrix.gguf", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["chunks"] == 4
    assert document["datasets"] == ["text.txt", "text.txt"]
    assert {entry["n_tokens"] for entry in document["entries"]} == {2048}
    twice = read_imatrix(folder / "model.imatrix.gguf")
    for name, entry in first.entries.items():
        np.testing.assert_allclose(twice.entries[name].sums, 2 * entry.sums, rtol=1e-6)


def test_the_output_matrix_is_measured_where_asked_for(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    line = ["imatrix", "model.gguf", "--calib", "text.txt", "--calib-tokens", "512", "-o", "o.gguf"]
    assert main([*line, "--process-output"]) == 0
    assert "output.weight" in read_imatrix(folder / "o.gguf").entries
    write_case(folder / "tied.gguf", "gemma3")
    assert main(["imatrix", "tied.gguf", "--process-output", "-o", "t.gguf"]) == 2
    assert "is its embedding" in capsys.readouterr().err


def test_what_is_wrong_is_said_before_any_work(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "short.txt").write_text("too short", encoding="utf-8")
    for arguments, message in (
        (["--calib", "short.txt"], "calibration takes 512 at least"),
        (["--calib", "nowhere.txt"], "no such file"),
        (["--calib-tokens", "9"], "9 tokens are too few"),
        (["--in-file", "short.txt"], "importance matrix"),
        (["-o", "nowhere/i.gguf"], "there is no folder nowhere"),
    ):
        assert main(["imatrix", "model.gguf", *arguments]) != 0
        assert message in capsys.readouterr().err
    assert not list(folder.glob("*.imatrix.gguf"))


def test_what_it_measures_weights_a_quantization(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    line = ["imatrix", "model.gguf", "--calib-tokens", "1024", "-o", "i.gguf"]
    assert main(line) == 0
    quantize = ["quantize", "model.gguf", "--type", "q4_0", "--no-verify"]
    assert main([*quantize, "-o", "plain.gguf"]) == 0
    assert main([*quantize, "-o", "weighted.gguf", "--imatrix", "i.gguf"]) == 0
    capsys.readouterr()
    plain, weighted = ((folder / f"{n}.gguf").read_bytes() for n in ("plain", "weighted"))
    assert plain != weighted
    assert b"quantize.imatrix.file" in weighted
