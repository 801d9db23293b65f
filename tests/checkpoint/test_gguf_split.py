"""Models in several files: all of them are opened, and nothing but the right ones."""

from __future__ import annotations

from pathlib import Path

import pytest
from gguf_builder import GGUF, Key, Tensor, key

from quantcli.checkpoint import GGUFError, open_checkpoint
from quantcli.checkpoint.gguf_layout import F32, I32, U16, U64
from quantcli.errors import CheckpointError


def name(number: int, count: int = 3) -> str:
    """Return the file name of a part."""
    return f"m-{number:05d}-of-{count:05d}.gguf"


def part(index: int, *tensors: str, count: int = 3, total: int = 3, first: bool = False) -> GGUF:
    """Return a part as a splitter writes it; all metadata is in the first."""
    keys = [key("general.architecture", "llama"), key("general.name", "M")] if first else []
    keys += [
        key("split.no", index, U16),
        key("split.count", count, U16),
        key("split.tensors.count", total, I32),
    ]
    rows = [Tensor(t, (8,), data=t.encode() * 32) for t in tensors]
    return GGUF(keys, rows)


def write(folder: Path, *parts: GGUF) -> Path:
    """Write parts and return the path of the first."""
    for number, one in enumerate(parts, 1):
        (folder / name(number, len(parts))).write_bytes(one.build())
    return folder / name(1, len(parts))


def good() -> list[GGUF]:
    """Return the parts of a good model."""
    return [part(0, "a", first=True), part(1, "b"), part(2, "c")]


def refusal(path: Path) -> str:
    """Return the message of a refusal."""
    with pytest.raises(CheckpointError) as caught:
        open_checkpoint(path)
    return str(caught.value)


def with_key(one: GGUF, entry: Key) -> GGUF:
    """Return a part with a key in place of the one of that name."""
    one.keys = [k for k in one.keys if k.name != entry.name] + [entry]
    return one


def test_the_first_part_opens_all(tmp_path: Path) -> None:
    with open_checkpoint(write(tmp_path, *good())) as checkpoint:
        assert checkpoint.paths == tuple(tmp_path / name(n) for n in (1, 2, 3))
        assert [info.shard for info in checkpoint.tensors.values()] == [0, 1, 2]
        assert [checkpoint.tensor(t).data.tobytes() for t in "abc"] == [
            t.encode() * 32 for t in "abc"
        ]
        assert checkpoint.metadata["general.name"] == "M"
        assert checkpoint.notes == ()


def test_the_first_part_may_hold_metadata_alone(tmp_path: Path) -> None:
    path = write(tmp_path, part(0, first=True, count=2, total=1), part(1, "a", count=2, total=1))
    with open_checkpoint(path) as checkpoint:
        assert list(checkpoint.tensors) == ["a"]


def test_parts_may_be_links_to_files_of_any_name(tmp_path: Path) -> None:
    store, names = tmp_path / "store", tmp_path / "names"
    store.mkdir()
    names.mkdir()
    for number, one in enumerate(good(), 1):
        (store / str(number)).write_bytes(one.build())
        try:
            (names / name(number)).symlink_to(store / str(number))
        except OSError:
            pytest.skip("this user may not make links")
    with open_checkpoint(names / name(1)) as checkpoint:
        assert len(checkpoint.tensors) == 3


@pytest.mark.parametrize("count", [0, 1])
def test_a_model_in_one_part_may_have_any_name(tmp_path: Path, count: int) -> None:
    path = tmp_path / "whole.gguf"
    path.write_bytes(part(0, "a", first=True, count=count, total=1).build())
    with open_checkpoint(path) as checkpoint:
        assert checkpoint.paths == (path,)


def test_bytes_after_the_tensors_of_a_part_are_noted(tmp_path: Path) -> None:
    parts = good()
    parts[1].tail = b"rubbish"
    with open_checkpoint(write(tmp_path, *parts)) as checkpoint:
        (note,) = checkpoint.notes
    assert note.startswith(f"{tmp_path / name(2)}: 7 bytes")


@pytest.mark.parametrize("number", [2, 3])
def test_a_later_part_is_refused_with_the_name_of_the_first(tmp_path: Path, number: int) -> None:
    write(tmp_path, *good())
    message = refusal(tmp_path / name(number))
    assert "key 'split.no'" in message
    assert f"part {number} of 3" in message
    assert str(tmp_path / name(1)) in message


def test_a_first_part_under_another_name_is_refused(tmp_path: Path) -> None:
    write(tmp_path, *good())
    (tmp_path / name(2)).replace(tmp_path / name(3))
    (tmp_path / name(1)).replace(tmp_path / "other.gguf")
    message = refusal(tmp_path / "other.gguf")
    assert "'other.gguf'" in message
    assert "'other-00001-of-00003.gguf', as it is the first of 3 parts" in message


def test_a_first_part_named_as_a_later_one_is_refused(tmp_path: Path) -> None:
    write(tmp_path, *good()).replace(tmp_path / name(2))
    assert f"must be {name(1)!r}" in refusal(tmp_path / name(2))


def test_a_missing_part_is_named(tmp_path: Path) -> None:
    path = write(tmp_path, *good())
    (tmp_path / name(3)).unlink()
    assert refusal(path).startswith(f"{tmp_path / name(3)}: no such file; it is part 3 of 3")


def test_a_part_that_is_another_kind_of_file_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path, *good())
    (tmp_path / name(2)).write_bytes(b"<!DOCTYPE html>")
    message = refusal(path)
    assert message.startswith(str(tmp_path / name(2)))
    assert "web page" in message


def test_a_truncated_part_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path, *good())
    (tmp_path / name(3)).write_bytes(good()[2].build()[:-1])
    message = refusal(path)
    assert message.startswith(str(tmp_path / name(3)))
    assert "incomplete" in message


BAD_PARTS = {
    "split.no is that of another part": (
        1,
        key("split.no", 2, U16),
        ("'split.no'", "is 2", "must be 1", "part 2 of 3"),
    ),
    "split.no counts from 1": (0, key("split.no", 1, U16), ("split.no", "give the first part")),
    "split.no is negative": (0, key("split.no", -1, I32), ("split.no", "-1")),
    "split.no is a float": (0, key("split.no", 0, F32), ("split.no", "f32", "integer")),
    "split.no is text": (1, key("split.no", "1"), ("split.no", "str", "integer")),
    "split.no is a bool": (0, key("split.no", False), ("split.no", "bool", "integer")),
    "split.count differs": (2, key("split.count", 4, U16), ("split.count", "is 4", "must be 3")),
    "split.count is beyond reason": (0, key("split.count", 2**64 - 1, U64), ("at most 512",)),
    "split.count is negative": (0, key("split.count", -3, I32), ("-3", "at most 512")),
    "split.count is an array": (0, key("split.count", [3]), ("split.count", "[i32]", "integer")),
    "too few tensors": (0, key("split.tensors.count", 4), ("is 4", "must be 3", "3 parts")),
    "too many tensors": (0, key("split.tensors.count", 2), ("is 2", "must be 3")),
    "another architecture": (
        1,
        key("general.architecture", "qwen2"),
        ("'qwen2'", "'llama' as in part 1", "different models"),
    ),
    "another name": (2, key("general.name", "N"), ("'N'", "'M' as in part 1", "different models")),
}


@pytest.mark.parametrize("case", list(BAD_PARTS))
def test_parts_that_disagree_are_refused(tmp_path: Path, case: str) -> None:
    index, entry, says = BAD_PARTS[case]
    parts = good()
    with_key(parts[index], entry)
    path = write(tmp_path, *parts)
    with pytest.raises(GGUFError) as caught:
        open_checkpoint(path)
    assert str(caught.value).startswith(str(tmp_path / name(index + 1)))
    for fragment in says:
        assert fragment in str(caught.value)


@pytest.mark.parametrize("missing", ["split.no", "split.count"])
def test_a_part_without_its_number_is_refused(tmp_path: Path, missing: str) -> None:
    parts = good()
    parts[1].keys = [k for k in parts[1].keys if k.name != missing]
    assert f"key '{missing}' is missing" in refusal(write(tmp_path, *parts))


def test_a_first_part_without_its_number_is_refused(tmp_path: Path) -> None:
    parts = good()
    parts[0].keys = [k for k in parts[0].keys if k.name != "split.no"]
    assert "key 'split.no' is missing" in refusal(write(tmp_path, *parts))


def test_a_tensor_in_two_parts_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path, part(0, "a", first=True), part(1, "b"), part(2, "a"))
    message = refusal(path)
    assert message.startswith(str(tmp_path / name(3)))
    assert "tensor 'a'" in message
    assert f"also in {name(1)}" in message
