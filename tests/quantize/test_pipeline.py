"""The work tensor by tensor: what is written, what is refused, going on after interruptions."""

from __future__ import annotations

import errno
import shutil
import tracemalloc
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from fake_quantize import Rounding, rounded
from gguf import GGUFReader
from tiny import Tiny, write_model, write_tiny

from quantcli.checkpoint import Checkpoint, open_checkpoint
from quantcli.errors import (
    CheckpointError,
    ModelError,
    ResourceError,
    UnsupportedModel,
    UsageError,
)
from quantcli.formats import get
from quantcli.quantize import Statistics
from quantcli.quantize import slabs as slabs_module
from quantcli.quantize.job import Job, Settings, fingerprint, prepare
from quantcli.quantize.mixes import mix
from quantcli.quantize.pipeline import run
from quantcli.quantize.recipe import Choice, Recipe
from quantcli.quantize.slabs import encode_weights, slabs


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return write_tiny(tmp_path / "source.gguf", "llama", weight_format="f16", n_layers=3)


OPEN: list[Checkpoint] = []


@pytest.fixture(autouse=True)
def closed() -> Iterator[None]:
    """Close what a test has opened."""
    yield
    while OPEN:
        OPEN.pop().close()


def opened(path: Path) -> Checkpoint:
    OPEN.append(open_checkpoint(path))
    return OPEN[-1]


def job(path: Path, mix_name: str = "q4_0", **settings: object) -> Job:
    recipe = settings.pop("recipe", None) or Recipe(mix(mix_name))
    settings.setdefault("quantizer", Rounding())
    return prepare(opened(path), Settings(recipe, **settings))  # type: ignore[arg-type]


class Interrupted(Exception):
    """Stands for Ctrl-C."""


def stop_after(n: int) -> Callable[[str, int, int], None]:
    """Return a progress callback that interrupts at its n-th call."""
    calls = iter(range(n))

    def progress(stage: str, done: int, total: int) -> None:
        if next(calls, None) is None:
            raise Interrupted

    return progress


def leftovers(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir() if path.name.startswith(".")}


def test_every_tensor_is_written_in_its_format(source: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.gguf"
    results = run(job(source), out, n_threads=2)
    model = opened(source)
    read = {t.name: t for t in GGUFReader(out).tensors}
    assert set(read) == set(model.tensors)
    for result in results:
        tensor = model.tensor(result.name)
        fmt = get(result.format)
        assert read[result.name].tensor_type.value == fmt.ggml_id
        changed = result.format != result.source
        expected = rounded(tensor.dequantize(), fmt) if changed else tensor.data
        assert bytes(read[result.name].data.tobytes()) == expected.tobytes(), result.name
        assert result.error == (0.25 if changed else None)
    assert leftovers(tmp_path) == set()


def test_metadata_is_the_sources_and_what_llama_quantize_adds(source: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.gguf"
    origin = {"quantize.imatrix.file": "x.gguf", "quantize.imatrix.chunks_count": np.uint32(3)}
    run(job(source, origin=origin), out, n_threads=1)
    before, after = opened(source).metadata, opened(out).metadata
    added = dict(after.items())
    assert added.pop("general.quantization_version") == 2
    assert added.pop("general.file_type") == 2
    assert added.pop("quantize.imatrix.file") == "x.gguf"
    assert added.pop("quantize.imatrix.chunks_count") == 3
    assert list(added) == list(before)
    for key in added:
        assert np.array_equal(added[key], before[key]), key
        assert after.type_name(key) == before.type_name(key)


def test_the_number_of_threads_does_not_change_a_byte(source: Path, tmp_path: Path) -> None:
    for n in (1, 3):
        run(job(source), tmp_path / f"{n}.gguf", n_threads=n)
    assert (tmp_path / "1.gguf").read_bytes() == (tmp_path / "3.gguf").read_bytes()


@pytest.mark.parametrize("n", [0, 1, 7, 15, 29])
def test_an_interrupted_run_resumes_to_the_same_bytes(source: Path, tmp_path: Path, n: int) -> None:
    whole, out = tmp_path / "whole.gguf", tmp_path / "out.gguf"
    expected = run(job(source), whole, n_threads=1)
    with pytest.raises(Interrupted):
        run(job(source), out, n_threads=2, progress=stop_after(n))
    assert not out.exists()
    quantizer = Rounding()
    results = run(job(source, quantizer=quantizer), out, n_threads=2, resume=True)
    assert out.read_bytes() == whole.read_bytes()
    assert results == expected
    assert len(quantizer.jobs) <= len(expected) - n
    assert leftovers(tmp_path) == set()


def test_an_unfinished_run_is_not_dropped_unasked(source: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.gguf"
    with pytest.raises(Interrupted):
        run(job(source), out, n_threads=1, progress=stop_after(5))
    with pytest.raises(UsageError, match="--resume to go on, or --force"):
        run(job(source), out, n_threads=1)
    run(job(source), out, n_threads=1, force=True)
    assert out.exists()
    assert leftovers(tmp_path) == set()


def test_a_run_of_another_recipe_is_not_resumed(source: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.gguf"
    with pytest.raises(Interrupted):
        run(job(source), out, n_threads=1, progress=stop_after(5))
    with pytest.raises(UsageError, match="another model, recipe or calibration"):
        run(job(source, "q5_0"), out, n_threads=1, resume=True)
    with pytest.raises(UsageError, match="another model, recipe or calibration"):
        run(job(source, calibration="other text"), out, n_threads=1, resume=True)


def test_one_changed_weight_makes_another_model(tmp_path: Path) -> None:
    a = write_tiny(tmp_path / "a.gguf", "llama", weight_format="f16")
    b = tmp_path / "b.gguf"
    raw = bytearray(a.read_bytes())
    raw[-100] ^= 1
    b.write_bytes(raw)
    assert fingerprint(opened(a)) != fingerprint(opened(b))
    assert fingerprint(opened(a)) == fingerprint(opened(a))


def test_an_output_that_exists_is_replaced_only_with_force(source: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.gguf"
    out.write_bytes(b"mine")
    with pytest.raises(UsageError, match="exists"):
        run(job(source), out, n_threads=1)
    assert out.read_bytes() == b"mine"
    run(job(source), out, n_threads=1, force=True)
    assert out.read_bytes()[:4] == b"GGUF"


def with_value(path: Path, name: str, row: int, column: int, value: float) -> Path:
    """Put a value into a matrix of an f16 file."""
    model = opened(path)
    info = model.tensors[name]
    raw = bytearray(path.read_bytes())
    at = info.offset + 2 * (row * info.shape[-1] + column)
    raw[at : at + 2] = np.float16(value).tobytes()
    path.write_bytes(raw)
    return path


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("mix_name", ["q4_0", "f16"])
def test_a_weight_that_is_not_finite_is_named_and_nothing_is_left(
    source: Path, tmp_path: Path, value: float, mix_name: str
) -> None:
    with_value(source, "blk.1.ffn_up.weight", 5, 17, value)
    expected = rf"blk\.1\.ffn_up\.weight: the weight at row 5, column 17 is {value}"
    with pytest.raises(ModelError, match=expected):
        run(job(source, mix_name), tmp_path / "out.gguf", n_threads=2)
    assert {p.name for p in tmp_path.iterdir()} == {"source.gguf"}


def test_a_missing_tensor_is_named_before_any_work(tmp_path: Path) -> None:
    tiny = Tiny("llama", weight_format="f16")
    whole = Tiny.shapes

    def without(self: Tiny) -> dict[str, tuple[int, ...]]:
        return {n: s for n, s in whole(self).items() if n != "blk.1.ffn_down.weight"}

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Tiny, "shapes", without)
        path = write_model(tmp_path / "m.gguf", tiny)
    with pytest.raises(CheckpointError, match=r"tensor blk\.1\.ffn_down\.weight is missing"):
        job(path)


def test_an_architecture_that_is_not_known_is_refused(source: Path) -> None:
    raw = source.read_bytes()
    source.write_bytes(raw.replace(b"llama", b"lambo"))
    with pytest.raises(UnsupportedModel, match=r"architecture .lambo. is not supported"):
        job(source)


def test_a_source_that_is_quantized_needs_permission(tmp_path: Path) -> None:
    path = write_tiny(tmp_path / "m.gguf", "llama", weight_format="q8_0")
    with pytest.raises(UsageError, match=r"quantized already \(q8_0\).*--allow-requantize"):
        job(path)
    assert job(path, allow_requantize=True).choices
    assert job(path, "q8_0").choices  # nothing is rounded twice


def test_a_type_that_is_garbage_without_statistics_needs_them(tmp_path: Path) -> None:
    path = write_tiny(tmp_path / "m.gguf", "llama", weight_format="f16", d_model=256, d_ff=512)
    with pytest.raises(UsageError, match="q2_k_s without statistics"):
        job(path, "q2_k_s")


def test_a_disk_that_is_too_small_is_noticed_before_any_work(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=1000))
    quantizer = Rounding()
    with pytest.raises(ResourceError, match="not enough disk space"):
        run(job(source, quantizer=quantizer), tmp_path / "out.gguf", n_threads=1)
    assert not quantizer.jobs


def test_a_disk_that_fills_up_is_survived(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from quantcli.checkpoint.gguf_draft import GGUFDraft

    out = tmp_path / "out.gguf"
    append, calls = GGUFDraft._append, iter(range(20))

    def full(self: GGUFDraft, data: memoryview) -> None:
        if next(calls, None) is None:
            raise OSError(errno.ENOSPC, "No space left on device")
        append(self, data)

    monkeypatch.setattr(GGUFDraft, "_append", full)
    with pytest.raises(ResourceError, match="the disk filled up"):
        run(job(source), out, n_threads=2)
    monkeypatch.undo()
    run(job(source), out, n_threads=2, resume=True)
    run(job(source), tmp_path / "whole.gguf", n_threads=2)
    assert out.read_bytes() == (tmp_path / "whole.gguf").read_bytes()


@pytest.mark.parametrize("n_weights", [1, 100, 1000, 1 << 20])
def test_slabs_cover_every_row_once_and_keep_experts_apart(n_weights: int) -> None:
    choice = Choice("w", (4, 6, 32), get("f16"), get("q4_0"), "mix")
    parts = list(slabs(choice, n_weights))
    rows = [row for part in parts for row in range(part.row_start, part.row_stop)]
    assert rows == list(range(24))
    assert all(part.expert == row // 6 for part in parts for row in (part.row_start,))
    assert all((part.row_stop - 1) // 6 == part.expert for part in parts)


def test_each_expert_is_quantized_with_its_own_statistics() -> None:
    choice = Choice("w", (4, 6, 32), get("f16"), get("q4_0"), "mix")
    importance = np.arange(4 * 32, dtype=np.float32).reshape(4, 32)
    quantizer = Rounding()
    for slab in slabs(choice, 64):
        weights = np.ones((slab.row_stop - slab.row_start, 32), np.float32)
        encode_weights(quantizer, Statistics(importance, 9), slab, weights)
        known = quantizer.jobs[-1].statistics
        assert known is not None
        assert np.array_equal(known.importance, importance[slab.expert])


def test_errors_are_weighted_by_what_they_are_relative_to(source: Path, tmp_path: Path) -> None:
    results = run(job(source), tmp_path / "out.gguf", n_threads=1)
    changed = [r for r in results if r.error is not None]
    assert {r.error for r in changed} == {0.25}
    assert {r.baseline for r in changed} == {0.5}
    assert {r.notes for r in changed} == {("a note",)}


def test_reading_stops_with_the_run(source: Path, tmp_path: Path) -> None:
    """A run that was interrupted leaves no thread that still reads the file."""
    work = job(source)
    with pytest.raises(Interrupted):
        run(work, tmp_path / "out.gguf", n_threads=4, progress=stop_after(3))
    checkpoint: Checkpoint = work.checkpoint
    checkpoint.close()


def test_memory_holds_slabs_not_tensors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_tiny(tmp_path / "m.gguf", "llama", weight_format="f16", d_model=1024, d_ff=4096)
    quantizer = Rounding()
    monkeypatch.setattr(quantizer, "jobs", deque(maxlen=1))  # or it would keep all weights
    work = job(path, quantizer=quantizer, recipe=Recipe(mix("q4_0"), pure=True))
    largest = 4 * max(c.n_weights for c in work.choices)
    monkeypatch.setattr(slabs_module, "SLAB_WEIGHTS", 1 << 15)
    monkeypatch.setattr(slabs_module.slabs, "__defaults__", (1 << 15,))
    tracemalloc.start()
    try:
        run(work, tmp_path / "out.gguf", n_threads=2)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert largest >= 16 << 20
    assert peak < largest / 3
