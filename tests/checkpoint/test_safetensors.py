"""Safetensors files: what the format's own library writes and reads, and every way to be wrong."""

from __future__ import annotations

import json
import random
import struct
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors
import safetensors.numpy

from quantcli.checkpoint.json_file import parse_object
from quantcli.checkpoint.positional import PositionalFile
from quantcli.checkpoint.safetensors import (
    ITEM_NBYTES,
    is_folder_of_safetensors,
    open_safetensors,
    read_header,
)
from quantcli.errors import CheckpointError

ARRAYS = {
    "b": np.arange(6, dtype=np.float32).reshape(2, 3),
    "a": np.arange(4, dtype=np.float16),
    "c": np.array(7, np.int64),
    "d": np.zeros((0, 5), np.int8),
}
GOOD: dict[str, Any] = {
    "x": {"dtype": "F32", "shape": [2, 2], "data_offsets": [0, 16]},
    "y": {"dtype": "I8", "shape": [4], "data_offsets": [16, 20]},
}
DATA = bytes(range(20))


def made(path: Path, header: object, data: bytes = DATA, length: int | None = None) -> Path:
    """Write a file from its header, which need not be JSON, with its length or another."""
    raw = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(raw) if length is None else length) + raw + data)
    return path


def read(path: Path) -> list[Any]:
    """Return the tensors of one file."""
    with PositionalFile(path) as file:
        return read_header(file)


def test_the_formats_own_library_writes_what_we_read(tmp_path: Path) -> None:
    safetensors.numpy.save_file(ARRAYS, tmp_path / "model.safetensors", {"format": "np"})
    files = open_safetensors(tmp_path)
    assert list(files.tensors) == sorted(ARRAYS)
    for name, array in ARRAYS.items():
        tensor = files.tensors[name]
        data = np.empty(tensor.nbytes, np.uint8)
        files.read_into(tensor, data.data)
        assert tensor.shape == array.shape
        assert data.tobytes() == array.tobytes()
    files.close()


def test_names_come_in_the_order_of_the_formats_own_library(tmp_path: Path) -> None:
    path = made(tmp_path / "model.safetensors", {"y": GOOD["y"], "x": GOOD["x"]})
    with safetensors.safe_open(path, "np") as file:
        assert [tensor.name for tensor in read(path)] == list(file.keys())


def entry(**changes: object) -> dict[str, object]:
    """Return a header whose first tensor is changed."""
    return {**GOOD, "x": {**GOOD["x"], **changes}}


BAD = {
    "empty": (b"", "must be at least 8"),
    "header of 2**60 bytes": (struct.pack("<Q", 1 << 60) + b"{}", "must be at most 2"),
    "header of 2**64 - 1 bytes": (b"\xff" * 8, "must be at most 0"),
    "no JSON": (struct.pack("<Q", 4) + b"{'a'", "is not valid JSON"),
    "no UTF-8": (struct.pack("<Q", 4) + b'{"\xff"', "is not valid JSON"),
    "a list": (struct.pack("<Q", 2) + b"[]", "must be an object"),
    "nested": (struct.pack("<Q", 200_000) + b'{"a":' * 40_000, "nested too deeply"),
    "a number of many digits": (
        struct.pack("<Q", 10_006) + b'{"a":' + b"1" * 10_000 + b"}",
        "is not valid JSON",
    ),
    "a key twice": (struct.pack("<Q", 15) + b'{"a":1,"a":2}  ', "key 'a' is there twice"),
}


@pytest.mark.parametrize("name", BAD)
def test_a_malformed_header_is_refused_in_one_sentence(tmp_path: Path, name: str) -> None:
    data, message = BAD[name]
    path = tmp_path / "model.safetensors"
    path.write_bytes(data)
    with pytest.raises(CheckpointError, match=message) as caught:
        open_safetensors(tmp_path)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 400 + len(str(path))


@pytest.mark.parametrize(
    ("header", "message"),
    [
        (entry(dtype="F33"), "dtype 'F33'; it must be one of"),
        (entry(dtype=5), "dtype 5"),
        (entry(shape=[2, -2]), "shape a list of 2"),
        (entry(shape=[2.0, 2]), "shape a list of 2"),
        (entry(shape=[True, 4]), "shape a list of 2"),
        (entry(shape=[1] * 9 + [4]), "must be up to 8 sizes"),
        (entry(shape=[1 << 62, 1 << 62]), "has 16 bytes, but shape"),
        (entry(shape=[3, 2]), "has 16 bytes, but shape .* takes 24"),
        (entry(shape=None), "shape null"),
        (entry(data_offsets=[0]), "data_offsets a list of 1"),
        (entry(data_offsets=[16, 0]), "has -16 bytes"),
        (entry(data_offsets=[-1, 15]), "data_offsets"),
        (entry(data_offsets=[1 << 60, (1 << 60) + 16]), "the download is incomplete"),
        (entry(data_offsets=[8, 24]), "ends at byte .* the download is incomplete"),
        (entry(data_offsets=[4, 20]), "'x' and 'y' share bytes"),
        ({"x": 5}, "is described by 5"),
        ({"x": None}, "is described by null"),
    ],
)
def test_a_bad_row_of_the_header_is_refused_by_name(
    tmp_path: Path, header: object, message: str
) -> None:
    path = made(tmp_path / "model.safetensors", header)
    with pytest.raises(CheckpointError, match=message):
        read(path)


def test_a_header_past_the_end_of_the_file_is_refused(tmp_path: Path) -> None:
    path = made(tmp_path / "model.safetensors", GOOD, length=10_000)
    with pytest.raises(CheckpointError, match="says that its header is 10000 bytes long"):
        read(path)


def shard(folder: Path, name: str, tensor: str) -> None:
    """Write a file of one tensor."""
    made(folder / name, {tensor: GOOD["x"]}, DATA[:16])


def index(folder: Path, weight_map: object) -> None:
    """Write the index."""
    text = json.dumps({"metadata": {"total_size": 32}, "weight_map": weight_map})
    (folder / "model.safetensors.index.json").write_text(text, encoding="utf-8")


def two_shards(folder: Path) -> dict[str, str]:
    """Write a model of two files, and return its index's map."""
    shard(folder, "model-1.safetensors", "x")
    shard(folder, "model-2.safetensors", "y")
    weight_map = {"x": "model-1.safetensors", "y": "model-2.safetensors"}
    index(folder, weight_map)
    return weight_map


def test_an_index_says_which_files_there_are(tmp_path: Path) -> None:
    two_shards(tmp_path)
    shard(tmp_path, "model-3.safetensors", "x")  # of another version; not in the index
    files = open_safetensors(tmp_path)
    assert [path.name for path in files.paths] == ["model-1.safetensors", "model-2.safetensors"]
    assert sorted(files.tensors) == ["x", "y"]
    files.close()


@pytest.mark.parametrize(
    "name",
    [
        "../model-1.safetensors",
        "/etc/passwd",
        "sub/model.safetensors",
        "sub\\model.safetensors",
        "C:model.safetensors",
        "..",
        "",
        ".hidden.safetensors",
        "model-1.safetensors\0",
        "model.bin",
        7,
    ],
)
def test_a_name_that_leads_out_of_the_folder_is_refused(tmp_path: Path, name: object) -> None:
    index(tmp_path, two_shards(tmp_path) | {"z": name})
    with pytest.raises(CheckpointError, match=r"must be the name of a \.safetensors file"):
        open_safetensors(tmp_path)


def test_files_and_index_must_agree(tmp_path: Path) -> None:
    weight_map = two_shards(tmp_path)
    for changed, message in (
        ({**weight_map, "z": "model-1.safetensors"}, "has no tensor 'z'"),
        ({"x": "model-2.safetensors", "y": "model-1.safetensors"}, "has no tensor 'x'"),
        ({**weight_map, "y": "model-9.safetensors"}, "no such file, but .* names it"),
        ({}, "weight_map is an object of 0"),
        ([1], "weight_map is a list of 1"),
    ):
        index(tmp_path, changed)
        with pytest.raises(CheckpointError, match=message):
            open_safetensors(tmp_path)
    index(tmp_path, weight_map)
    made(tmp_path / "model-2.safetensors", {"y": GOOD["x"], "w": GOOD["y"]})
    with pytest.raises(CheckpointError, match="'w' is not in"):
        open_safetensors(tmp_path)


def test_a_tensor_in_two_files_is_refused(tmp_path: Path) -> None:
    shard(tmp_path, "model-1.safetensors", "x")
    shard(tmp_path, "model-2.safetensors", "x")
    with pytest.raises(CheckpointError, match="is also in model-1"):
        open_safetensors(tmp_path)


def test_a_folder_without_weights_is_told_apart(tmp_path: Path) -> None:
    assert not is_folder_of_safetensors(tmp_path)
    assert not is_folder_of_safetensors(tmp_path / "no")
    with pytest.raises(CheckpointError, match=r"holds no model\.safetensors"):
        open_safetensors(tmp_path)
    shard(tmp_path, "model.safetensors", "x")
    assert is_folder_of_safetensors(tmp_path)


def test_any_bytes_end_in_an_answer_or_a_checkpoint_error(tmp_path: Path) -> None:
    good = made(tmp_path / "model.safetensors", GOOD).read_bytes()
    path = tmp_path / "model.safetensors"
    order = random.Random(1)
    for _ in range(200):
        data = bytearray(good)
        for _ in range(order.randint(1, 6)):
            data[order.randrange(len(data))] = order.choice(b'0129{}[],:"-.eFI\xff\x00')
        path.write_bytes(data[: order.randint(0, len(data))] if order.random() < 0.2 else data)
        with suppress(CheckpointError):
            read(path)


def test_every_dtype_is_one_that_the_formats_own_library_knows(tmp_path: Path) -> None:
    for dtype, nbytes in ITEM_NBYTES.items():
        header = {"x": {"dtype": dtype, "shape": [3], "data_offsets": [0, 3 * nbytes]}}
        path = made(tmp_path / "model.safetensors", header, bytes(3 * nbytes))
        with safetensors.safe_open(path, "np") as file:
            assert file.get_slice("x").get_dtype() == dtype
        assert read(path)[0].nbytes == 3 * nbytes


def test_numbers_that_json_lacks_are_let_through() -> None:
    assert parse_object(b'{"limit": Infinity}', "x") == {"limit": float("inf")}
