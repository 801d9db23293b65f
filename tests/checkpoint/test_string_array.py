"""String arrays: whatever was written is read, one by one and all at once."""

from __future__ import annotations

import tempfile
from pathlib import Path
from random import Random

import pytest
from gguf_builder import GGUF, Tensor, key
from hypothesis import given, settings
from hypothesis import strategies as st

from quantcli.checkpoint import GGUFError, StringArray, open_checkpoint


def strings(path: Path, *values: str | bytes) -> StringArray:
    """Return strings after a trip through a file, another array behind them."""
    keys = [key("general.architecture", "llama"), key("k", list(values)), key("after", ["end"])]
    path.write_bytes(GGUF(keys, [Tensor("w", (8,))]).build())
    with open_checkpoint(path) as checkpoint:
        after, array = checkpoint.metadata["after"], checkpoint.metadata["k"]
    assert isinstance(after, StringArray)
    assert isinstance(array, StringArray)
    assert after.to_list() == ["end"]
    return array


def mixed(random: Random, odd: tuple[str, ...], share: float) -> list[str]:
    """Return 6000 strings, a share of them odd."""
    ordinary = ("a", "token", "\u2581the", "\u0120and", "<0x0A>", " " * 12)
    return [random.choice(odd if random.random() < share else ordinary) for _ in range(6000)]


# Each of these breaks the guess that a length is a byte with seven zeros behind it, or nearly.
ODD = {
    "none": ("plain",),
    "empty": ("",),
    "of 255": ("x" * 255,),
    "of 256": ("x" * 256,),
    "long": ("x" * 66000,),
    "of zeros": ("\0" * 7, "\0" * 8, "\0" * 16),
    "ending in zeros": ("a\0\0\0\0\0\0\0", "ab\0", "\x01\0\0\0\0\0\0\0"),
    "starting with zeros": ("\0a", "\0\0\0\0\0\0\0\0a"),
    "like a chain": ("\x01\0\0\0\0\0\0\0a\x01\0\0\0\0\0\0\0b",),
}


@pytest.mark.parametrize("share", [0.0005, 0.02, 0.5, 1.0])
@pytest.mark.parametrize("odd", list(ODD))
def test_strings_are_read_as_written(tmp_path: Path, odd: str, share: float) -> None:
    values = mixed(Random(f"{odd} {share}"), ODD[odd], share if odd != "long" else share / 20)
    array = strings(tmp_path / "m.gguf", *values)
    assert array.to_list() == values
    assert [array[i] for i in range(0, 6000, 97)] == values[::97]


@settings(max_examples=50, deadline=None)
@given(values=st.lists(st.text(max_size=12), min_size=1, max_size=8), n=st.integers(1, 700))
def test_any_strings_are_read_as_written(values: list[str], n: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        assert strings(Path(folder) / "m.gguf", *(values * n)).to_list() == values * n


def test_it_is_a_sequence(tmp_path: Path) -> None:
    array = strings(tmp_path / "m.gguf", "a", "", "\u00e9", "d")
    assert len(array) == 4
    assert list(array) == ["a", "", "\u00e9", "d"]
    assert (array[-1], array[-4], array[1:3]) == ("d", "a", ["", "\u00e9"])
    assert array.index("d") == 3
    assert "x" not in array
    assert array.raw(2) == "\u00e9".encode()
    for index in (4, -5):
        with pytest.raises(IndexError):
            array[index]


def test_a_string_that_is_not_text_is_an_error_only_for_its_reader(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    array = strings(path, "a", b"\xc3(", "c")
    assert (array[0], array[2], array.raw(1)) == ("a", "c", b"\xc3(")
    for read in (array.to_list, lambda: array[1], lambda: array[-2]):
        with pytest.raises(GGUFError, match=r"string 1 of key 'k' .* must be UTF-8\.") as caught:
            read()
        assert path.read_bytes()[caught.value.offset or 0] == 0xC3
