"""BlockFormat's sizes and errors, and finding formats by name and number."""

from __future__ import annotations

import dataclasses
import re

import pytest

from quantcli import catalog, formats
from quantcli.errors import ShapeError, UnknownName


def test_every_lists_the_catalog_in_order_and_only_once_loads_it() -> None:
    assert tuple(f.name for f in formats.every()) == catalog.names("format")
    assert formats.every() is formats.every()


def test_get_returns_the_one_format_of_a_name() -> None:
    assert formats.get("q4_k") is formats.get("q4_k")
    assert formats.get("q4_k").name == "q4_k"


@pytest.mark.parametrize("spelling", ["Q4_K", "q4k", "q4_k "])
def test_get_of_another_spelling_suggests_the_right_one(spelling: str) -> None:
    with pytest.raises(UnknownName, match=r"Did you mean q4_k\? Known: bf16, f16"):
        formats.get(spelling)


def test_by_ggml_id_finds_each_format_and_nothing_else() -> None:
    for fmt in formats.every():
        assert formats.by_ggml_id(fmt.ggml_id) is fmt
    known = {fmt.ggml_id for fmt in formats.every()}
    assert len(known) == len(formats.every())
    assert all(formats.by_ggml_id(i) is None for i in range(-1, 256) if i not in known)


@pytest.mark.parametrize(
    ("name", "n_in", "nbytes"),
    [("f32", 3, 12), ("f16", 3, 6), ("q4_0", 64, 36), ("q8_0", 32, 34), ("q6_k", 512, 420)],
)
def test_row_nbytes_counts_whole_blocks(name: str, n_in: int, nbytes: int) -> None:
    assert formats.get(name).row_nbytes(n_in) == nbytes


@pytest.mark.parametrize(
    ("name", "n_in", "message"),
    [
        ("q4_k", 4864 + 128, "row length 4992 is not a multiple of 256, the q4_k block."),
        ("q8_0", 31, "row length 31 is not a multiple of 32, the q8_0 block."),
    ],
)
def test_row_nbytes_refuses_a_row_that_ends_inside_a_block(
    name: str, n_in: int, message: str
) -> None:
    with pytest.raises(ShapeError, match=f"^{re.escape(message)}$"):
        formats.get(name).row_nbytes(n_in)


def test_a_format_cannot_be_changed() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        formats.get("f32").name = "other"  # type: ignore[misc]
