"""Every malformed file is refused in one sentence that says where, what and what is allowed."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from bad_gguf import Bad, keys
from bad_gguf_tensors import ALL
from gguf_builder import key

from quantcli.checkpoint import GGUFError, open_checkpoint
from quantcli.errors import CheckpointError

posix = pytest.mark.skipif(os.name == "nt", reason="Windows has no such files")


@pytest.mark.parametrize("bad", ALL, ids=lambda bad: bad.name)
def test_a_malformed_file_is_refused_by_what_is_wrong(bad: Bad, tmp_path: Path) -> None:
    path = tmp_path / "bad.gguf"
    path.write_bytes(bad.build())
    with pytest.raises(bad.error) as caught:
        open_checkpoint(path)
    message = str(caught.value)
    assert type(caught.value) is bad.error
    assert message.startswith(f"{path}: ")
    assert message.endswith(".")
    assert message.isprintable(), message
    assert len(message) < 400 + len(str(path)), message
    for fragment in bad.says:
        assert fragment in message
    if bad.error is GGUFError and bad.offset is not None:
        assert caught.value.offset == bad.offset
        assert f"(byte {bad.offset})" in message


def test_an_error_has_its_parts_as_fields(tmp_path: Path) -> None:
    path = tmp_path / "bad.gguf"
    path.write_bytes(keys(key("general.alignment", 13)))
    with pytest.raises(GGUFError) as caught:
        open_checkpoint(path)
    error = caught.value
    assert error.path == path
    assert error.what == "the value of key 'general.alignment'"
    assert (error.got, error.allowed) == ("13", "a power of two up to 1048576")
    assert isinstance(error.offset, int)


LIMITED = """
import tempfile, pathlib, gguf_fuzz
from bad_gguf_tensors import ALL
with tempfile.TemporaryDirectory() as folder:
    path = pathlib.Path(folder) / "bad.gguf"
    for bad in ALL:
        path.write_bytes(bad.build())
        outcome = gguf_fuzz.run_limited(path)
        if outcome.code != gguf_fuzz.REFUSED:
            raise SystemExit(f"{bad.name}: {outcome}")
"""


def test_refusing_takes_little_time_and_memory_and_closes_the_file() -> None:
    """Open each bad file in a process that may use 2 s of CPU time and 200 MB."""
    pytest.importorskip("resource", reason="this system has no limits on a process")
    here = Path(__file__).parent
    path = os.pathsep.join(map(str, (here, here.parent, here.parent.parent)))
    done = subprocess.run(
        [sys.executable, "-W", "error::ResourceWarning", "-c", LIMITED],
        env=os.environ | {"PYTHONPATH": path, "OPENBLAS_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def refusal(path: str | Path) -> str:
    """Return the message of a path's refusal."""
    with pytest.raises(CheckpointError) as caught:
        open_checkpoint(path)
    assert str(caught.value).isprintable()
    return str(caught.value)


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    assert "no such file" in refusal(tmp_path / "absent.gguf")


def test_a_file_below_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    message = refusal(tmp_path / "file" / "m.gguf")
    assert "no such file" in message or "cannot be opened" in message


def test_a_directory_is_refused_and_a_file_in_it_named(tmp_path: Path) -> None:
    assert "is a directory" in refusal(tmp_path)
    (tmp_path / "m.gguf").write_bytes(b"")
    assert f"such as {tmp_path / 'm.gguf'}" in refusal(tmp_path)


@pytest.mark.parametrize("path", ["a\0b", "\ud800", "x" * 5000, ""])
def test_a_path_that_cannot_be_is_refused(path: str) -> None:
    with pytest.raises(CheckpointError):
        open_checkpoint(path)


@posix
def test_a_pipe_is_refused_without_waiting_for_a_writer(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.gguf")
    assert "is a pipe" in refusal(tmp_path / "pipe.gguf")


@posix
def test_a_socket_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # a socket's path has room for about 100 characters
    with socket.socket(socket.AF_UNIX) as server:
        server.bind("s.gguf")
        assert "is a socket" in refusal("s.gguf")


@posix
def test_an_endless_device_is_refused() -> None:
    assert "is a device" in refusal("/dev/zero")


@posix
@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root reads it all")
def test_a_file_without_permission_is_refused(tmp_path: Path) -> None:
    (tmp_path / "m.gguf").touch(mode=0)
    assert "cannot be opened" in refusal(tmp_path / "m.gguf")


@posix
def test_a_link_to_a_file_is_followed_and_a_broken_one_refused(tmp_path: Path) -> None:
    (tmp_path / "model").write_bytes(keys())
    (tmp_path / "link.gguf").symlink_to("model")
    (tmp_path / "broken.gguf").symlink_to("absent")
    with open_checkpoint(tmp_path / "link.gguf") as checkpoint:
        assert checkpoint.paths == (tmp_path / "link.gguf",)
    assert "no such file" in refusal(tmp_path / "broken.gguf")
