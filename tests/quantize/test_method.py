"""From an importance matrix to the settings of a run, and to the keys of its output."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from fake_quantize import Rounding
from tiny import write_tiny

from quantcli.checkpoint import Checkpoint, open_checkpoint
from quantcli.errors import CheckpointError, ShapeError, UsageError
from quantcli.quantize.calibrate import Calibration
from quantcli.quantize.imatrix import Entry, Imatrix, write_imatrix
from quantcli.quantize.job import prepare
from quantcli.quantize.method import method
from quantcli.quantize.mixes import mix
from quantcli.quantize.pipeline import run
from quantcli.quantize.recipe import Recipe, quantizes


@pytest.fixture
def source(tmp_path: Path) -> Iterator[Checkpoint]:
    path = write_tiny(tmp_path / "source.gguf", "llama", weight_format="f16", n_layers=8)
    with open_checkpoint(path) as checkpoint:
        yield checkpoint


def imatrix_of(
    source: Checkpoint, path: Path, *, without: str = "", width: int | None = None
) -> Path:
    """Write an importance matrix of random sums for a model's matrices."""
    random = np.random.default_rng(1)
    entries = {
        name: Entry(random.random((1, width or info.shape[-1])).astype(np.float32), np.array([512]))
        for name, info in source.tensors.items()
        if quantizes(name, info.shape) and name.startswith("blk.") and name != without
    }
    write_imatrix(path, Imatrix(entries, ("text.txt",), 3, 512))
    return path


def test_without_an_importance_matrix_nothing_is_known(source: Checkpoint) -> None:
    chosen = method(source, Recipe(mix("q4_0")))
    assert not chosen.settings.statistics
    assert not chosen.settings.has_statistics
    assert chosen.settings.origin == {}


def test_an_importance_matrix_weights_every_matrix_and_is_named_in_the_output(
    source: Checkpoint, tmp_path: Path
) -> None:
    path = imatrix_of(source, tmp_path / "i.gguf")
    chosen = method(source, Recipe(mix("q4_0")), imatrix_path=path)
    assert chosen.remarks == ()
    settings = chosen.settings
    quantizer = Rounding()
    job = prepare(source, type(settings)(**{**vars(settings), "quantizer": quantizer}))
    run(job, tmp_path / "out.gguf", n_threads=1)
    seen = {j.name: j.statistics for j in quantizer.jobs}
    assert all((seen[n] is None) == (not n.startswith("blk.")) for n in seen)
    entry = settings.statistics["blk.1.attn_k.weight"]
    known = seen["blk.1.attn_k.weight"]
    assert known is not None
    assert np.array_equal(known.importance, entry.importance)
    with open_checkpoint(tmp_path / "out.gguf") as out:
        metadata = out.metadata
        assert metadata["quantize.imatrix.file"] == str(path)[:127]
        assert metadata["quantize.imatrix.dataset"] == "text.txt"
        assert metadata["quantize.imatrix.entries_count"] == 7 * 8
        assert metadata["quantize.imatrix.chunks_count"] == 3
        assert metadata.type_name("quantize.imatrix.chunks_count") == "u32"


def test_the_mix_is_the_one_for_models_with_statistics(source: Checkpoint, tmp_path: Path) -> None:
    path = imatrix_of(source, tmp_path / "i.gguf")
    chosen = method(source, Recipe(mix("q4_0")), imatrix_path=path)
    formats = {c.name: c.format.name for c in prepare(source, chosen.settings).choices}
    assert formats["blk.0.ffn_down.weight"] == "q4_1"
    assert formats["blk.1.ffn_down.weight"] == "q4_0"


def test_another_importance_matrix_makes_another_run(source: Checkpoint, tmp_path: Path) -> None:
    paths = (
        imatrix_of(source, tmp_path / "a.gguf"),
        imatrix_of(source, tmp_path / "b.gguf", without="blk.0.attn_q.weight"),
    )
    ids = {
        prepare(source, method(source, Recipe(mix("q4_0")), imatrix_path=p).settings).run_id()
        for p in paths
    }
    assert len(ids) == 2


def test_a_matrix_that_is_not_covered_is_told(source: Checkpoint, tmp_path: Path) -> None:
    path = imatrix_of(source, tmp_path / "i.gguf", without="blk.2.ffn_up.weight")
    (remark,) = method(source, Recipe(mix("q4_0")), imatrix_path=path).remarks
    assert "knows nothing of blk.2.ffn_up.weight" in remark


def test_an_importance_matrix_of_another_model_is_refused(
    source: Checkpoint, tmp_path: Path
) -> None:
    path = imatrix_of(source, tmp_path / "i.gguf", width=64)
    with pytest.raises(ShapeError, match="it is another model's"):
        method(source, Recipe(mix("q4_0")), imatrix_path=path)
    path.write_bytes(b"nothing of the kind")
    with pytest.raises(CheckpointError, match="importance matrix"):
        method(source, Recipe(mix("q4_0")), imatrix_path=path)


def test_a_run_by_layers_names_its_method_and_warns_of_few_tokens(source: Checkpoint) -> None:
    calibration = Calibration("numbers", ((1, 2, 3),))
    chosen = method(source, Recipe(mix("q4_0")), names=("awq", "gptq"), calibration=calibration)
    assert chosen.settings.by_layer
    assert chosen.settings.method == "awq + gptq"
    assert chosen.settings.origin["quantcli.quantize.method"] == "awq + gptq"
    (remark,) = chosen.remarks
    assert "3 tokens of calibration are few for matrices of 192 inputs: 768" in remark


def test_statistics_come_from_one_place(source: Checkpoint, tmp_path: Path) -> None:
    path = imatrix_of(source, tmp_path / "i.gguf")
    with pytest.raises(UsageError, match="Leave one out"):
        method(
            source,
            Recipe(mix("q4_0")),
            names=("gptq",),
            imatrix_path=path,
            calibration=Calibration("numbers", ((1, 2, 3),)),
        )
