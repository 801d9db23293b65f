"""Facts for doctor: the processor's name, the size of folders."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from quantcli.cli import machine


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("processor\t: 0\nmodel name\t: AMD EPYC 9B14\nflags\t: x\n", "AMD EPYC 9B14"),
        ("processor\t: 0\nBogoMIPS\t: 1\nModel\t\t: Some Board\n", "Some Board"),
        ("nothing here\n", ""),
    ],
)
def test_the_name_is_read_from_linux(tmp_path: Path, text: str, name: str) -> None:
    path = tmp_path / "cpuinfo"
    path.write_text(text, encoding="utf-8")
    assert machine._cpuinfo(path) == name


def test_a_name_is_always_given() -> None:
    assert machine._cpuinfo(Path("no such file")) == ""
    assert machine.cpu_name()


def test_each_file_counts_once_however_many_links_it_has(tmp_path: Path) -> None:
    (tmp_path / "blobs").mkdir()
    (tmp_path / "snapshots").mkdir()
    blob = tmp_path / "blobs" / "a"
    blob.write_bytes(b"x" * 1000)
    os.link(blob, tmp_path / "snapshots" / "hard")
    (tmp_path / "snapshots" / "b").write_bytes(b"x" * 10)
    assert machine.folder_nbytes(tmp_path) == 1010


def test_a_folder_that_is_not_there_is_empty(tmp_path: Path) -> None:
    assert machine.folder_nbytes(tmp_path / "none") == 0
