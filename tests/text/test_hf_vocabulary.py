"""Vocabularies of Hugging Face folders: GGUF keys whose tokenizer gives the library's own ids."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from golden_texts import TEXTS
from hugging_face import pipeline
from tokenizers import AddedToken, Tokenizer, decoders, normalizers, pre_tokenizers
from tokenizers.models import BPE
from trained_vocab import pieces_of, trained_processor

from quantcli.checkpoint import open_checkpoint
from quantcli.errors import CheckpointError
from quantcli.text import from_metadata
from quantcli.text.hf_special import special_keys, template_keys
from quantcli.text.hf_vocabulary import TokenizerFiles, looks_special, vocabulary_keys
from quantcli.text.vocabulary import Kind

SPACE = "\u2581"


def byte_fallback(*, prefix: bool) -> Tokenizer:
    """Return the library's BPE with byte fallback for a trained SentencePiece model.

    Merges are ranked as the library's own converter ranks them: by the score of what they make.
    """
    pieces = pieces_of(trained_processor(add_space_prefix=prefix))
    vocab = {text: i for i, (text, _, _) in enumerate(pieces)}
    merges = []
    for text, score, kind in pieces:
        if kind == Kind.NORMAL and len(text) > 1:
            pairs = [(text[:i], text[i:]) for i in range(1, len(text))]
            merges += [(-score, pair) for pair in pairs if pair[0] in vocab and pair[1] in vocab]
    ranked = [pair for _, pair in sorted(merges, key=lambda merge: merge[0])]
    made = Tokenizer(BPE(vocab=vocab, merges=ranked, unk_token="<unk>", byte_fallback=True))
    steps = [normalizers.Prepend(SPACE)] if prefix else []
    made.normalizer = normalizers.Sequence([*steps, normalizers.Replace(" ", SPACE)])
    made.decoder = decoders.Sequence([decoders.Replace(SPACE, " "), decoders.ByteFallback()])
    made.add_special_tokens(
        [AddedToken(t, special=True, normalized=False) for t in ("<s>", "</s>")]
    )
    made.add_tokens([AddedToken(f"{SPACE}{SPACE}gap", special=False, normalized=False)])
    return made


def files_of(pipeline: Tokenizer, **config: object) -> TokenizerFiles:
    """Return what a folder with this tokenizer.json says."""
    text = pipeline.to_str()
    return TokenizerFiles(pipeline=text.encode(), table=json.loads(text), config=config)


def keys_of(files: TokenizerFiles, **options: Any) -> dict[str, Any]:
    """Return all GGUF keys of a vocabulary, as a file's metadata has them."""
    keys = vocabulary_keys(files, options.get("n_vocab"), options.get("pre"))
    keys |= special_keys(files, {"bos_token_id": 1, "eos_token_id": 2}, None)
    return {"general.architecture": "llama", **keys}


@pytest.mark.parametrize("prefix", [True, False])
@pytest.mark.parametrize("name", TEXTS)
def test_pieces_without_scores_give_the_librarys_ids(name: str, prefix: bool) -> None:
    pipeline = byte_fallback(prefix=prefix)
    keys = keys_of(files_of(pipeline))
    assert keys["tokenizer.ggml.model"] == "llama"
    assert keys["tokenizer.ggml.add_space_prefix"] is prefix
    text = TEXTS[name].replace("<s>", "").replace("</s>", "")
    ours = from_metadata(keys).encode(text, add_special=False)
    assert list(ours) == pipeline.encode(text, add_special_tokens=False).ids


def test_kinds_of_pieces_follow_from_flags_and_spelling() -> None:
    keys = keys_of(files_of(byte_fallback(prefix=False)))
    texts, kinds = keys["tokenizer.ggml.tokens"], keys["tokenizer.ggml.token_type"]
    by_text = dict(zip(texts, kinds.tolist(), strict=True))
    assert by_text["<unk>"] == Kind.UNKNOWN
    assert by_text["<s>"] == Kind.CONTROL
    assert by_text["<0x41>"] == Kind.BYTE
    assert by_text["  gap"] == Kind.USER_DEFINED
    assert by_text[f"{SPACE}the"] == Kind.NORMAL
    assert keys["tokenizer.ggml.scores"].dtype == np.float32


@pytest.mark.parametrize("text", ["<|x|>", "<pad>", "<\uff5cx\uff5c>", "<unused7>", "[@BOS@]"])
def test_some_tokens_look_special(text: str) -> None:
    assert looks_special(text)
    assert not looks_special(text[:-1])


def byte_level(**added: bool) -> Tokenizer:
    """Return a byte-level BPE with a few added tokens: text -> whether it is special."""
    vocab = {text: i for i, text in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    made = Tokenizer(BPE(vocab=vocab | {"th": 256}, merges=[("t", "h")]))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    for text, special in added.items():
        made.add_tokens([AddedToken(text, special=special, normalized=False)])
    return made


def test_gaps_up_to_the_size_of_the_vocabulary_are_filled() -> None:
    keys = keys_of(files_of(byte_level(bos=True)), n_vocab=260, pre="gpt-2")
    assert keys["tokenizer.ggml.tokens"][257:] == ["bos", "[PAD258]", "[PAD259]"]
    assert keys["tokenizer.ggml.token_type"][256:].tolist() == [
        Kind.NORMAL, Kind.CONTROL, Kind.UNUSED, Kind.UNUSED,
    ]  # fmt: skip


def test_tokens_past_the_size_of_the_vocabulary_are_refused() -> None:
    with pytest.raises(CheckpointError, match=r"goes up to token 257, but .* vocab_size is 257"):
        keys_of(files_of(byte_level(bos=True)), n_vocab=257, pre="gpt-2")


def test_the_configuration_adds_tokens_and_marks_them_special() -> None:
    listed = {"257": {"content": "tool", "special": True}, "258": {"content": "new"}}
    files = files_of(byte_level(tool=False), added_tokens_decoder=listed, pad_token="[PAD]")
    keys = keys_of(files, pre="gpt-2")
    assert keys["tokenizer.ggml.tokens"][257:] == ["tool", "new", "[PAD]"]
    assert keys["tokenizer.ggml.token_type"][257:].tolist() == [
        Kind.CONTROL, Kind.USER_DEFINED, Kind.CONTROL,
    ]  # fmt: skip


def test_merges_come_in_either_form_or_from_a_file() -> None:
    files = files_of(byte_level())
    assert keys_of(files, pre="gpt-2")["tokenizer.ggml.merges"] == ["t h"]
    old = json.loads(files.pipeline)
    old["model"]["merges"] = ["t h"]
    text = json.dumps(old)
    again = TokenizerFiles(pipeline=text.encode(), table=old)
    assert keys_of(again, pre="gpt-2")["tokenizer.ggml.merges"] == ["t h"]
    bare = {**old, "model": {**old["model"], "merges": []}}
    from_file = TokenizerFiles(
        pipeline=text.encode(), table=bare, merges="#version: 0.2\nt h\n\nbad\n"
    )
    assert keys_of(from_file, pre="gpt-2")["tokenizer.ggml.merges"] == ["t h"]


def special(table: dict[str, Any], config: dict[str, Any], n: int | None = None) -> dict[str, Any]:
    """Return the keys of special tokens, less their prefix, as plain numbers."""
    files = TokenizerFiles(table=table, config=config)
    keys = special_keys(files, {"eos_token_id": 7, "pad_token_id": [1]}, n)
    return {key.rpartition(".")[2]: getattr(v, "item", lambda v=v: v)() for key, v in keys.items()}


ADDED = [{"id": i, "content": text} for i, text in enumerate(("<s>", "</s>", "<eot>", "<sep>"))]


def template(*single: str, pair: tuple[str, ...] = ()) -> dict[str, Any]:
    """Return a tokenizer.json whose post-processor puts tokens around text ("A", "B")."""

    def entry(text: str) -> dict[str, Any]:
        return {"Sequence" if text in "AB" else "SpecialToken": {"id": text, "type_id": 0}}

    steps = {"single": [entry(t) for t in single], "pair": [entry(t) for t in pair]}
    return {"added_tokens": ADDED, "post_processor": {"type": "TemplateProcessing", **steps}}


@pytest.mark.parametrize(
    ("table", "config", "want"),
    [
        ({}, {}, {"eos_token_id": 7}),
        (template("<s>", "A"), {"bos_token": "<s>"}, {"bos_token_id": 0, "add_bos_token": True}),
        (
            template("<s>", "A"),
            {"bos_token": {"content": "<s>"}, "add_bos_token": True},
            {"bos_token_id": 0, "add_bos_token": True},
        ),
        (template("A"), {"add_bos_token": False}, {"add_bos_token": False}),
        (
            template("<s>", "A", "</s>"),
            {"bos_token": "<s>", "eos_token": "</s>", "add_eos_token": False},
            {"eos_token_id": 1, "add_bos_token": True, "add_eos_token": True},
        ),
        (  # what ends text is EOS, and what was EOS ends a turn
            template("<s>", "A", "</s>"),
            {"bos_token": "<s>", "eos_token": "<eot>"},
            {"eos_token_id": 1, "eot_token_id": 2},
        ),
        (
            template("<s>", "A", "</s>", pair=("<s>", "A", "<sep>", "B", "</s>")),
            {"bos_token": "<s>", "eos_token": "</s>", "sep_token": "<sep>"},
            {"add_sep_token": False},
        ),
        (
            template("<s>", "A", pair=("<s>", "A", "<sep>", "B")),
            {"bos_token": "<s>", "sep_token": "<sep>"},
            {"add_sep_token": True, "seperator_token_id": 3},
        ),
        (
            {"added_tokens": ADDED, "post_processor": {"type": "ByteLevel"}},
            {"add_bos_token": True},
            {"add_bos_token": False, "add_eos_token": False},
        ),
        (
            {"post_processor": {"type": "Sequence", "processors": [{"type": "RobertaProcessing"}]}},
            {},
            {"add_bos_token": True, "add_eos_token": True, "add_sep_token": True},
        ),
        ({"normalizer": {"type": "Lowercase"}}, {}, {"lowercase": True}),
    ],
)
def test_special_tokens_are_what_the_files_say_together(
    table: dict[str, Any], config: dict[str, Any], want: dict[str, Any]
) -> None:
    found = special(table, config)
    assert want.items() <= found.items(), found
    assert "padding_token_id" not in found  # a list of ids is none


def test_ids_past_the_vocabulary_are_left_out() -> None:
    assert "eos_token_id" not in special({}, {}, 7)
    assert special({}, {}, 8)["eos_token_id"] == 7


def test_templates_come_as_text_or_by_name() -> None:
    assert template_keys("x") == {"tokenizer.chat_template": "x"}
    assert template_keys(None) == template_keys({"a": 1}) == {}
    listed = [{"name": "default", "template": "d"}, {"name": "tool use!", "template": "t"}, {}, 5]
    assert template_keys(listed) == {
        "tokenizer.chat_template": "d",
        "tokenizer.chat_template.tool_use_": "t",
        "tokenizer.chat_templates": ["tool_use_"],
    }


def test_a_real_vocabulary_is_recognised(smollm2_path: Path) -> None:
    with open_checkpoint(smollm2_path) as checkpoint:
        metadata = dict(checkpoint.metadata)
    found = vocabulary_keys(files_of(pipeline(metadata)), None)
    assert found["tokenizer.ggml.pre"] == metadata["tokenizer.ggml.pre"] == "smollm"
    assert found["tokenizer.ggml.tokens"] == list(metadata["tokenizer.ggml.tokens"])
    assert found["tokenizer.ggml.merges"] == list(metadata["tokenizer.ggml.merges"])
