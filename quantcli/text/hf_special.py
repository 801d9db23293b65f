"""A Hugging Face model's special tokens and chat template as GGUF keys.

They are said in four places that need not agree: the pipeline's post-processor adds tokens before
and after text, tokenizer_config.json names them by text, config.json by id. Which of them counts is
what llama.cpp's converter decides.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from quantcli.text.hf_vocabulary import Keys, Table, TokenizerFiles, text_of
from quantcli.text.vocabulary import PREFIX

TEMPLATE = "tokenizer.chat_template"

_IDS = {
    "bos": "bos_token_id",
    "eos": "eos_token_id",
    "unk": "unknown_token_id",
    "sep": "seperator_token_id",
    "pad": "padding_token_id",
    "mask": "mask_token_id",
    "eot": "eot_token_id",
    "eom": "eom_token_id",
}
_NAMES = ("bos", "eos", "unk", "sep", "pad", "cls", "mask")
_ADDED = ("bos", "eos", "sep")


def special_keys(files: TokenizerFiles, config: Table, n_vocab: int | None) -> Keys:
    """Return the GGUF keys of special tokens and of the chat template.

    config    config.json
    n_vocab   ids from here on are dropped; None keeps all
    """
    found = _Found(dict(files.config))
    found.read_pipeline(files.table)
    if files.config:
        found.read_config(files.table)
    # What tokenizer_config.json says goes before what config.json says.
    ids = _ids_of(config, found.names, n_vocab) | _ids_by_text(found, files.table, n_vocab)
    keys: Keys = {PREFIX + _IDS[name]: np.uint32(ids[name]) for name in _IDS if name in ids}
    keys |= {
        PREFIX + f"add_{name}_token": found.adds[name] for name in _ADDED if name in found.adds
    }
    keys |= {PREFIX + f"normalizer.{name}": value for name, value in _normalizer(files.table)}
    if files.config:
        template = files.config.get("chat_template", files.chat_template)
        keys |= template_keys(template)
    return keys


def template_keys(template: object) -> Keys:
    """Return the keys of a chat template, or of several that are listed with their names."""
    if isinstance(template, str):
        return {TEMPLATE: template}
    keys: Keys = {}
    names = []
    for entry in template if isinstance(template, list) else []:
        if not isinstance(entry, Mapping):
            continue
        name, text = entry.get("name"), entry.get("template")
        name = re.sub("[^A-Za-z0-9]", "_", name) if isinstance(name, str) else ""
        if not name or not isinstance(text, str):
            continue
        if name == "default":
            keys[TEMPLATE] = text
        else:
            names.append(name)
            keys[f"{TEMPLATE}.{name}"] = text
    if names:
        keys["tokenizer.chat_templates"] = sorted(set(names))
    return keys


@dataclass(slots=True)
class _Found:
    """What the files say so far.

    config   tokenizer_config.json, with what the pipeline shows about it
    names    of the special tokens that are looked for
    adds     whether a token is put before (bos), after (eos) or between (sep) texts
    """

    config: dict[str, Any]
    names: tuple[str, ...] = _NAMES
    adds: dict[str, bool] = field(default_factory=dict)

    def entry(self, name: str) -> Any:
        """Return what tokenizer_config.json has for a special token, text or object.

        The converter compares texts with it as it is, so that an object equals no text.
        """
        return self.config.get(f"{name}_token")

    def read_pipeline(self, table: Table) -> None:
        """Note what the post-processor of tokenizer.json adds to text."""
        if not table:
            return
        for name, other in (("bos", "cls"), ("eos", "sep")):
            if self.config and not self.entry(name) and self.entry(other):
                self.config[f"{name}_token"] = self.entry(other)
        processor = table.get("post_processor")
        if not isinstance(processor, dict):
            return
        inner = processor.get("processors")
        for step in inner if isinstance(inner, list) else [processor]:
            if isinstance(step, dict):
                self._read_step(step)

    def _read_step(self, step: Table) -> None:
        kind = step.get("type")
        if kind == "ByteLevel":
            self.adds.setdefault("bos", False)
            self.adds.setdefault("eos", False)
        elif kind == "RobertaProcessing":
            self.adds |= {"bos": True, "eos": True, "sep": True}
        elif kind == "TemplateProcessing":
            single = _special_entries(step.get("single"))
            if len(single) > 1:
                if first := single[0]:
                    self._read_first(first)
                if last := single[-1]:
                    self._read_last(last)
            self._read_pair(step, single)

    def _read_first(self, text: str) -> None:
        known = (self.entry("bos"), self.entry("cls"))
        if not self.config:
            self.adds["bos"] = True
            return
        if text not in known:
            for name in ("bos", "cls"):
                if not self.entry(name):
                    self.config[f"{name}_token"] = text
        self.adds["bos"] = text in (self.entry("bos"), self.entry("cls"))

    def _read_last(self, text: str) -> None:
        """Take the token behind text for EOS; what was EOS before then ends a turn."""
        eos = self.entry("eos")
        if self.config and text != eos:
            spare = next((name for name in ("eot", "eom") if name not in self.names), None)
            if spare is not None:
                self.names = (*self.names, spare)
                self.config[f"{spare}_token"] = eos
            self.config["eos_token"] = text
        self.adds["eos"] = True

    def _read_pair(self, step: Table, single: list[str | None]) -> None:
        """Note whether a token stands between two texts: A [sep] [eos] B."""
        pair = step.get("pair")
        entries = pair if isinstance(pair, list) else []
        texts = _special_entries(entries)
        first = single[0] if len(single) > 1 else None
        last = single[-1] if len(single) > 1 else None
        start = 1 if first and texts and texts[0] == first else 0
        stop = len(entries) - (1 if last and texts and texts[-1] == last else 0)
        middle = texts[start + 1 : stop - 1]
        if not middle or _sequence(entries[start]) != "A" or _sequence(entries[stop - 1]) != "B":
            return
        separators = (self.entry("sep"), self.entry("eos"))
        adds = bool(middle[0]) and middle[0] in separators and not last
        if len(middle) == 2:
            adds = adds or (bool(middle[1]) and middle[1] in separators)
        self.adds["sep"] = adds
        if adds and not self.entry("sep") and self.config:
            self.config["sep_token"] = self.entry("eos")

    def read_config(self, table: Table) -> None:
        """Note add_bos_token and the like, where the pipeline says nothing else."""
        for name in self.names:
            value = self.config.get(f"add_{name}_token")
            if isinstance(value, bool):
                self.adds.setdefault(name, value)


def _ids_by_text(found: _Found, table: Table, n_vocab: int | None) -> dict[str, int]:
    """Return the ids of special tokens that tokenizer_config.json names by text."""
    if not found.config:
        return {}
    listed = table.get("added_tokens")
    added = [entry for entry in listed if isinstance(entry, dict)] if listed else []
    ids: dict[str, int] = {}
    for name in found.names:
        text = text_of(found.entry(name))
        match = next((entry.get("id") for entry in added if entry.get("content") == text), None)
        if text is not None and (token := _token(match, n_vocab)) is not None:
            ids[name] = token
    return ids


def _ids_of(config: Table, names: tuple[str, ...], n_vocab: int | None) -> dict[str, int]:
    """Return the ids that config.json states; where it lists several, the converter takes none."""
    nested = config.get("text_config")
    ids: dict[str, int] = {}
    for name in names:
        value = config.get(f"{name}_token_id")
        if value is None and isinstance(nested, dict):
            value = nested.get(f"{name}_token_id")
        if (token := _token(value, n_vocab)) is not None:
            ids[name] = token
    return ids


def _token(value: object, n_vocab: int | None) -> int | None:
    """Return an id that exists, None for anything else."""
    last = (1 << 31) - 1 if n_vocab is None else n_vocab - 1
    is_id = isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= last
    return value if is_id else None  # type: ignore[return-value]


def _special_entries(entries: object) -> list[str | None]:
    """Return the text of each special token in a template, None for text itself."""
    found: list[str | None] = []
    for entry in entries if isinstance(entries, list) else []:
        special = entry.get("SpecialToken") if isinstance(entry, dict) else None
        text = special.get("id") if isinstance(special, dict) else None
        found.append(text if isinstance(text, str) else None)
    return found


def _sequence(entry: object) -> object:
    sequence = entry.get("Sequence") if isinstance(entry, dict) else None
    return sequence.get("id") if isinstance(sequence, dict) else None


def _normalizer(table: Table) -> Iterator[tuple[str, bool]]:
    """Yield what BERT's normalizers do."""
    queue = [table.get("normalizer")]
    while queue:
        step = queue.pop(0)
        if not isinstance(step, dict):
            continue
        kind = step.get("type")
        if kind == "Lowercase":
            yield "lowercase", True
        elif kind == "StripAccents":
            yield "strip_accents", True
        elif kind == "BertNormalizer":
            for name in ("lowercase", "strip_accents"):
                if isinstance(step.get(name), bool):
                    yield name, step[name]
        elif isinstance(step.get("normalizers"), list):
            queue += step["normalizers"]
