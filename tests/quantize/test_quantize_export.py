"""Integers in groups: what is written is what was chosen, and the rest is the source's."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from source_tree import ROOT
from tiny import write_tiny

from quantcli.checkpoint import Checkpoint, open_checkpoint
from quantcli.cli.app import main
from quantcli.errors import ShapeError, UnsupportedModel, UsageError
from quantcli.huggingface.scheme import ExportScheme
from quantcli.quantize.calibrate import Calibration
from quantcli.quantize.export import export, prepare_export
from quantcli.quantize.job import Settings
from quantcli.quantize.method import method
from quantcli.quantize.mixes import mix
from quantcli.quantize.recipe import Recipe

pytestmark = pytest.mark.jit

PLAIN = Settings(Recipe(mix("q4_0")))
CHUNKS = tuple(tuple(range(300 + 64 * i, 364 + 64 * i)) for i in range(4))
SCHEMES = {
    "gptq-8": ExportScheme("gptq", bits=8, group=64),
    "awq": ExportScheme("awq", symmetric=False),
    "ct-asym": ExportScheme("compressed-tensors", group=64, symmetric=False),
}


@pytest.fixture(scope="module")
def tiny() -> Iterator[Checkpoint]:
    with open_checkpoint(ROOT / "models" / "tiny") as checkpoint:
        yield checkpoint


def relative_error(a: np.ndarray, b: np.ndarray) -> float:
    return float(((a - b) ** 2).sum() / (a**2).sum())


@pytest.mark.parametrize("name", SCHEMES)
def test_a_folder_read_back_has_the_error_that_was_reported(
    tiny: Checkpoint, tmp_path: Path, name: str
) -> None:
    job = prepare_export(tiny, PLAIN, SCHEMES[name])
    results = {r.name: r for r in export(job, tmp_path / "out")}
    assert set(results) == set(tiny.tensors)
    with open_checkpoint(tmp_path / "out") as written:
        assert set(written.tensors) == set(tiny.tensors)
        for tensor in tiny.tensors:
            before = tiny.tensor(tensor).dequantize()
            after = written.tensor(tensor).dequantize()
            if tensor in job.linears:
                reported = results[tensor].error
                assert reported is not None
                assert relative_error(before, after) == pytest.approx(reported, rel=0.02)
            else:
                assert np.array_equal(before, after), tensor
    config = json.loads((tmp_path / "out" / "config.json").read_text(encoding="utf-8"))
    assert config["quantization_config"]["quant_method"].startswith(SCHEMES[name].format[:3])


def calibrated(tiny: Checkpoint, *names: str) -> Settings:
    calibration = Calibration("numbers", CHUNKS)
    return method(
        tiny, Recipe(mix("q4_0")), names=names, calibration=calibration, n_threads=2
    ).settings


def test_gptq_is_never_worse_than_the_search(tiny: Checkpoint, tmp_path: Path) -> None:
    job = prepare_export(tiny, calibrated(tiny, "gptq"), ExportScheme("compressed-tensors"))
    results = export(job, tmp_path / "out")
    known = [(r.error, r.baseline) for r in results if r.baseline is not None]
    assert len(known) == len(job.linears)
    assert all(error is not None and error <= base for error, base in known)
    assert sum(e or 0 for e, _ in known) < 0.7 * sum(b for _, b in known)


def test_scales_that_were_folded_away_are_in_the_norms(tiny: Checkpoint, tmp_path: Path) -> None:
    job = prepare_export(tiny, calibrated(tiny, "awq"), ExportScheme("awq", symmetric=False))
    assert "blk.0.attn_norm.weight" in job.plan.changed
    export(job, tmp_path / "out")
    changed = 0
    with open_checkpoint(tmp_path / "out") as written:
        for i in range(5):
            norm, query = f"blk.{i}.attn_norm.weight", f"blk.{i}.attn_q.weight"
            ratio = tiny.tensor(norm).dequantize() / written.tensor(norm).dequantize()
            changed += not np.allclose(ratio, 1)
            scaled = tiny.tensor(query).dequantize() * ratio
            assert relative_error(scaled, written.tensor(query).dequantize()) < 0.03
    assert changed


def test_what_cannot_be_exported_is_refused_before_any_work(
    tiny: Checkpoint, tmp_path: Path
) -> None:
    path = write_tiny(tmp_path / "m.gguf", "llama", weight_format="f16")
    with (
        open_checkpoint(path) as gguf,
        pytest.raises(UnsupportedModel, match="Hugging Face folder"),
    ):
        prepare_export(gguf, PLAIN, ExportScheme("gptq"))
    with pytest.raises(UsageError, match="--export compressed-tensors"):
        prepare_export(tiny, PLAIN, ExportScheme("gptq", symmetric=False))
    with pytest.raises(ShapeError, match="needs a multiple of 100"):
        prepare_export(tiny, PLAIN, ExportScheme("compressed-tensors", group=100))


def run(capsys: pytest.CaptureFixture[str], *words: object) -> tuple[int, str, str]:
    code = main(["quantize", *map(str, words)])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def test_the_command_writes_and_measures_a_folder(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = (ROOT / "models" / "tiny", "--export", "compressed-tensors", "-o", tmp_path / "out")
    code, out, err = run(capsys, *words, "--json", "--quiet")
    assert (code, err) == (0, "")
    report = json.loads(out)
    assert report["type"] == "compressed-tensors-int4-g128"
    assert 0 < report["verification"]["kl"]["value"] < 0.05
    code, out, _ = run(capsys, *words, "--dry-run", "--force")
    assert code == 0
    assert "35 as compressed-tensors int4 in groups of 128" in out
    code, _, err = run(capsys, *words, "--quiet")
    assert code == 2
    assert re.search(r"exists; name another folder, or use --force", err)


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("--export", "gptqq"), "unknown export format 'gptqq'. Did you mean gptq?"),
        (("--export", "gptq", "--type", "q4_0"), "--export has no GGUF formats"),
        (("--export", "gptq", "--bits", "3"), "gptq with 3 bits; it must be 4 or 8"),
        (("--export", "awq", "--group-size", "48"), "--group-size 48 must be one of 32, 64, 128"),
        (("--bits", "4"), "--bits is about exporting"),
        (("--asym",), "--asym is about exporting"),
        (("--export", "gptq", "--resume"), "--export cannot be resumed"),
        (("--export", "gptq", "--asym"), "use --export compressed-tensors"),
    ],
)
def test_options_that_do_not_go_together_are_refused_in_a_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], words: tuple[str, ...], expected: str
) -> None:
    model = ROOT / "models" / "tiny"
    code, out, err = run(capsys, model, *words, "-o", tmp_path / "out", "--quiet")
    assert (code, out) == (2, "")
    assert expected in err
    assert err.count("\n") == 1
