"""SentencePiece BPE vocabularies (`tokenizer.ggml.model` = llama), through `sentencepiece`.

The library reads a model as a protocol buffer, which is written here from the file's arrays.
Special and user-defined tokens are found before, in the text itself, so the library is told that
they are control pieces: those it never makes from text.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sentencepiece import SentencePieceProcessor

from quantcli.errors import CheckpointError
from quantcli.text.special import classify
from quantcli.text.tokenizer import Tokenizer
from quantcli.text.vocabulary import (
    SCORES,
    TOKENS,
    Defaults,
    Kind,
    Metadata,
    Vocabulary,
    flag,
    numbers,
    of_kind,
    read_vocabulary,
)

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    F32 = npt.NDArray[np.float32]
    I64 = npt.NDArray[np.int64]
    U8 = npt.NDArray[np.uint8]

Processor = SentencePieceProcessor
SPACE = "\u2581"  # what pieces write for a space
DEFAULTS = Defaults(bos=1, eos=2, unknown=0, add_bos=True)


class SentencePieceBPE:
    """Text to ids by merging, again and again, the two neighbours whose piece scores best."""

    def __init__(self, processor: SentencePieceProcessor, *, add_space_prefix: bool) -> None:
        """Wrap a loaded model.

        add_space_prefix   text at the start and after a special token gets a space before it
        """
        self._processor = processor
        self.drops_leading_space = add_space_prefix

    def encode(self, text: str, *, after_special: bool) -> list[int]:
        """Return the ids of plain text."""
        if self.drops_leading_space and after_special:
            text = " " + text
        return list(self._processor.encode(text.replace(" ", SPACE)))

    def token_bytes(self, text: str, kind: int) -> bytes:
        """Return the bytes of a token with this spelling."""
        return piece_bytes(text, kind)


def piece_bytes(text: str, kind: int) -> bytes:
    """Return the bytes of a piece with this spelling."""
    if kind == Kind.BYTE:
        return bytes([int(text[3:5], 16)])
    return text.replace(SPACE, " ").encode()


def build(metadata: Metadata) -> Tokenizer:
    """Return the tokenizer of a file whose `tokenizer.ggml.model` is llama.

    Raises CheckpointError for a vocabulary that is not consistent.
    """
    vocabulary = read_vocabulary(metadata, DEFAULTS)
    specials = classify(vocabulary)
    scores = read_scores(metadata, len(vocabulary.texts))
    add_space_prefix = flag(metadata, "add_space_prefix", True)
    kinds = piece_kinds(vocabulary, specials.kinds)
    algorithm = SentencePieceBPE(
        loaded(model_proto(vocabulary.texts, scores, kinds)),
        add_space_prefix=add_space_prefix,
    )
    strip_after = _swallows_spaces(metadata, vocabulary, specials.kinds)
    return Tokenizer(vocabulary, specials, algorithm, strip_after=strip_after)


def read_scores(metadata: Metadata, n: int) -> F32:
    """Return the scores of `n` pieces, f32 (n,); raise CheckpointError if they are no such."""
    import numpy as np

    scores = numbers(metadata, SCORES, n, "if")
    if scores is None:
        raise CheckpointError(f"{SCORES} is missing; without it no piece goes before another.")
    as_f32: F32 = scores.astype(np.float32)
    is_nan = np.isnan(as_f32)
    if is_nan.any():
        raise CheckpointError(f"{SCORES}[{int(is_nan.argmax())}] is not a number.")
    return as_f32


def piece_kinds(vocabulary: Vocabulary, kinds: bytes) -> bytearray:
    """Return kinds as the library wants them.

    One piece is unknown, none is user-defined, and there are all 256 bytes or none.
    """
    unwanted = [Kind.UNKNOWN, Kind.USER_DEFINED]
    if kinds.count(Kind.BYTE) != 256:
        unwanted.append(Kind.BYTE)
    table = bytes.maketrans(bytes(unwanted), bytes([Kind.CONTROL] * len(unwanted)))
    piece_kinds = bytearray(kinds.translate(table))
    unknown = vocabulary.ids.get("unknown", max(0, kinds.find(Kind.UNKNOWN)))
    piece_kinds[unknown] = Kind.UNKNOWN
    nul = vocabulary.by_text.get("\0", unknown)
    if nul != unknown:
        piece_kinds[nul] = Kind.UNUSED  # the library would say so on stderr
    return piece_kinds


def _swallows_spaces(metadata: Metadata, vocabulary: Vocabulary, kinds: bytes) -> list[int]:
    """Return the control tokens after which white space is dropped, which files do not state.

    Phi-3's tokenizer does that after all of its added tokens but three.
    """
    names = (metadata.get("general.architecture"), metadata.get("general.name"))
    if not any("phi3" in name or "phi-3" in name for name in map(str.lower, map(str, names))):
        return []
    keeps = ("<unk>", "<s>", "<|endoftext|>")
    control = of_kind(kinds, Kind.CONTROL, Kind.UNKNOWN)
    return [token for token in control if vocabulary.texts[token] not in keeps]


@dataclass(frozen=True, slots=True)
class Pieces:
    """The pieces of a tokenizer.model: texts, scores and the Kind of each."""

    texts: list[str]
    scores: list[float]
    kinds: list[int]


def pieces_of_model(model: bytes) -> Pieces:
    """Return the pieces of a tokenizer.model; raise CheckpointError if it is none.

    User-defined pieces count as normal ones, as llama.cpp's converter has it: what else they are,
    tokenizer_config.json says.
    """
    processor = SentencePieceProcessor()
    try:
        processor.LoadFromSerializedProto(model)
        ids = list(range(processor.vocab_size()))
        texts = processor.id_to_piece(ids)
    except UnicodeDecodeError as error:  # a piece, or what the library says about one
        raise CheckpointError(f"tokenizer.model holds text that is not UTF-8: {error}.") from error
    except RuntimeError as error:
        words = " ".join(str(error).split())[:160]
        raise CheckpointError(f"tokenizer.model is no SentencePiece model: {words}.") from error
    kinds = [int(Kind.NORMAL)] * len(ids)
    for kind, flags in (
        (Kind.BYTE, processor.is_byte(ids)),
        (Kind.UNUSED, processor.is_unused(ids)),
        (Kind.CONTROL, processor.is_control(ids)),
        (Kind.UNKNOWN, processor.is_unknown(ids)),
    ):
        for token in ids:
            if flags[token]:
                kinds[token] = int(kind)
    return Pieces(texts, processor.get_score(ids), kinds)


def loaded(proto: bytes) -> Processor:
    """Return a model that `model_proto` wrote; raise CheckpointError if it makes no sense."""
    processor = SentencePieceProcessor()
    try:
        processor.LoadFromSerializedProto(proto)
    except RuntimeError as error:
        raise CheckpointError(f"{TOKENS} is no SentencePiece vocabulary: {error}") from error
    return processor


# The protocol buffer: a field is a tag, (number << 3 | type), and a value; type 0 is a varint,
# 2 a length and bytes, 5 four bytes. ModelProto: 1 pieces, 2 trainer_spec, 3 normalizer_spec.
# A piece: 1 text, 2 score, 3 kind. Source: sentencepiece_model.proto.
_PIECE, _TRAINER, _NORMALIZER = 0x0A, 0x12, 0x1A
_TEXT, _SCORE, _KIND = 0x0A, 0x15, 0x18
_SCORE_NBYTES, _KIND_NBYTES = 5, 2


def model_proto(
    texts: Sequence[str], scores: F32, kinds: bytes | bytearray, *, is_unigram: bool = False
) -> bytes:
    """Return a SentencePiece model of BPE or unigram pieces, as the library loads it.

    scores   f32 (n,)
    kinds    the Kind of each piece: one is unknown; there are all 256 bytes or none

    Text is neither normalized nor given a leading space; 262,144 pieces take about 0.1 s.
    """
    has_bytes = kinds.count(Kind.BYTE) == 256
    # model_type, 1 unigram or 2 BPE; byte_fallback
    trainer = _varint_field(3, 1 if is_unigram else 2) + _varint_field(35, has_bytes)
    # add_dummy_prefix, remove_extra_whitespaces and escape_whitespaces are all off
    normalizer = b"\x0a\x08identity" + b"".join(_varint_field(field, 0) for field in (3, 4, 5))
    parts = [
        _pieces(texts, scores, kinds),
        bytes([_TRAINER, len(trainer)]) + trainer,
        bytes([_NORMALIZER, len(normalizer)]) + normalizer,
    ]
    return b"".join(parts)


def _varint_field(number: int, value: int) -> bytes:
    """Return a field with a value below 128."""
    tag = number << 3
    return bytes([tag, value]) if tag < 128 else bytes([tag & 127 | 128, tag >> 7, value])


def _pieces(texts: Sequence[str], scores: F32, kinds: bytes | bytearray) -> bytes:
    """Return the fields of all pieces, each laid out as

    tag, length of the rest | tag, length of text, text | tag, score | tag, kind
    """
    import numpy as np

    encoded = [text.encode() for text in texts]
    text_nbytes = np.fromiter(map(len, encoded), np.int64, len(encoded))
    text_header = 1 + _varint_nbytes(text_nbytes)
    body = text_header + text_nbytes + _SCORE_NBYTES + _KIND_NBYTES
    header = 1 + _varint_nbytes(body)
    stops = np.cumsum(header + body)
    starts = stops - header - body

    out = np.empty(int(stops[-1]), np.uint8)
    out[starts] = _PIECE
    _put_varints(out, starts + 1, body)
    text_tags = starts + header
    out[text_tags] = _TEXT
    _put_varints(out, text_tags + 1, text_nbytes)
    text_starts = text_tags + text_header
    from_start = np.arange(int(text_nbytes.sum()))
    from_start -= np.repeat(np.cumsum(text_nbytes) - text_nbytes, text_nbytes)
    out[np.repeat(text_starts, text_nbytes) + from_start] = np.frombuffer(
        b"".join(encoded), np.uint8
    )
    score_tags = text_starts + text_nbytes
    out[score_tags] = _SCORE
    score_bytes = scores.astype("<f4").view(np.uint8).reshape(-1, 4)
    out[score_tags[:, None] + np.arange(1, 5)] = score_bytes
    out[stops - 2] = _KIND
    out[stops - 1] = np.frombuffer(kinds, np.uint8)
    return out.tobytes()


def _varint_nbytes(values: I64) -> I64:
    """Return how many bytes values take, seven bits a byte. i64 (n,) -> i64 (n,)."""
    import numpy as np

    nbytes = np.ones_like(values)
    for shift in range(7, 35, 7):
        nbytes += values >> shift > 0
    return nbytes


def _put_varints(out: U8, at: I64, values: I64) -> None:
    """Write values in groups of seven bits, lowest first; all but the last have bit 7 set."""
    import numpy as np

    rest, at = values, at.copy()
    while rest.size:
        more = rest > 127
        out[at] = (rest & 127 | more.astype(np.int64) << 7).astype(np.uint8)
        rest, at = rest[more] >> 7, at[more] + 1
