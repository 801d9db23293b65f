"""Files of logits: what goes in comes out, and what is damaged or stale is refused by name."""

from __future__ import annotations

import struct
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from quantcli.errors import UsageError
from quantcli.evaluate.logits_file import (
    LogitsFile,
    Origin,
    Predictions,
    check_origin,
    new_file,
)
from quantcli.evaluate.protocol import Chunk

ORIGIN = Origin(
    model="base",
    model_sha256="ab" * 32,
    model_nbytes=1000,
    model_n_params=2000,
    vocabulary_sha256="cd" * 32,
    n_vocab=300,
    text="text.txt",
    text_sha256="ef" * 32,
    protocol="llama.cpp",
    context=16,
    begins_with_bos=True,
    n_scored=7,
    n_chunks=3,
    k=5,
    kv_type="f16",
    backend="compiled",
    made_by="test",
)


def chunk(number: int) -> Chunk:
    return Chunk(number, tuple(range(number, number + 16)), 8)


def predictions(origin: Origin, seed: int) -> Predictions:
    random = np.random.default_rng(seed)
    shape = (origin.n_scored, origin.k)
    return Predictions(
        ids=random.integers(0, origin.n_vocab, shape, np.uint32),
        logits=random.standard_normal(shape).astype(np.float32),
        rest=random.standard_normal(origin.n_scored),
        target=random.standard_normal(origin.n_scored).astype(np.float32).astype(np.float64),
    )


def write(path: Path, origin: Origin = ORIGIN) -> Path:
    with new_file(path, origin, force=False) as writer:
        for i in range(origin.n_chunks):
            writer.append(chunk(i + 1), predictions(origin, i))
    return path


@pytest.mark.parametrize("n_vocab", [300, 1 << 16, (1 << 16) + 1, 262144])
def test_what_is_written_is_read(tmp_path: Path, n_vocab: int) -> None:
    origin = replace(ORIGIN, n_vocab=n_vocab)
    with LogitsFile(write(tmp_path / "f", origin)) as file:
        assert file.origin == origin
        for i in (2, 0, 1):
            tokens, found = file.chunk(i + 1)
            expected = predictions(origin, i)
            assert tokens == chunk(i + 1).tokens
            for name in ("ids", "logits", "rest", "target"):
                assert (getattr(found, name) == getattr(expected, name)).all()


def test_a_position_takes_k_tokens_and_two_numbers(tmp_path: Path) -> None:
    nbytes = write(tmp_path / "f").stat().st_size
    one_more = write(tmp_path / "g", replace(ORIGIN, n_chunks=4)).stat().st_size
    assert one_more - nbytes == 16 * 4 + 7 * (5 * (2 + 4) + 8 + 4) + 4


def test_a_file_that_lacks_chunks_never_appears(tmp_path: Path) -> None:
    with pytest.raises(AssertionError), new_file(tmp_path / "f", ORIGIN, force=False) as writer:
        writer.append(chunk(1), predictions(ORIGIN, 0))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"model_sha256": "00" * 32, "model": "other"}, "of another model: base, not other"),
        ({"model_sha256": "00" * 32}, "of another model: abab.*, not 0000"),
        ({"vocabulary_sha256": "00" * 32}, "of another vocabulary"),
        ({"n_vocab": 301}, "of another vocabulary: cdcd"),
        ({"text_sha256": "00" * 32, "text": "b.txt"}, "of another text: text.txt, not b.txt"),
        ({"protocol": "full"}, "of another protocol: llama.cpp, not full"),
        ({"context": 32}, "of chunks of another length: 16, not 32"),
        ({"begins_with_bos": False}, "with BOS: True, not False"),
        ({"kv_type": "q8_0"}, "another KV cache type: f16, not q8_0"),
        ({"backend": "reference"}, "by another backend: compiled, not reference"),
        ({"k": 7}, "of another number of tokens a position: 5, not 7"),
        ({"n_chunks": 4}, "of fewer chunks: 3, not 4"),
    ],
)
def test_a_stale_file_is_refused_by_what_differs(
    tmp_path: Path, changed: dict[str, object], message: str
) -> None:
    wanted = replace(ORIGIN, **changed)  # type: ignore[arg-type]
    with (
        LogitsFile(write(tmp_path / "f")) as file,
        pytest.raises(UsageError, match=message) as error,
    ):
        check_origin(file, wanted)
    assert str(tmp_path / "f") in str(error.value)
    assert "--force" in str(error.value)


def test_a_fresh_file_is_taken(tmp_path: Path) -> None:
    with LogitsFile(write(tmp_path / "f")) as file:
        check_origin(file, ORIGIN)
        check_origin(file, replace(ORIGIN, n_chunks=2, made_by="another build"))
        other = replace(ORIGIN, model="x", model_sha256="", model_nbytes=0, model_n_params=0)
        check_origin(file, other, is_base_known=False)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda data: b"GGUF" + data[4:], "is not a file of logits"),
        (lambda data: data[:10], "is not a file of logits"),
        (lambda data: b"", "is not a file of logits"),
        (lambda data: data[:8] + struct.pack("<I", 2) + data[12:], "of version 2, and this is"),
        (lambda data: data[:12] + struct.pack("<I", 1 << 31) + data[16:], "header claims"),
        (lambda data: data[:16] + b"\xff" + data[17:], "its header is no JSON"),
        (lambda data: data[:-1], "bytes instead of"),
        (lambda data: data + b"\0", "bytes instead of"),
        (lambda data: data.replace(b'"k": 5', b'"k": 6'), "bytes instead of"),
        (lambda data: data.replace(b'"k": 5', b'"q": 5'), "has other keys"),
        (lambda data: data.replace(b'"k": 5', b'"k":""'), "says k is ''"),
        (lambda data: data.replace(b'"k": 5', b'"k":-5'), "numbers out of range"),
        (lambda data: data.replace(b"true", b"1111"), "says begins_with_bos is 1111"),
    ],
)
def test_a_damaged_file_is_refused(tmp_path: Path, damage, message: str) -> None:  # type: ignore[no-untyped-def]
    path = write(tmp_path / "f")
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(UsageError, match=message):
        LogitsFile(path)


def test_a_flipped_bit_is_found_when_its_chunk_is_read(tmp_path: Path) -> None:
    path = write(tmp_path / "f")
    data = bytearray(path.read_bytes())
    data[-20] ^= 1
    path.write_bytes(data)
    with LogitsFile(path) as file:
        file.chunk(2)
        with pytest.raises(UsageError, match="the checksum of chunk 3 is wrong"):
            file.chunk(3)


def test_a_token_outside_the_vocabulary_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "f")
    small = ORIGIN.n_vocab // 2
    data = path.read_bytes().replace(b'"n_vocab": 300', f'"n_vocab": {small}'.encode())
    path.write_bytes(data)
    with LogitsFile(path) as file, pytest.raises(UsageError, match="vocabulary does not have"):
        file.chunk(1)


def test_any_header_is_taken_or_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "f")
    data = path.read_bytes()
    random = np.random.default_rng(0)
    for _ in range(300):
        damaged = bytearray(data)
        for at in random.integers(0, 700, 3):
            damaged[at] = random.integers(0, 256)
        path.write_bytes(damaged)
        with suppress(UsageError), LogitsFile(path) as file:
            file.chunk(1)
