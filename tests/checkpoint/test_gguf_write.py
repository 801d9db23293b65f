"""GGUF files that we write: read back by two readers, the same bytes each time, or absent."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import gguf
import numpy as np
import pytest
from tiny import write_tiny

from quantcli import formats
from quantcli.checkpoint import drafts, open_checkpoint
from quantcli.checkpoint.gguf_draft import GGUFDraft
from quantcli.checkpoint.gguf_write import TensorSpec, WriteValue, typed, write_gguf
from quantcli.errors import CheckpointError, ResourceError, UsageError
from quantcli.qtensor import U8

KEYS: dict[str, WriteValue] = {
    "general.architecture": "llama",
    "a.u32": 7,
    "a.i32": -7,
    "a.u64": 1 << 40,
    "a.i64": -(1 << 40),
    "a.f32": 0.1,
    "a.f64": np.float64(0.1),
    "a.u8": np.uint8(255),
    "a.i8": np.int8(-128),
    "a.u16": np.uint16(65535),
    "a.i16": np.int16(-1),
    "a.true": True,
    "a.text": "né\n",
    "a.empty": "",
    "a.ints": [1, -2, 3],
    "a.floats": [1.5, 2],
    "a.words": ["a", "", "é"],
    "a.flags": [True, False],
    "a.bytes": np.arange(5, dtype=np.uint8),
    "a.none": np.empty(0, np.float32),
}
SPECS = [
    TensorSpec("token_embd.weight", (5, 64), formats.get("q4_0")),
    TensorSpec("blk.0.w.weight", (3, 32), formats.get("q8_0")),
    TensorSpec("output_norm.weight", (7,), formats.get("f32")),
    TensorSpec("cube", (2, 3, 5), formats.get("f16")),
]


def data_of(spec: TensorSpec) -> U8:
    """Return bytes that differ from tensor to tensor; as f16 and f32 they are finite."""
    return np.random.default_rng(len(spec.name)).integers(0, 60, spec.nbytes, np.uint8)


def slabs(spec: TensorSpec) -> Iterator[U8]:
    """Yield a tensor's bytes in uneven pieces."""
    yield from np.split(data_of(spec), [1, spec.nbytes // 2])


def write(path: Path, keys: dict[str, WriteValue] = KEYS, **options: object) -> Path:
    """Write the file of this module's tests."""
    write_gguf(path, keys, SPECS, slabs, **options)  # type: ignore[arg-type]
    return path


def test_our_reader_gets_back_every_value_type_and_byte(tmp_path: Path) -> None:
    with open_checkpoint(write(tmp_path / "m.gguf")) as checkpoint:
        metadata = checkpoint.metadata
        types = {key: metadata.type_name(key) for key in KEYS if key.startswith("a.")}
        for key, value in KEYS.items():
            got = metadata[key]
            want = np.float32(value).item() if key == "a.f32" else value
            assert np.array_equal(np.asarray(got), np.asarray(want)), key
        assert list(metadata) == list(KEYS)
        for spec in SPECS:
            tensor = checkpoint.tensor(spec.name)
            assert (tensor.shape, tensor.format) == (spec.shape, spec.format)
            assert tensor.data.tobytes() == data_of(spec).tobytes()
    assert types == {
        "a.u32": "u32", "a.i32": "i32", "a.u64": "u64", "a.i64": "i64", "a.f32": "f32",
        "a.f64": "f64", "a.u8": "u8", "a.i8": "i8", "a.u16": "u16", "a.i16": "i16",
        "a.true": "bool", "a.text": "str", "a.empty": "str", "a.ints": "[i32]",
        "a.floats": "[f32]", "a.words": "[str]", "a.flags": "[bool]", "a.bytes": "[u8]",
        "a.none": "[f32]",
    }  # fmt: skip


def test_the_gguf_package_reads_the_same(tmp_path: Path) -> None:
    reader = gguf.GGUFReader(write(tmp_path / "m.gguf"))
    assert {t.name: t.data.tobytes() for t in reader.tensors} == {
        spec.name: data_of(spec).tobytes() for spec in SPECS
    }
    for key, value in KEYS.items():
        want = np.float32(value).item() if key == "a.f32" else value
        assert np.array_equal(np.asarray(reader.fields[key].contents()), np.asarray(want)), key


def test_bytes_are_those_of_the_gguf_packages_writer(tmp_path: Path) -> None:
    keys: dict[str, WriteValue] = {"general.architecture": "llama", "x": 5, "names": ["a", "bc"]}
    ours = write(tmp_path / "ours.gguf", keys).read_bytes()
    writer = gguf.GGUFWriter(tmp_path / "theirs.gguf", "llama")
    writer.add_uint32("x", 5)
    writer.add_array("names", ["a", "bc"])
    for spec in SPECS:
        rows = data_of(spec).reshape(*spec.shape[:-1], -1)
        writer.add_tensor(spec.name, rows, raw_dtype=gguf.GGMLQuantizationType(spec.format.ggml_id))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    assert ours == (tmp_path / "theirs.gguf").read_bytes()


def test_a_copy_of_a_file_with_its_own_types_is_the_file(tmp_path: Path) -> None:
    source = write_tiny(tmp_path / "tiny.gguf", "gemma3", weight_format="q4_0")
    with open_checkpoint(source) as checkpoint:
        specs = [TensorSpec(t.name, t.shape, t.format) for t in checkpoint.tensors.values()]

        def read(spec: TensorSpec) -> Iterator[U8]:
            yield checkpoint.tensor(spec.name).data

        write_gguf(tmp_path / "copy.gguf", checkpoint.metadata, specs, read)
        keys = {**typed(checkpoint.metadata)}
        write_gguf(tmp_path / "dict.gguf", keys, specs, read)
    assert (tmp_path / "copy.gguf").read_bytes() == source.read_bytes()
    assert (tmp_path / "dict.gguf").read_bytes() == source.read_bytes()


@pytest.mark.parametrize("pad_to", [1, 8, 64, 4096])
def test_tensors_start_at_multiples_of_the_files_alignment(tmp_path: Path, pad_to: int) -> None:
    keys = {**KEYS, "general.alignment": np.uint32(pad_to)}
    with open_checkpoint(write(tmp_path / "m.gguf", keys)) as checkpoint:
        assert all(info.offset % pad_to == 0 for info in checkpoint.tensors.values())
        assert checkpoint.tensor("cube").data.tobytes() == data_of(SPECS[-1]).tobytes()


def test_progress_ends_at_the_files_size(tmp_path: Path) -> None:
    seen: list[tuple[int, int]] = []
    path = write(tmp_path / "m.gguf", progress=lambda done, total: seen.append((done, total)))
    assert seen == sorted(seen)
    assert {total for _, total in seen} == {path.stat().st_size}


def test_an_existing_file_is_kept_unless_forced(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(b"mine")
    with pytest.raises(UsageError, match="exists; name another file, or use --force"):
        write(path)
    assert path.read_bytes() == b"mine"
    write(path, force=True)
    assert path.read_bytes()[:4] == b"GGUF"
    assert os.listdir(tmp_path) == ["m.gguf"]


def test_a_folder_and_a_missing_folder_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="is a folder; name a file"):
        write(tmp_path)
    with pytest.raises(UsageError, match="there is no folder"):
        write(tmp_path / "no" / "m.gguf")


def test_nothing_is_left_when_reading_fails(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(b"mine")

    def read(spec: TensorSpec) -> Iterator[U8]:
        yield data_of(spec)[:3]
        raise CheckpointError("cut short")

    with pytest.raises(CheckpointError, match="cut short"):
        write_gguf(path, KEYS, SPECS, read, force=True)
    assert os.listdir(tmp_path) == ["m.gguf"]
    assert path.read_bytes() == b"mine"


def test_too_little_space_is_told_beforehand_with_the_numbers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(drafts.shutil, "disk_usage", lambda path: SimpleNamespace(free=1000))
    with pytest.raises(ResourceError, match=r"it takes .* and 1\.0 kB are free") as caught:
        write(tmp_path / "m.gguf")
    assert "\n" not in str(caught.value)
    assert not os.listdir(tmp_path)


FILL = """
import resource, sys
from pathlib import Path
from quantcli.errors import ResourceError
from test_gguf_write import SPECS, KEYS, slabs
from quantcli.checkpoint.gguf_write import write_gguf
import signal
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (700, 700))
try:
    write_gguf(Path(sys.argv[1]), KEYS, SPECS, slabs)
except ResourceError as error:
    print(error)
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="file size limits are POSIX's")
def test_a_refused_write_leaves_no_draft_and_one_sentence(tmp_path: Path) -> None:
    here = Path(__file__).parent
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(here), str(here.parent)])}
    path = tmp_path / "m.gguf"
    ran = subprocess.run(
        [sys.executable, "-c", FILL, str(path)], env=env, capture_output=True, text=True, check=True
    )
    assert ran.stdout.startswith(f"cannot write {path}: File too large")
    assert not os.listdir(tmp_path)


def full(*arguments: object) -> None:
    """Fail as a write does on a full disk."""
    raise OSError(errno.ENOSPC, "No space left on device")


def test_a_full_disk_is_named_and_leaves_no_draft(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(drafts, "flush", full)
    with pytest.raises(ResourceError, match=r"the disk filled up while .*m\.gguf was written"):
        write(tmp_path / "m.gguf")
    assert not os.listdir(tmp_path)


def test_a_folder_draft_takes_its_place_whole(tmp_path: Path) -> None:
    target = tmp_path / "out"
    with drafts.folder_draft(target, force=False) as folder:
        (folder / "a").write_text("1", encoding="utf-8")
        assert not target.exists()
    assert os.listdir(tmp_path) == ["out"]
    with (
        pytest.raises(UsageError, match="exists; name another folder"),
        drafts.folder_draft(target, force=False),
    ):
        pass
    with drafts.folder_draft(target, force=True) as folder:
        (folder / "b").write_text("2", encoding="utf-8")
    assert os.listdir(target) == ["b"]
    with pytest.raises(ZeroDivisionError), drafts.folder_draft(target, force=True):
        raise ZeroDivisionError
    assert os.listdir(tmp_path) == ["out"]


def resume(path: Path, **options: object) -> GGUFDraft:
    """Open a draft of this module's file to go on with it."""
    return GGUFDraft(path, KEYS, SPECS, run="r", resume=True, **options)  # type: ignore[arg-type]


@pytest.mark.parametrize("n_before", range(len(SPECS) + 1))
def test_a_resumed_file_equals_an_uninterrupted_one(tmp_path: Path, n_before: int) -> None:
    whole = write(tmp_path / "whole.gguf").read_bytes()
    path = tmp_path / "m.gguf"
    with GGUFDraft(path, KEYS, SPECS, run="r") as draft:
        for spec in SPECS[:n_before]:
            draft.write(slabs(spec))
    assert not path.exists()
    with (tmp_path / ".m.gguf.part").open("ab") as file:
        file.write(b"what was under way when the power went")
    with resume(path) as draft:
        assert draft.n_done == n_before
        assert [draft.tensor(i).data.tobytes() for i in range(n_before)] == [
            data_of(spec).tobytes() for spec in SPECS[:n_before]
        ]
        for spec in SPECS[n_before:]:
            draft.write(slabs(spec))
        draft.finish()
    assert path.read_bytes() == whole
    assert sorted(os.listdir(tmp_path)) == ["m.gguf", "whole.gguf"]


def test_a_tensor_that_fails_is_dropped_and_those_before_stay(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"

    def broken() -> Iterator[U8]:
        yield data_of(SPECS[1])[:5]
        raise KeyboardInterrupt

    with GGUFDraft(path, KEYS, SPECS, run="r") as draft:
        draft.write(slabs(SPECS[0]))
        with pytest.raises(KeyboardInterrupt):
            draft.write(broken())
    with resume(path) as draft:
        assert draft.n_done == 1
        draft.discard()
    assert not os.listdir(tmp_path)


def test_a_full_disk_keeps_what_is_done_and_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "m.gguf"
    with GGUFDraft(path, KEYS, SPECS, run="r") as draft:
        draft.write(slabs(SPECS[0]))
        with monkeypatch.context() as patch:
            patch.setattr("quantcli.checkpoint.gguf_draft.flush", full)
            with pytest.raises(ResourceError, match="what is done is kept: free some space"):
                draft.write(slabs(SPECS[1]))
    with resume(path) as draft:
        assert draft.n_done == 1


def test_a_draft_of_another_run_or_head_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    with GGUFDraft(path, KEYS, SPECS, run="r") as draft:
        draft.write(slabs(SPECS[0]))
    for run, keys in (("other", KEYS), ("r", {**KEYS, "a.u32": 8})):
        with pytest.raises(UsageError, match="of another model, recipe or calibration"):
            GGUFDraft(path, keys, SPECS, run=run, resume=True)
    (tmp_path / ".m.gguf.part.json").write_text("{", encoding="utf-8")
    with pytest.raises(UsageError, match="start over without --resume"):
        resume(path)
    with GGUFDraft(path, KEYS, SPECS, run="other") as draft:  # starts over
        assert draft.n_done == 0


def test_a_draft_shorter_than_its_journal_says_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    with GGUFDraft(path, KEYS, SPECS, run="r") as draft:
        draft.write(slabs(SPECS[0]))
    os.truncate(tmp_path / ".m.gguf.part", 100)
    with pytest.raises(UsageError, match="start over"):
        resume(path)


def test_two_writers_of_one_file_do_not_meet(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    with (
        GGUFDraft(path, KEYS, SPECS, run="r"),
        pytest.raises(UsageError, match="another process is writing"),
    ):
        resume(path)


def test_resuming_without_a_draft_starts_one(tmp_path: Path) -> None:
    with resume(tmp_path / "m.gguf") as draft:
        assert draft.n_done == 0
