"""A model's vocabulary as its file states it, checked: texts, kinds, scores, special ids."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence, Sized
from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING, Protocol, cast

from quantcli.errors import CheckpointError

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    F32 = npt.NDArray[np.float32]

PREFIX = "tokenizer.ggml."
TOKENS = PREFIX + "tokens"
SCORES = PREFIX + "scores"
TOKEN_TYPE = PREFIX + "token_type"
MERGES = PREFIX + "merges"

BYTE_TOKEN = re.compile(r"<0x[0-9A-Fa-f]{2}>")
_PLACEHOLDER = re.compile(r"\[PAD[0-9]{1,9}\]")

Metadata = Mapping[str, object]


class Kind(IntEnum):
    """What a token is, numbered as in `tokenizer.ggml.token_type` and in SentencePiece."""

    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


@dataclass(frozen=True, slots=True)
class Defaults:
    """What holds for a kind of tokenizer when the file does not say."""

    bos: int | None = None
    eos: int | None = None
    unknown: int | None = None
    separator: int | None = None
    add_bos: bool = False
    add_eos: bool = False


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """The tokens of a model.

    texts    the spelling of each token; all differ and none is empty
    by_text  the id of each spelling
    kinds    the Kind of each token, as the file states it or, where it does not, as inferred
    ids      id by name of the special tokens that the file names and that exist, such as "bos"
    add_bos  whether a prompt starts with BOS
    add_eos  whether a prompt ends with EOS
    notes    what was odd but could be mended, one sentence each
    """

    texts: list[str]
    by_text: dict[str, int]
    kinds: bytes
    ids: Mapping[str, int]
    add_bos: bool
    add_eos: bool
    notes: tuple[str, ...]


def read_vocabulary(metadata: Metadata, defaults: Defaults) -> Vocabulary:
    """Return the vocabulary of a file; raise CheckpointError naming the key that is wrong."""
    texts = strings(metadata, TOKENS)
    if not texts:
        raise CheckpointError(f"{TOKENS} is empty; the file has no vocabulary.")
    try:
        "".join(texts).encode()
    except UnicodeEncodeError as error:
        raise CheckpointError(f"{TOKENS} holds text that is not UTF-8: {error}.") from error
    notes: list[str] = []
    ids = _special_ids(metadata, defaults, len(texts), notes)
    kinds = _kinds(metadata, texts, ids)
    by_text = _named_apart(texts, kinds)
    return Vocabulary(
        texts=texts,
        by_text=by_text,
        kinds=bytes(kinds),
        ids=ids,
        add_bos=flag(metadata, "add_bos_token", defaults.add_bos),
        add_eos=flag(metadata, "add_eos_token", defaults.add_eos),
        notes=tuple(notes),
    )


class _Decodes(Protocol):
    def to_list(self) -> list[str]: ...


def strings(metadata: Metadata, key: str) -> list[str]:
    """Return an array of strings as a list; raise CheckpointError if it is missing or no such."""
    value = metadata.get(key)
    if value is None:
        raise CheckpointError(f"{key} is missing; the file has no vocabulary.")
    if hasattr(value, "to_list"):
        return cast("_Decodes", value).to_list()
    if isinstance(value, list | tuple) and all(isinstance(item, str) for item in value):
        return list(value)
    raise CheckpointError(f"{key} is {described(value)}; it should be an array of strings.")


def numbers(metadata: Metadata, key: str, n: int, kinds: str) -> npt.NDArray[np.generic] | None:
    """Return an array of `n` numbers, or None if the key is missing.

    kinds   what NumPy calls the kinds of numbers that are allowed: "i" and "u" integers, "f" floats

    Raises CheckpointError if the value is something else or of another length.
    """
    import numpy as np

    value = metadata.get(key)
    if value is None:
        return None
    is_array = isinstance(value, np.ndarray | list | tuple)
    array = np.asarray(value) if is_array else None
    if array is None or array.ndim != 1 or array.dtype.kind not in kinds:
        what = "integers" if kinds == "iu" else "numbers"
        raise CheckpointError(f"{key} is {described(value)}; it should be an array of {what}.")
    if array.size != n:
        raise CheckpointError(
            f"{key} has {array.size} entries for the {n} of {TOKENS}; there should be as many."
        )
    return array


def described(value: object) -> str:
    """Return what a value of metadata is, in a few words."""
    if isinstance(value, str) and len(value) > 40:
        return f"a text of {len(value)} characters"
    if isinstance(value, str | int | float):
        return repr(value)
    dtype = getattr(value, "dtype", None)
    return "an array of strings" if dtype is None else f"an array of {dtype}"


def flag(metadata: Metadata, name: str, default: bool) -> bool:
    """Return a flag of the tokenizer; raise CheckpointError if it is not true or false."""
    value = metadata.get(PREFIX + name, default)
    if not isinstance(value, bool):
        raise CheckpointError(f"{PREFIX}{name} is {described(value)}; it should be true or false.")
    return value


SPECIAL_IDS = (
    # our name, and the keys that may hold the id, the one that counts first
    ("bos", "bos_token_id"),
    ("eos", "eos_token_id"),
    ("eot", "eot_token_id"),
    ("eom", "eom_token_id"),
    ("unknown", "unknown_token_id"),
    ("separator", "seperator_token_id"),  # GGUF spells it so
    ("padding", "padding_token_id"),
    ("fim_pad", "fim_pad_token_id"),
    ("fim_rep", "fim_rep_token_id"),
    ("fim_sep", "fim_sep_token_id"),
)


def _special_ids(
    metadata: Metadata, defaults: Defaults, n: int, notes: list[str]
) -> dict[str, int]:
    """Return the special ids that exist; one that lies outside the vocabulary is dropped."""
    found: dict[str, int] = {}
    for name, key in SPECIAL_IDS:
        value = metadata.get(PREFIX + key, getattr(defaults, name, None))
        if value is None:
            continue
        # an array of numbers has __index__, too
        if isinstance(value, bool | Sized) or not hasattr(value, "__index__"):
            raise CheckpointError(f"{PREFIX}{key} is {described(value)}; it should be an integer.")
        token = int(cast("int", value))
        if 0 <= token < n:
            found[name] = token
        elif PREFIX + key in metadata:
            notes.append(f"{PREFIX}{key} is {token}, but there are {n} tokens; it is ignored.")
    return found


def _kinds(metadata: Metadata, texts: Sequence[str], ids: Mapping[str, int]) -> bytearray:
    """Return the kind of each token; where the file has none, infer byte and special tokens."""
    types = numbers(metadata, TOKEN_TYPE, len(texts), "iu")
    if types is not None:
        wide = types.astype("i8")
        known = (wide >= Kind.NORMAL) & (wide <= Kind.BYTE)
        wide[~known] = Kind.NORMAL
        kinds = bytearray(wide.astype("u1").tobytes())
    else:
        kinds = bytearray([Kind.NORMAL]) * len(texts)
        for text in spelled_like(texts, BYTE_TOKEN):
            kinds[texts.index(text)] = Kind.BYTE
        for name, kind in (("bos", Kind.CONTROL), ("eos", Kind.CONTROL), ("unknown", Kind.UNKNOWN)):
            if name in ids and texts[ids[name]].startswith("<"):
                kinds[ids[name]] = kind
    for token in of_kind(kinds, Kind.BYTE):
        if not BYTE_TOKEN.fullmatch(texts[token]):
            raise CheckpointError(
                f"{TOKENS}[{token}] is {described(texts[token])}, but {TOKEN_TYPE} calls it a "
                "byte; it should be spelled like <0x0A>."
            )
    return kinds


def _named_apart(texts: list[str], kinds: bytearray) -> dict[str, int]:
    """Return the id of each text, after making all differ, in place.

    Converters fill gaps with empty entries and [PADn]; those count as unused. Raises
    CheckpointError for two tokens of one spelling of which none is such a placeholder.
    """
    for text in spelled_like(texts, _PLACEHOLDER):
        token = int(text[len("[PAD") : -1])
        if token < len(texts) and texts[token] == text:
            kinds[token] = Kind.UNUSED
    by_text = dict(zip(texts, range(len(texts)), strict=True))
    if len(by_text) == len(texts) and "" not in by_text:
        return by_text
    by_text = {}
    for token, text in enumerate(texts):
        other = by_text.get(text, token)
        if text and other == token:
            by_text[text] = token
            continue
        if text and Kind.UNUSED not in (kinds[token], kinds[other]):
            raise CheckpointError(
                f"{TOKENS}[{other}] and [{token}] are both {described(text)}; every token "
                "should differ."
            )
        spare = other if text and kinds[token] != Kind.UNUSED else token
        by_text[text] = token if spare == other else other
        kinds[spare] = Kind.UNUSED
        texts[spare] = f"[UNUSED_{spare}]"
        by_text[texts[spare]] = spare
    by_text.pop("", None)
    return by_text


def spelled_like(texts: Sequence[str], pattern: re.Pattern[str]) -> list[str]:
    """Return the texts that a pattern matches from end to end; it matches no NUL itself.

    One search through all at once: ten times as fast as one for each of 262,144.
    """
    between = re.compile(rf"(?<=\0)(?:{pattern.pattern})(?=\0)")
    return between.findall("\0" + "\0".join(texts) + "\0")


def of_kind(kinds: bytes | bytearray, *wanted: Kind) -> list[int]:
    """Return the tokens of some kinds, in order."""
    import numpy as np

    tokens: list[int] = np.flatnonzero(np.isin(np.frombuffer(kinds, np.uint8), wanted)).tolist()
    return tokens
