"""A model's vocabulary as its file states it, checked: texts, kinds, scores, special ids."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
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
    add_bos: bool = False


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """The tokens of a model.

    texts    the spelling of each token; all differ and none is empty
    kinds    the Kind of each token, as the file states it or, where it does not, as inferred
    ids      id by name of the special tokens that the file names and that exist, such as "bos"
    add_bos  whether a prompt starts with BOS
    add_eos  whether a prompt ends with EOS
    notes    what was odd but could be mended, one sentence each
    """

    texts: list[str]
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
    notes: list[str] = []
    ids = _special_ids(metadata, defaults, len(texts), notes)
    kinds = _kinds(metadata, texts, ids)
    _name_placeholders(texts, kinds)
    return Vocabulary(
        texts=texts,
        kinds=bytes(kinds),
        ids=ids,
        add_bos=_flag(metadata, "add_bos_token", defaults.add_bos),
        add_eos=_flag(metadata, "add_eos_token", False),
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
    raise CheckpointError(f"{key} is {_described(value)}; it should be an array of strings.")


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
        raise CheckpointError(f"{key} is {_described(value)}; it should be an array of {what}.")
    if array.size != n:
        raise CheckpointError(
            f"{key} has {array.size} entries for the {n} of {TOKENS}; there should be as many."
        )
    return array


def _described(value: object) -> str:
    """Return what a value of metadata is, in a few words."""
    if isinstance(value, str | int | float):
        text = repr(value)
        return text if len(text) <= 40 else f"a {type(value).__name__} of {len(text)} characters"
    dtype = getattr(value, "dtype", None)
    return "an array of strings" if dtype is None else f"an array of {dtype}"


def _flag(metadata: Metadata, name: str, default: bool) -> bool:
    value = metadata.get(PREFIX + name, default)
    if not isinstance(value, bool):
        raise CheckpointError(f"{PREFIX}{name} is {_described(value)}; it should be true or false.")
    return value


SPECIAL_IDS = (
    # our name, and the keys that may hold the id, the one that counts first
    ("bos", "bos_token_id"),
    ("eos", "eos_token_id"),
    ("eot", "eot_token_id"),
    ("eom", "eom_token_id"),
    ("unknown", "unknown_token_id"),
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
        if isinstance(value, bool) or not hasattr(value, "__index__"):
            raise CheckpointError(f"{PREFIX}{key} is {_described(value)}; it should be an integer.")
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
        for token, text in enumerate(texts):
            if text.startswith("<0x") and BYTE_TOKEN.fullmatch(text):
                kinds[token] = Kind.BYTE
        for name, kind in (("bos", Kind.CONTROL), ("eos", Kind.CONTROL), ("unknown", Kind.UNKNOWN)):
            if name in ids and texts[ids[name]].startswith("<"):
                kinds[ids[name]] = kind
    for token in (i for i, kind in enumerate(kinds) if kind == Kind.BYTE):
        if not BYTE_TOKEN.fullmatch(texts[token]):
            raise CheckpointError(
                f"{TOKENS}[{token}] is {texts[token]!r}, but {TOKEN_TYPE} calls it a byte; "
                "it should be spelled like <0x0A>."
            )
    return kinds


def _name_placeholders(texts: list[str], kinds: bytearray) -> None:
    """Make all texts differ, in place: converters fill gaps with empty and [PADn] entries.

    Raises CheckpointError for two tokens of one spelling of which none is a placeholder.
    """
    for token, text in enumerate(texts):
        if not text:
            texts[token] = f"[EMPTY_{token}]"
            kinds[token] = Kind.UNUSED
        elif text.startswith("[PAD") and text == f"[PAD{token}]":
            kinds[token] = Kind.UNUSED
    if len(set(texts)) == len(texts):
        return
    first: dict[str, int] = {}
    for token, text in enumerate(texts):
        other = first.setdefault(text, token)
        if other == token:
            continue
        placeholder = next((i for i in (token, other) if kinds[i] == Kind.UNUSED), None)
        if placeholder is None:
            raise CheckpointError(
                f"{TOKENS}[{other}] and [{token}] are both {text!r}; every token should differ."
            )
        texts[placeholder] = f"[UNUSED_{placeholder}]"
        first[text] = other if placeholder == token else token
