"""The base's predictions in a file: its likeliest tokens at every scored position, and the rest.

A file holds, for each position, the k largest logits with their tokens and the log-sum-exp of all
the others, all as the model computed them, so the base's own KL against its file is exactly 0.
KL against the file treats the others as one token:

    sum_top p ln(p / q) + R_p ln(R_p / R_q),  R the probability of the rest

By the log-sum inequality that is a lower bound of the KL over the whole vocabulary. What is missing
is R_p times the KL within the rest.

    "QCLOGITS", u32 version, u32 length of the header, the header as JSON, zeros up to a multiple
    of 64, then one record a chunk; each ends in the CRC-32 of what comes before.
"""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import BinaryIO

import numpy as np
import numpy.typing as npt

from quantcli.errors import UsageError
from quantcli.evaluate.output_file import draft
from quantcli.evaluate.protocol import Chunk
from quantcli.formats import F32

F64 = npt.NDArray[np.float64]
U32 = npt.NDArray[np.uint32]

MAGIC = b"QCLOGITS"
VERSION = 1
OPTION = "--logits"
_HEAD = struct.Struct("<8sII")
_ALIGNMENT = 64
_MAX_HEADER_NBYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class Origin:
    """What the predictions depend on: the base, the text, the protocol, the settings.

    model_sha256       of the base's files
    vocabulary_sha256  of its tokens
    begins_with_bos    whether each chunk starts with BOS
    n_chunks           chunks in the file
    k                  tokens listed at each position
    made_by            version and kernels; other ones round in another way
    """

    model: str
    model_sha256: str
    model_nbytes: int
    model_n_params: int
    vocabulary_sha256: str
    n_vocab: int
    text: str
    text_sha256: str
    protocol: str
    context: int
    begins_with_bos: bool
    n_scored: int
    n_chunks: int
    k: int
    kv_type: str
    backend: str
    made_by: str

    def record(self) -> np.dtype:
        """Return the layout of one chunk."""
        small = self.n_vocab <= 1 << 16
        return np.dtype(
            [
                ("tokens", "<u4", self.context),
                ("ids", "<u2" if small else "<u4", (self.n_scored, self.k)),
                ("logits", "<f4", (self.n_scored, self.k)),  # of ids, largest first
                ("rest", "<f8", self.n_scored),  # log-sum-exp of all other logits
                ("target", "<f4", self.n_scored),  # logit of the token that came
                ("crc", "<u4"),
            ]
        )


@dataclass(frozen=True, slots=True)
class Predictions:
    """A base's predictions at the n scored positions of a chunk.

    ids     u32 (n, k)   its likeliest tokens, the likeliest first
    logits  f32 (n, k)   their logits
    rest    f64 (n,)     log-sum-exp of all other logits
    target  f64 (n,)     logit of the token that came
    """

    ids: U32
    logits: F32
    rest: F64
    target: F64

    @classmethod
    def join(cls, parts: Sequence[Predictions]) -> Predictions:
        """Return the predictions of several runs of positions in order."""
        names = cls.__dataclass_fields__
        return cls(**{name: np.concatenate([getattr(p, name) for p in parts]) for name in names})

    def part(self, positions: slice) -> Predictions:
        """Return the predictions at some of the positions."""
        names = self.__dataclass_fields__
        return Predictions(**{name: getattr(self, name)[positions] for name in names})


class Writer:
    """Appends chunks to a file of predictions."""

    def __init__(self, file: BinaryIO, origin: Origin) -> None:
        """Write the header."""
        self._file, self._origin = file, origin
        self._layout = origin.record()
        self._n_written = 0
        header = json.dumps(asdict(origin), ensure_ascii=False).encode()
        head = _HEAD.pack(MAGIC, VERSION, len(header)) + header
        file.write(head + bytes(-len(head) % _ALIGNMENT))

    def append(self, chunk: Chunk, found: Predictions) -> None:
        """Write the predictions of the next chunk."""
        record = np.zeros(1, self._layout)
        record["tokens"] = chunk.tokens
        record["ids"], record["logits"] = found.ids, found.logits
        record["rest"], record["target"] = found.rest, found.target
        record["crc"] = zlib.crc32(record.tobytes()[:-4])
        self._file.write(record.tobytes())
        self._n_written += 1

    def finish(self) -> None:
        """Check that every chunk was written."""
        assert self._n_written == self._origin.n_chunks, (self._n_written, self._origin)


@contextmanager
def new_file(path: Path, origin: Origin, *, force: bool) -> Iterator[Writer]:
    """Hold a writer; the file appears when all of `origin.n_chunks` have been written."""
    with draft(path, OPTION, force=force) as file:
        writer = Writer(file, origin)
        yield writer
        writer.finish()


class LogitsFile:
    """A file of predictions, opened for reading. Use as a context manager."""

    def __init__(self, path: Path) -> None:
        """Read and check the header. Raises UsageError for no such file, or a damaged one."""
        self.path = path
        self._file = path.open("rb")
        try:
            self.origin, self._start = self._read_header()
            self._layout = self.origin.record()
            expected = self._start + self.origin.n_chunks * self._layout.itemsize
            nbytes = self._file.seek(0, 2)
            if nbytes != expected:
                raise self._damaged(f"it has {nbytes} bytes instead of {expected}")
        except BaseException:
            self._file.close()
            raise

    def __enter__(self) -> LogitsFile:
        """Return itself; leaving the block closes the file."""
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def chunk(self, number: int) -> tuple[tuple[int, ...], Predictions]:
        """Return the tokens and predictions of a chunk, counted from 1."""
        assert 1 <= number <= self.origin.n_chunks, number
        self._file.seek(self._start + (number - 1) * self._layout.itemsize)
        data = self._file.read(self._layout.itemsize)
        if len(data) < self._layout.itemsize:
            raise self._damaged(f"chunk {number} is cut short")
        record = np.frombuffer(data, self._layout)[0]
        if zlib.crc32(data[:-4]) != record["crc"]:
            raise self._damaged(f"the checksum of chunk {number} is wrong")
        if int(record["ids"].max()) >= self.origin.n_vocab:
            raise self._damaged(f"chunk {number} lists a token that the vocabulary does not have")
        found = Predictions(
            ids=record["ids"].astype(np.uint32),
            logits=record["logits"].astype(np.float32),
            rest=record["rest"].astype(np.float64),
            target=record["target"].astype(np.float64),
        )
        return tuple(record["tokens"].tolist()), found

    def _read_header(self) -> tuple[Origin, int]:
        head = self._file.read(_HEAD.size)
        if len(head) < _HEAD.size or not head.startswith(MAGIC):
            raise UsageError(
                f"{self.path} is not a file of logits. Name one that --logits has written, or a "
                "new one."
            )
        _, version, length = _HEAD.unpack(head)
        if version != VERSION:
            raise UsageError(
                f"{self.path} is a file of logits of version {version}, and this is version "
                f"{VERSION}. Use --force to compute it again."
            )
        if length > _MAX_HEADER_NBYTES:
            raise self._damaged(f"its header claims {length} bytes")
        origin = self._parse(self._file.read(length))
        start = _HEAD.size + length
        return origin, start + -start % _ALIGNMENT

    def _parse(self, data: bytes) -> Origin:
        try:
            values = json.loads(data)
        except ValueError:
            raise self._damaged("its header is no JSON") from None
        kinds = {"str": str, "int": int, "bool": bool}
        expected = {field.name: kinds[str(field.type)] for field in fields(Origin)}
        if not isinstance(values, dict) or set(values) != set(expected):
            raise self._damaged("its header has other keys")
        for name, kind in expected.items():
            if type(values[name]) is not kind:
                raise self._damaged(f"its header says {name} is {values[name]!r}")
        origin = Origin(**values)
        in_range = (
            0 < origin.k <= origin.n_vocab < 1 << 31
            and 0 < origin.n_scored < origin.context < 1 << 24
            and origin.n_chunks > 0
        )
        if not in_range:
            raise self._damaged("its header has numbers out of range")
        return origin

    def _damaged(self, what: str) -> UsageError:
        return UsageError(f"{self.path} is damaged: {what}. Use --force to compute it again.")


def check_origin(file: LogitsFile, wanted: Origin, *, is_base_known: bool = True) -> None:
    """Raise UsageError that names the first thing in which a file is not what is wanted.

    is_base_known  whether `wanted` names the base; else the file decides which that is
    """
    has = file.origin
    if not is_base_known:
        names = ("model", "model_sha256", "model_nbytes", "model_n_params")
        wanted = replace(wanted, **{name: getattr(has, name) for name in names})
    for differs, what, one, other in _differences(has, wanted):
        if differs:
            raise UsageError(
                f"{file.path} holds logits {what}: {one}, not {other}. Name another file with "
                "--logits, or use --force to compute this one again."
            )


def _differences(has: Origin, wanted: Origin) -> Iterator[tuple[bool, str, object, object]]:
    """Yield (whether it differs, what, what there is, what is wanted)."""

    def compared(what: str, *names: str, shown: str = "") -> tuple[bool, str, object, object]:
        one, other = ([getattr(origin, name) for name in names] for origin in (has, wanted))
        first, second = getattr(has, shown or names[0]), getattr(wanted, shown or names[0])
        if first == second:  # such as two files of one name
            first, second = one[0], other[0]
        return one != other, what, first, second

    yield compared("of another model", "model_sha256", "model_nbytes", shown="model")
    yield compared("of another vocabulary", "vocabulary_sha256", "n_vocab")
    yield compared("of another text", "text_sha256", shown="text")
    yield compared("of another protocol", "protocol")
    yield compared("of chunks of another length", "context")
    yield compared("of chunks that start otherwise, with BOS", "begins_with_bos")
    yield compared("computed with another KV cache type", "kv_type")
    yield compared("computed by another backend", "backend")
    yield compared("of another number of tokens a position", "k")
    yield has.n_chunks < wanted.n_chunks, "of fewer chunks", has.n_chunks, wanted.n_chunks


def check_tokens(file: LogitsFile, tokens: Sequence[int], chunk: Chunk, name: str) -> None:
    """Raise UsageError if a chunk's tokens are not those of the file."""
    if tuple(tokens) != chunk.tokens:
        raise UsageError(
            f"{name} splits chunk {chunk.number} of the text into other tokens than {file.path} "
            "holds: only models of one vocabulary can be compared."
        )
