"""A Hugging Face model's vocabulary as GGUF keys: tokens, scores, kinds and merges.

tokenizer.model is SentencePiece's own file. tokenizer.json is a pipeline of Hugging Face's: a BPE
over bytes, or one over characters that falls back to bytes, which is SentencePiece's by another
name. What the keys hold is what llama.cpp's converter writes, with one difference: from a
tokenizer.json of the second sort it takes no scores, and the tokens of text come out wrong; here a
piece's score is the rank of its merge, so that ids are those of Hugging Face's library.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from tokenizers import AddedToken, Tokenizer

from quantcli.errors import CheckpointError, UnsupportedModel
from quantcli.text.hf_pre import PRE_OF_HASH, TEXT, hash_of
from quantcli.text.hf_splits import splits_like
from quantcli.text.vocabulary import BYTE_TOKEN, MERGES, PREFIX, SCORES, TOKEN_TYPE, TOKENS, Kind

Keys = dict[str, Any]
Table = Mapping[str, Any]

_SPACE = "\u2581"
_ADDED_SCORE = -1000.0
_PADDING_SCORE = -10000.0
# Control tokens that some tokenizers do not mark as special.
_LOOK_SPECIAL = ("<pad>", "<mask>", "<2mass>", "[@BOS@]")
_SPECIAL_NAMES = ("bos", "eos", "unk", "sep", "pad", "cls", "mask")


@dataclass(frozen=True, slots=True)
class TokenizerFiles:
    """What a folder says about its vocabulary, a missing file as None or empty.

    model           bytes of tokenizer.model
    pipeline        bytes of tokenizer.json
    table           tokenizer.json, parsed
    config          tokenizer_config.json
    added           added_tokens.json: text -> id
    merges          merges.txt
    chat_template   chat_template.jinja or the text in chat_template.json, or a list of
                    {name, template} if there are several
    """

    model: bytes | None = None
    pipeline: bytes = b""
    table: Table = field(default_factory=dict)
    config: Table = field(default_factory=dict)
    added: Mapping[str, int] = field(default_factory=dict)
    merges: str = ""
    chat_template: object = None


def vocabulary_keys(
    files: TokenizerFiles, n_vocab: int | None, pre: str | None = None, *, as_listed: bool = False
) -> Keys:
    """Return the GGUF keys of a vocabulary, without those of its special tokens.

    n_vocab     config.json's vocab_size; gaps up to it are filled
    pre         `tokenizer.ggml.pre` of a byte-level BPE; None finds it out
    as_listed   whether tokens added to tokenizer.model are taken as they are listed, and those that
                tokenizer.json lists as well: no kind or space is read out of their spelling

    Raises CheckpointError for files that are malformed or do not fit, UnsupportedModel for a kind
    of tokenizer that quantcli does not have.
    """
    if files.model is not None:
        return _sentencepiece_keys(files, n_vocab, as_listed=as_listed)
    model = files.table.get("model")
    if not isinstance(model, dict):
        raise CheckpointError(
            "the folder has neither tokenizer.model nor a tokenizer.json with a model; fetch the "
            "model's tokenizer too."
        )
    kind = model.get("type", "BPE" if "merges" in model else None)
    if kind != "BPE":
        raise UnsupportedModel(
            f"tokenizer.json holds a model of type {str(kind)[:40]!r}; only BPE is supported."
        )
    if model.get("byte_fallback"):
        return _byte_fallback_keys(files, model)
    return _byte_level_keys(files, model, n_vocab, pre)


def looks_special(text: str) -> bool:
    """Return whether a token is one of control by its spelling, whatever its flags say."""
    pairs = (("<|", "|>"), ("<\uff5c", "\uff5c>"), ("<unused", ">"))
    return text in _LOOK_SPECIAL or any(text.startswith(a) and text.endswith(b) for a, b in pairs)


def _sentencepiece_keys(files: TokenizerFiles, n_vocab: int | None, *, as_listed: bool) -> Keys:
    from quantcli.text.spm import pieces_of_model

    assert files.model is not None
    pieces = pieces_of_model(files.model)
    n = n_vocab or len(pieces.texts)
    texts = [f"[PAD{i}]" for i in range(n)]
    scores, kinds = [_PADDING_SCORE] * n, [int(Kind.UNUSED)] * n
    n_kept = min(n, len(pieces.texts))
    texts[:n_kept] = pieces.texts[:n_kept]
    scores[:n_kept] = pieces.scores[:n_kept]
    kinds[:n_kept] = pieces.kinds[:n_kept]
    for text, token in files.added.items():
        if type(token) is int and 0 <= token < n:
            texts[token], scores[token] = text, _ADDED_SCORE
            kinds[token] = int(Kind.USER_DEFINED)
    listed = _added_by_config(files.config) | (_added_by_pipeline(files.table) if as_listed else {})
    for token, added in listed.items():
        if token < n:
            texts[token], kinds[token] = _spelled(added.content, is_special=added.special)
            if as_listed:
                kind = Kind.CONTROL if added.special else Kind.USER_DEFINED
                texts[token], kinds[token] = added.content, int(kind)
            scores[token] = _ADDED_SCORE
    return _keys("llama", "default", texts, kinds) | {SCORES: np.array(scores, np.float32)}


def _byte_fallback_keys(files: TokenizerFiles, model: Table) -> Keys:
    pipeline = _pipeline(files)
    vocab = pipeline.get_vocab(with_added_tokens=True)
    texts = _by_id(vocab, len(vocab))
    added = pipeline.get_added_tokens_decoder()
    ranks = _ranks(model)
    scores, kinds = [], []
    for token, text in enumerate(texts):
        kind, score = Kind.NORMAL, float(-ranks.get(text, len(ranks) + token))
        if text == model.get("unk_token"):
            kind, score = Kind.UNKNOWN, 0.0
        elif BYTE_TOKEN.fullmatch(text):
            kind, score = Kind.BYTE, 0.0
        elif token in added:
            texts[token], number = _spelled(text, is_special=added[token].special)
            kind, score = Kind(number), _ADDED_SCORE
        kinds.append(int(kind))
        scores.append(score)
    return _keys("llama", "default", texts, kinds) | {
        SCORES: np.array(scores, np.float32),
        PREFIX + "add_space_prefix": _prepends_space(files.table),
    }


def _byte_level_keys(
    files: TokenizerFiles, model: Table, n_vocab: int | None, pre: str | None
) -> Keys:
    pipeline = _pipeline(files)
    vocab = pipeline.get_vocab(with_added_tokens=True)
    texts = _by_id(vocab, n_vocab or len(vocab))
    added = pipeline.get_added_tokens_decoder()
    kinds = []
    for token, text in enumerate(texts):
        kind = int(Kind.NORMAL if text in vocab else Kind.UNUSED)
        if kind != Kind.UNUSED and token in added:
            if not added[token].normalized:  # GGUF's readers look for what text really holds
                ids = pipeline.encode(text, add_special_tokens=False).ids
                text = pipeline.decode(ids, skip_special_tokens=False)
            texts[token], kind = _spelled(text, is_special=added[token].special)
        kinds.append(kind)
    merges = _merges(model) or _merges_of_file(files.merges)
    if not merges:
        raise CheckpointError("tokenizer.json has no merges, and there is no merges.txt.")
    name = pre or _pre_of(pipeline, files.config)
    return _keys("gpt2", name, texts, kinds) | {MERGES: merges}


def _keys(model: str, pre: str, texts: list[str], kinds: Sequence[int]) -> Keys:
    return {
        PREFIX + "model": model,
        PREFIX + "pre": pre,
        TOKENS: texts,
        TOKEN_TYPE: np.array(kinds, np.int32),
    }


def _spelled(text: str, *, is_special: bool) -> tuple[str, int]:
    """Return an added token as GGUF spells it, and its kind."""
    if is_special or looks_special(text):
        return text, int(Kind.CONTROL)
    return text.replace(_SPACE, " "), int(Kind.USER_DEFINED)


def _by_id(vocab: Mapping[str, int], n: int) -> list[str]:
    """Return the text of each token, [PADn] where there is none."""
    last = max(vocab.values(), default=-1)
    if last >= n:
        raise CheckpointError(
            f"tokenizer.json goes up to token {last}, but config.json says that vocab_size is {n}; "
            "the files are not of one model."
        )
    texts = [f"[PAD{i}]" for i in range(n)]
    for text, token in vocab.items():
        texts[token] = text
    return texts


def _pipeline(files: TokenizerFiles) -> Tokenizer:
    """Return the library's tokenizer, with the tokens that tokenizer_config.json adds to it."""
    failures: list[Exception] = []
    try:
        pipeline = Tokenizer.from_buffer(files.pipeline)
        _add_tokens(pipeline, files.config)
        return pipeline
    except Exception as error:  # noqa: BLE001 - raised again below: the library has no own class
        failures.append(error)
    words = " ".join(str(failures[0]).split())[:120]
    raise CheckpointError(f"tokenizer.json cannot be read: {words}.") from failures[0]


def _add_tokens(pipeline: Tokenizer, config: Table) -> None:
    """Add what tokenizer_config.json lists beyond tokenizer.json, as transformers does."""
    present = pipeline.get_added_tokens_decoder().values()
    spelled = {repr(token) for token in present}
    new = [token for token in _added_by_config(config).values() if repr(token) not in spelled]
    known = {token.content for token in present} | {token.content for token in new}
    special = [text for text in _special_texts(config) if text]
    for token in new:
        token.special = token.special or token.content in special
    missing = [text for text in dict.fromkeys(special) if text not in known]
    new += [AddedToken(text, special=True) for text in missing]
    if new:
        pipeline.add_tokens(new)


def _added_by_config(config: Table) -> dict[int, AddedToken]:
    """Return tokenizer_config.json's added_tokens_decoder."""
    listed = config.get("added_tokens_decoder") or {}
    flags = ("lstrip", "rstrip", "normalized", "single_word", "special")
    found = {}
    try:
        for token, entry in listed.items():
            chosen = {name: bool(entry[name]) for name in flags if name in entry}
            found[int(token)] = AddedToken(str(entry["content"]), **chosen)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise CheckpointError(
            f"tokenizer_config.json: added_tokens_decoder is malformed: {error!r:.80}."
        ) from error
    if any(token < 0 for token in found):
        raise CheckpointError("tokenizer_config.json: added_tokens_decoder has an id below 0.")
    return dict(sorted(found.items()))


def _added_by_pipeline(table: Table) -> dict[int, AddedToken]:
    """Return tokenizer.json's added_tokens."""
    listed = table.get("added_tokens") or []
    entries = {str(e.get("id")): e for e in listed if isinstance(e, dict)}
    return _added_by_config({"added_tokens_decoder": entries})


def _special_texts(config: Table) -> list[str]:
    entries = [config.get(f"{name}_token") for name in _SPECIAL_NAMES]
    more = config.get("additional_special_tokens")
    return [text_of(entry) or "" for entry in entries + (more if isinstance(more, list) else [])]


def text_of(entry: object) -> str | None:
    """Return the text of a token that is given as a string, or an object with its flags."""
    if isinstance(entry, dict):
        entry = entry.get("content")
    return entry if isinstance(entry, str) else None


def _pre_of(pipeline: Tokenizer, config: Table) -> str:
    """Return the name of how a pipeline splits words; raise UnsupportedModel if it has none."""
    plain = pipeline.encode(TEXT, add_special_tokens=False).ids
    bos = pipeline.token_to_id(text_of(config.get("bos_token")) or "")
    wrapped = pipeline.encode(TEXT).ids
    candidates = [wrapped, plain] + ([[bos, *plain]] if bos is not None else [])
    for ids in candidates:
        if name := PRE_OF_HASH.get(hash_of(ids)):
            return name
    if name := splits_like(pipeline):  # a vocabulary of one's own, words as others split them
        return name
    raise UnsupportedModel(
        f"tokenizer.json splits words in a way that GGUF has no name for (hash "
        f"{hash_of(wrapped)[:16]}...); if a known way is the same, run quantcli convert with --pre "
        "NAME, such as --pre llama-bpe."
    )


def _merges(model: Table) -> list[str]:
    """Return the merges of tokenizer.json, each as two texts with a space between."""
    merges = model.get("merges")
    if not isinstance(merges, list) or not merges:
        return []
    if all(isinstance(merge, str) for merge in merges):
        return merges
    try:
        # A space inside a text is written as byte-level BPE writes it.
        return [f"{a.replace(' ', _BYTE_SPACE)} {b.replace(' ', _BYTE_SPACE)}" for a, b in merges]
    except (AttributeError, TypeError, ValueError) as error:
        raise CheckpointError("tokenizer.json: merges must be pairs of texts.") from error


_BYTE_SPACE = chr(256 + ord(" "))


def _merges_of_file(text: str) -> list[str]:
    lines = text.splitlines()
    lines = lines[1:] if lines and lines[0].startswith("#") else lines
    pairs = [line.split() for line in lines if line.strip()]
    return [" ".join(pair) for pair in pairs if len(pair) == 2]


def _ranks(model: Table) -> dict[str, int]:
    """Return the rank of the first merge that makes each text."""
    merges = model.get("merges")
    ranks: dict[str, int] = {}
    for rank, merge in enumerate(merges if isinstance(merges, list) else []):
        parts = merge.split(" ") if isinstance(merge, str) else merge
        if isinstance(parts, list) and all(isinstance(part, str) for part in parts):
            ranks.setdefault("".join(parts), rank)
    return ranks


def _prepends_space(table: Table) -> bool:
    """Return whether text gets a space before its first word."""
    for step in _steps(table.get("normalizer")) + _steps(table.get("pre_tokenizer")):
        if step.get("type") == "Prepend":
            return True
        if step.get("type") == "Metaspace":
            return bool(step.get("prepend_scheme", "always") != "never")
    return False


def _steps(part: object) -> list[Table]:
    """Return a step of a pipeline, or the steps that it is a sequence of."""
    if not isinstance(part, dict):
        return []
    inner = part.get("normalizers") or part.get("pretokenizers")
    if part.get("type") == "Sequence" and isinstance(inner, list):
        return [step for item in inner for step in _steps(item)]
    return [part]
