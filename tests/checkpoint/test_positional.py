"""Files read by position: by many threads at once, with and without the system's own call."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from random import Random

import numpy as np
import pytest

from quantcli.checkpoint.positional import PositionalFile
from quantcli.errors import CheckpointError

WAYS = [True] + ([False] if hasattr(os, "preadv") else [])


@pytest.fixture
def content(tmp_path: Path) -> tuple[Path, np.ndarray]:
    data = np.random.default_rng(3).integers(0, 256, 1 << 18, np.uint8)
    (tmp_path / "file").write_bytes(data.tobytes())
    return tmp_path / "file", data


@pytest.mark.parametrize("seek", WAYS)
def test_threads_read_what_they_ask_for(content: tuple[Path, np.ndarray], seek: bool) -> None:
    path, data = content
    with PositionalFile(path, seek=seek) as file:
        assert file.nbytes == data.size

        def reads(seed: int) -> bool:
            random = Random(seed)
            same = True
            for _ in range(200):
                start = random.randrange(data.size)
                buffer = np.empty(random.randrange(data.size - start + 1), np.uint8)
                file.read_into(buffer.data, start)
                same &= np.array_equal(buffer, data[start : start + buffer.size])
            return same

        with ThreadPoolExecutor(8) as pool:
            assert all(pool.map(reads, range(8)))


@pytest.mark.parametrize("seek", WAYS)
def test_a_read_past_the_end_says_where_the_file_ends(
    content: tuple[Path, np.ndarray], seek: bool
) -> None:
    path, data = content
    with (
        PositionalFile(path, seek=seek) as file,
        pytest.raises(CheckpointError, match=f"{path.name}: ends at byte {data.size}, but had"),
    ):
        file.read(100, data.size - 50)


@pytest.mark.skipif(not hasattr(os, "preadv"), reason="needs a descriptor that cannot seek")
@pytest.mark.parametrize("seek", WAYS)
def test_a_failing_disk_is_an_error_that_says_where(
    content: tuple[Path, np.ndarray], seek: bool
) -> None:
    path, _ = content
    reader, writer = os.pipe()
    with PositionalFile(path, seek=seek) as file:
        os.dup2(reader, file._file.fileno())  # a pipe refuses positions, as a broken disk might
        with pytest.raises(CheckpointError, match="byte 70 cannot be read: "):
            file.read(8, 70)
    os.close(reader)
    os.close(writer)


def test_too_many_open_files_is_an_error_that_says_so(content: tuple[Path, np.ndarray]) -> None:
    resource = pytest.importorskip("resource", reason="this system has no limits on a process")
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, hard))
    try:
        with pytest.raises(CheckpointError, match="cannot be opened: Too many open files"):
            PositionalFile(content[0])
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_leaving_the_block_closes_the_file(content: tuple[Path, np.ndarray]) -> None:
    with PositionalFile(content[0]) as file:
        pass
    assert file._file.closed
