"""What is in a file is what comes out of it: metadata, tensors, and remarks."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
from gguf import GGUFReader, GGUFValueType, GGUFWriter
from gguf_builder import GGUF, Key, Tensor, key

from quantcli.checkpoint import GGUFError, StringArray, Value, open_checkpoint
from quantcli.checkpoint.gguf_layout import ARRAY, BOOL, F64, I8, I64, SCALARS, STRING, U8, U64
from quantcli.errors import CheckpointError

ARCHITECTURE = key("general.architecture", "llama")
NUMBERS = ("uint8", "int8", "uint16", "int16", "uint32", "int32", "uint64", "int64")


def saved(path: Path, *keys: Key, tensors: tuple[Tensor, ...] = (Tensor("w", (32,)),)) -> Path:
    """Write a file with an architecture, some keys and tensors."""
    path.write_bytes(GGUF([ARCHITECTURE, *keys], list(tensors)).build())
    return path


def one_value(path: Path, entry: Key) -> Value:
    """Return the value of a key after a trip through a file."""
    with open_checkpoint(saved(path, entry)) as checkpoint:
        return checkpoint.metadata[str(entry.name)]


def plain(value: Value) -> object:
    """Return a value without NumPy and without laziness."""
    if isinstance(value, StringArray):
        return value.to_list()
    return value.tolist() if isinstance(value, np.ndarray) else value


def require_equal_to_gguf(path: Path) -> None:
    """Hold all metadata and all bytes of a file against gguf's own reader."""
    oracle = GGUFReader(path)
    with open_checkpoint(path) as checkpoint:
        fields = {k: f for k, f in oracle.fields.items() if not k.startswith("GGUF.")}
        assert list(checkpoint.metadata) == list(fields)
        for name, field in fields.items():
            assert plain(checkpoint.metadata[name]) == field.contents(), name
            kinds = [_type_name(t) for t in field.types]
            # The oracle does not know the type of an empty array's items.
            expected = kinds[0] if len(kinds) == 1 else f"[{kinds[-1]}]"
            assert checkpoint.metadata.type_name(name) == expected, name
        assert list(checkpoint.tensors) == [t.name for t in oracle.tensors]
        for theirs in oracle.tensors:
            ours = checkpoint.tensors[theirs.name]
            assert ours.shape == tuple(theirs.shape[::-1])
            assert ours.format.ggml_id == theirs.tensor_type
            assert (ours.nbytes, ours.offset) == (theirs.n_bytes, theirs.data_offset)
            data = checkpoint.tensor(theirs.name).data
            assert np.array_equal(data, theirs.data.view(np.uint8).ravel()), theirs.name
        assert checkpoint.nbytes == sum(int(t.n_bytes) for t in oracle.tensors)
        assert checkpoint.n_params == sum(int(t.n_elements) for t in oracle.tensors)


def _type_name(of: GGUFValueType) -> str:
    return {STRING: "str", ARRAY: "array"}.get(of) or SCALARS[of].name


def write_every_type(path: Path, alignment: int | None = None) -> Path:
    """Write a file with keys and arrays of all types and tensors of several."""
    random = np.random.default_rng(5)
    writer = GGUFWriter(path, "llama")
    if alignment:
        writer.add_custom_alignment(alignment)
    for i, name in enumerate(NUMBERS):
        bits = int(name.strip("uint"))
        low = 0 if name.startswith("u") else -(1 << bits - 1)
        getattr(writer, f"add_{name}")(f"low.{name}", low)
        getattr(writer, f"add_{name}")(f"high.{name}", low + (1 << bits) - 1)
        of = GGUFValueType[name.upper()]
        writer.add_key_value(f"array.{name}", [low, i, low + (1 << bits) - 1], ARRAY_TYPE, of)
    writer.add_float32("some.float32", 0.1)
    writer.add_float64("some.float64", 0.1)
    writer.add_bool("some.bool", True)
    writer.add_bool("another.bool", False)
    writer.add_string("some.text", "h\u00e9llo \U0001f600")
    writer.add_string("no.text", "")
    writer.add_array("some.floats", [0.5, 1e-30, -2.5])
    writer.add_array("some.bools", [True, False, True])
    writer.add_array("some.texts", ["", "a", "b" * 300, "\u00e9", "c" * 70000])
    writer.add_array("one.text", ["alone"])
    writer.add_tensor("f32.weight", random.standard_normal((3, 32), np.float32))
    writer.add_tensor("f16.weight", random.standard_normal((2, 4, 8)).astype(np.float16))
    writer.add_tensor("bias", random.standard_normal(5).astype(np.float32))
    for name, n_bytes, raw in (("q4_0", 18, 2), ("q8_0", 34, 8), ("q6_k", 210, 14)):
        data = random.integers(0, 256, (4, 3 * n_bytes), np.uint8)
        writer.add_tensor(f"{name}.weight", data, raw_dtype=raw)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


ARRAY_TYPE = GGUFValueType.ARRAY


@pytest.mark.parametrize("alignment", [None, 8, 64, 4096])
def test_a_written_file_reads_as_gguf_reads_it(tmp_path: Path, alignment: int | None) -> None:
    require_equal_to_gguf(write_every_type(tmp_path / "m.gguf", alignment))


@pytest.mark.model
def test_smollm2_reads_as_gguf_reads_it(smollm2_path: Path) -> None:
    require_equal_to_gguf(smollm2_path)


@pytest.mark.model
def test_gemma3_reads_as_gguf_reads_it(gemma3_path: Path) -> None:
    require_equal_to_gguf(gemma3_path)


@pytest.mark.model
def test_the_vocabulary_of_gemma3_is_whole(gemma3_path: Path) -> None:
    with open_checkpoint(gemma3_path) as checkpoint:
        tokens = checkpoint.metadata["tokenizer.ggml.tokens"]
        assert isinstance(tokens, StringArray)
        assert len(tokens) == 262144
        assert tokens[2] == "<bos>"
        assert tokens[-1] == tokens.to_list()[-1]


def test_version_2_reads_as_version_3(tmp_path: Path) -> None:
    data = write_every_type(tmp_path / "3.gguf").read_bytes()
    (tmp_path / "2.gguf").write_bytes(data[:4] + b"\2" + data[5:])
    require_equal_to_gguf(tmp_path / "2.gguf")


def test_numbers_have_the_types_of_python_and_the_values_of_the_file(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    for type_id, number in ((U8, 255), (I8, -128), (U64, 2**64 - 1), (I64, -(2**63)), (F64, 0.1)):
        value = one_value(path, key("k", number, type_id))
        assert value == number
        assert type(value) is type(number)
    assert one_value(path, key("k", True)) is True


def test_an_array_of_numbers_is_aligned_and_read_only(tmp_path: Path) -> None:
    for odd in ("k", "kk", "kkk", "kkkk"):
        value = one_value(tmp_path / "m.gguf", key(odd, [1, -2, 3], I64))
        assert isinstance(value, np.ndarray)
        assert value.dtype == np.int64
        assert value.flags.aligned
        with pytest.raises(ValueError, match="read-only"):
            value[0] = 7


def test_an_array_of_bools_is_one(tmp_path: Path) -> None:
    value = one_value(tmp_path / "m.gguf", key("k", [True, False]))
    assert isinstance(value, np.ndarray)
    assert value.dtype == np.bool_
    assert value.tolist() == [True, False]


@pytest.mark.parametrize("type_id", [STRING, BOOL, U8, F64])
def test_an_empty_array_is_empty(tmp_path: Path, type_id: int) -> None:
    value = one_value(tmp_path / "m.gguf", Key("k", ARRAY, [], type_id))
    assert isinstance(value, StringArray | np.ndarray)
    assert len(value) == 0
    assert plain(value) == []


def test_arrays_are_built_once(tmp_path: Path) -> None:
    path = saved(tmp_path / "m.gguf", key("texts", ["a"]), key("numbers", [1]))
    with open_checkpoint(path) as checkpoint:
        for name in ("texts", "numbers"):
            assert checkpoint.metadata[name] is checkpoint.metadata[name]


def test_a_value_that_is_not_text_is_an_error_only_for_its_reader(tmp_path: Path) -> None:
    path = saved(tmp_path / "m.gguf", key("bad", b"\xff"), key("good", 1))
    with open_checkpoint(path) as checkpoint:
        metadata = checkpoint.metadata
        assert (len(metadata), "bad" in metadata, metadata["good"]) == (3, True, 1)
        with pytest.raises(GGUFError, match=r"the value of key 'bad' .* must be UTF-8\.") as caught:
            metadata["bad"]
        assert path.read_bytes()[caught.value.offset or 0] == 0xFF


def test_metadata_outlives_the_files(tmp_path: Path) -> None:
    with open_checkpoint(saved(tmp_path / "m.gguf", key("k", ["a", "b"]))) as checkpoint:
        pass
    assert plain(checkpoint.metadata["k"]) == ["a", "b"]


def test_metadata_says_where_a_value_is_and_of_what_type(tmp_path: Path) -> None:
    path = saved(tmp_path / "m.gguf", key("n", 77), key("texts", ["a"]), key("numbers", [9]))
    data = path.read_bytes()
    with open_checkpoint(path) as checkpoint:
        metadata = checkpoint.metadata
        assert data[metadata.offset("n")] == 77
        assert data[metadata.offset("numbers")] == 9
        assert [metadata.type_name(k) for k in metadata] == ["str", "u32", "[str]", "[i32]"]


def test_tensors_may_lie_in_any_order_and_with_gaps(tmp_path: Path) -> None:
    data = bytes(range(128))
    rows = (Tensor("v", (8,), data=data, offset=64), Tensor("w", (8,), data=b"", offset=0))
    path = saved(tmp_path / "m.gguf", tensors=rows)
    with open_checkpoint(path) as checkpoint:
        assert checkpoint.tensor("v").data.tobytes() == data[64:96]
        assert checkpoint.tensor("w").data.tobytes() == data[:32]


def test_padding_after_the_last_tensor_may_be_missing(tmp_path: Path) -> None:
    path = saved(tmp_path / "m.gguf", tensors=(Tensor("w", (5,)),))
    path.write_bytes(path.read_bytes()[:-12])
    with open_checkpoint(path) as checkpoint:
        assert checkpoint.tensor("w").nbytes == 20
        assert checkpoint.notes == ()


def test_bytes_after_the_last_tensor_are_noted(tmp_path: Path) -> None:
    path = saved(tmp_path / "m.gguf")
    path.write_bytes(path.read_bytes() + b"rubbish")
    with open_checkpoint(path) as checkpoint:
        assert checkpoint.notes == (f"{path}: 7 bytes after the last tensor are ignored.",)


def test_a_tensor_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    with (
        open_checkpoint(saved(tmp_path / "m.gguf")) as checkpoint,
        pytest.raises(CheckpointError, match="has no tensor v"),
    ):
        checkpoint.tensor("v")


def test_part_of_a_tensor_can_be_read(tmp_path: Path) -> None:
    data = np.arange(128, dtype=np.uint8)
    path = saved(tmp_path / "m.gguf", tensors=(Tensor("w", (32,), data=data.tobytes()),))
    with open_checkpoint(path) as checkpoint:
        buffer = np.zeros(10, np.uint8)
        checkpoint.read_into("w", buffer[2:7], start=100)
        assert buffer.tolist() == [0, 0, 100, 101, 102, 103, 104, 0, 0, 0]
        checkpoint.read_into("w", buffer[:0], start=128)
        for start in (-1, 119):
            with pytest.raises(AssertionError):
                checkpoint.read_into("w", buffer, start)


def test_a_file_cut_short_after_it_was_opened_is_an_error(tmp_path: Path) -> None:
    path = saved(tmp_path / "m.gguf", tensors=(Tensor("w", (4096,)),))
    with open_checkpoint(path) as checkpoint:
        os.truncate(path, 4096)
        with pytest.raises(CheckpointError, match=r"ends at byte 4096.*cut short"):
            checkpoint.tensor("w")


@pytest.mark.skipif(os.name == "nt", reason="files with holes take their full size there")
def test_opening_reads_no_weights_and_offsets_may_be_large(tmp_path: Path) -> None:
    rows = (Tensor("v", (1 << 30,), data=b""), Tensor("w", (8,), data=b"", offset=1 << 32))
    path = saved(tmp_path / "m.gguf", tensors=rows)
    head = path.stat().st_size
    os.truncate(path, head + (1 << 32) + 32)
    with path.open("r+b") as file:
        file.seek(head + (1 << 32))
        file.write(bytes(range(32)))
    with open_checkpoint(path) as checkpoint:
        assert checkpoint.n_params == (1 << 30) + 8
        assert checkpoint.tensor("w").data.tobytes() == bytes(range(32))


def test_a_checkpoint_shows_what_it_is(tmp_path: Path) -> None:
    path = saved(tmp_path / "m.gguf", key("k", ["a"]))
    with open_checkpoint(str(path)) as checkpoint:
        assert checkpoint.architecture == "llama"
        assert repr(checkpoint) == f"<Checkpoint {path}: 1 tensors>"
        assert repr(checkpoint.metadata) == f"<Metadata of {path}: 2 keys>"
        assert repr(checkpoint.metadata["k"]) == "<StringArray k: 1 strings>"
