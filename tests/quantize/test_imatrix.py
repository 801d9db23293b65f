"""Importance matrices: llama-imatrix's numbers and layout, both kinds of file, and damaged ones."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from gguf import GGMLQuantizationType, GGUFReader
from imatrix_cases import ARCHS, GOLDENS, N_CHUNKS, TEXT, write_case

from quantcli.checkpoint import open_checkpoint
from quantcli.errors import CheckpointError, ShapeError, UsageError
from quantcli.quantize.calibrate import CHUNK, Calibration, collect
from quantcli.quantize.imatrix import Entry, Imatrix, merge, read_imatrix, write_imatrix
from quantcli.text import from_metadata


def an_imatrix() -> Imatrix:
    """Return a matrix's entry and one of three experts, of which the second saw nothing."""
    random = np.random.default_rng(0)
    return Imatrix(
        {
            "blk.1.ffn_down_exps.weight": Entry(
                (random.random((3, 64)) * [[9], [0], [4]]).astype(np.float32), np.array([9, 0, 4])
            ),
            "blk.0.attn_q.weight": Entry(random.random((1, 32)).astype(np.float32), np.array([7])),
        },
        ("a.txt", "b.txt"),
        2,
        512,
    )


def same(a: Imatrix, b: Imatrix) -> None:
    """Fail unless two hold the same."""
    assert sorted(a.entries) == sorted(b.entries)
    for name, entry in a.entries.items():
        np.testing.assert_array_equal(entry.sums, b.entries[name].sums, err_msg=name)
        np.testing.assert_array_equal(entry.counts, b.entries[name].counts, err_msg=name)
    assert (a.datasets, a.n_chunks, a.chunk_size) == (b.datasets, b.n_chunks, b.chunk_size)


@pytest.mark.jit
@pytest.mark.parametrize("arch", ARCHS)
def test_the_numbers_and_the_layout_are_llama_imatrixs(arch: str, tmp_path: Path) -> None:
    with open_checkpoint(write_case(tmp_path / "m.gguf", arch)) as checkpoint:
        tokenizer = from_metadata(checkpoint.metadata)
        text = Calibration.of(TEXT, "text.txt", tokenizer, N_CHUNKS * CHUNK)
        found = collect(checkpoint, text, n_threads=2)
    write_imatrix(tmp_path / "i.gguf", found)
    golden = GOLDENS / f"{arch}.imatrix.gguf"
    ours, theirs = GGUFReader(tmp_path / "i.gguf"), GGUFReader(golden)
    keys = [k for k in theirs.fields if not k.startswith("GGUF.")]
    assert [k for k in ours.fields if not k.startswith("GGUF.")] == keys
    for key in keys:
        assert ours.fields[key].types == theirs.fields[key].types
        assert ours.fields[key].contents() == theirs.fields[key].contents(), key
    assert [t.name for t in ours.tensors] == [t.name for t in theirs.tensors]
    for a, b in zip(ours.tensors, theirs.tensors, strict=True):
        assert a.tensor_type == b.tensor_type == GGMLQuantizationType.F32
        assert a.shape.tolist() == b.shape.tolist(), a.name
        # Keys and values are f16 in both, and rounded at different places.
        np.testing.assert_allclose(a.data, b.data, rtol=1e-2, err_msg=a.name)
    same(read_imatrix(tmp_path / "i.gguf"), found)


@pytest.mark.parametrize("arch", ARCHS)
def test_both_kinds_of_file_say_the_same(arch: str) -> None:
    new = read_imatrix(GOLDENS / f"{arch}.imatrix.gguf")
    old = read_imatrix(GOLDENS / f"{arch}.dat")
    assert sorted(new.entries) == sorted(old.entries)
    assert old.datasets == new.datasets == ("text.txt",)
    assert old.n_chunks == new.n_chunks == N_CHUNKS
    for name, entry in new.entries.items():
        np.testing.assert_allclose(entry.means, old.entries[name].means, rtol=1e-6, err_msg=name)
        assert entry.counts == old.entries[name].counts == N_CHUNKS * CHUNK


def test_what_is_written_is_read_back(tmp_path: Path) -> None:
    write_imatrix(tmp_path / "i.gguf", an_imatrix())
    same(read_imatrix(tmp_path / "i.gguf"), an_imatrix())
    reader = GGUFReader(tmp_path / "i.gguf")
    shapes = {tensor.name: tensor.shape.tolist() for tensor in reader.tensors}
    assert shapes["blk.0.attn_q.weight.in_sum2"] == [32]
    assert shapes["blk.0.attn_q.weight.counts"] == [1]
    assert shapes["blk.1.ffn_down_exps.weight.in_sum2"] == [64, 3]
    assert shapes["blk.1.ffn_down_exps.weight.counts"] == [1, 3]
    with pytest.raises(UsageError, match="exists"):
        write_imatrix(tmp_path / "i.gguf", an_imatrix())
    write_imatrix(tmp_path / "i.gguf", an_imatrix(), force=True)


def test_experts_that_saw_nothing_count_evenly_and_are_reported() -> None:
    found = an_imatrix()
    experts = found.entries["blk.1.ffn_down_exps.weight"]
    np.testing.assert_array_equal(experts.means[1], np.ones(64))
    np.testing.assert_allclose(experts.means[0], experts.sums[0] / 9, rtol=1e-6)
    assert found.unseen() == {"blk.1.ffn_down_exps.weight": (1, 3)}
    stack = found.statistics()["blk.1.ffn_down_exps.weight"]
    assert stack.counts == (9, 0, 4)
    np.testing.assert_array_equal(stack.importance, experts.means)
    assert found.statistics()["blk.0.attn_q.weight"].n_tokens == 7


def test_merged_counts_are_those_of_both_texts() -> None:
    one, two = an_imatrix(), an_imatrix()
    del two.entries["blk.0.attn_q.weight"]
    both = merge([one, two])
    assert both.n_chunks == 4
    assert both.datasets == ("a.txt", "b.txt", "a.txt", "b.txt")
    experts = both.entries["blk.1.ffn_down_exps.weight"]
    np.testing.assert_array_equal(experts.counts, [18, 0, 8])
    np.testing.assert_allclose(experts.means, one.entries["blk.1.ffn_down_exps.weight"].means)
    assert both.entries["blk.0.attn_q.weight"].counts == 7
    two.entries["blk.0.attn_q.weight"] = Entry(np.ones((1, 8), np.float32), np.array([1]))
    with pytest.raises(ShapeError, match=r"blk.0.attn_q.*merge files of one model"):
        merge([one, two])


def test_a_model_is_held_against_the_entries() -> None:
    found = an_imatrix()
    shapes = {"blk.0.attn_q.weight": (5, 32), "blk.0.attn_k.weight": (5, 32)}
    assert found.check(shapes, Path("i.gguf")) == ("blk.0.attn_k.weight",)
    with pytest.raises(ShapeError, match=r"attn_q.weight has 32 inputs, and the model's 64"):
        found.check({"blk.0.attn_q.weight": (5, 64)}, Path("i.gguf"))


@pytest.mark.parametrize("name", ["llama.imatrix.gguf", "llama.dat"])
def test_a_file_cut_short_is_refused_wherever_it_ends(name: str, tmp_path: Path) -> None:
    data = (GOLDENS / name).read_bytes()
    path = tmp_path / name
    random = np.random.default_rng(0)
    for n in [0, 3, 4, 8, 20, *random.integers(0, len(data) - 60, 40).tolist()]:
        path.write_bytes(data[:n])
        with pytest.raises(CheckpointError):
            read_imatrix(path)


def test_bytes_that_changed_are_refused_or_harmless(tmp_path: Path) -> None:
    for name in ("llama.imatrix.gguf", "llama.dat"):
        data = (GOLDENS / name).read_bytes()
        path, random = tmp_path / name, np.random.default_rng(1)
        for _ in range(150):
            changed = bytearray(data)
            for at in random.integers(0, min(len(data), 2000), 3).tolist():
                changed[at] = int(random.integers(0, 256))
            path.write_bytes(changed)
            try:
                found = read_imatrix(path)
            except CheckpointError:
                continue
            for entry in found.entries.values():
                assert np.isfinite(entry.sums).all()
                assert (entry.counts >= 0).all()


def test_numbers_that_are_no_sums_of_squares_are_refused(tmp_path: Path) -> None:
    for bad in (np.nan, np.inf, -1.0):
        broken = an_imatrix()
        broken.entries["blk.0.attn_q.weight"].sums[0, 3] = bad
        write_imatrix(tmp_path / "i.gguf", broken, force=True)
        with pytest.raises(CheckpointError, match=r"the sums of blk.0.attn_q.weight hold"):
            read_imatrix(tmp_path / "i.gguf")


def test_a_model_is_no_importance_matrix(tmp_path: Path) -> None:
    path = write_case(tmp_path / "m.gguf", "llama")
    with pytest.raises(CheckpointError, match="is no importance matrix"):
        read_imatrix(path)
