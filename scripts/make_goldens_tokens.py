#!/usr/bin/env python3
"""Write tests/goldens/tokens_*.json: how llama.cpp tokenizes the texts of tests/text.

    scripts/make_goldens_tokens.py tiny
    scripts/make_goldens_tokens.py splits
    scripts/make_goldens_tokens.py families
    scripts/make_goldens_tokens.py model smollm2 MODEL.gguf
    scripts/make_goldens_tokens.py model gemma3 MODEL.gguf

Needs llama-cpp-python beside quantcli. `tiny` trains two small vocabularies, stores them, and
asks llama.cpp for some ways to split text; `splits` asks it for all it has, with the merges of
`tiny`; `families` makes small vocabularies of the other kinds of tokenizers; `model` stores what it
says of a real vocabulary.
"""

from __future__ import annotations

import argparse
import base64
import ctypes
import json
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "tests"), str(ROOT / "tests" / "text")]

import llama_cpp  # noqa: E402
from family_vocabs import (  # noqa: E402
    character_merges,
    character_metadata,
    trained_unigram,
    unigram_metadata,
    unigram_parts,
    wordpiece_metadata,
    wordpieces,
)
from gguf import GGUFWriter  # noqa: E402
from golden_texts import LLAMA_CPP_NAMES, PRETOKENIZERS, SPLIT_TEXTS, TEXTS  # noqa: E402
from trained_vocab import (  # noqa: E402
    bpe_metadata,
    pieces_of,
    spm_metadata,
    trained_merges,
    trained_processor,
)

GOLDENS = ROOT / "tests" / "goldens"


@ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_char_p, ctypes.c_void_p)
def _quiet(level: int, text: bytes, data: object) -> None:
    """Swallow llama.cpp's log."""


class Vocabulary:
    """A vocabulary in llama.cpp."""

    def __init__(self, path: Path) -> None:
        """Open a file without its weights."""
        llama_cpp.llama_log_set(_quiet, ctypes.c_void_p(0))
        params = llama_cpp.llama_model_default_params()
        params.vocab_only = True
        self._model = llama_cpp.llama_model_load_from_file(str(path).encode(), params)
        assert self._model, f"llama.cpp cannot open {path}"
        self._vocab = llama_cpp.llama_model_get_vocab(self._model)

    def tokenize(self, text: str, *, special: bool) -> list[int]:
        """Return the ids of a text without BOS."""
        data = text.encode()
        ids = (ctypes.c_int32 * (len(data) + 8))()
        n = llama_cpp.llama_tokenize(self._vocab, data, len(data), ids, len(ids), False, special)
        assert n >= 0, (text, n)
        return list(ids[:n])

    def ends(self) -> list[int]:
        """Return the tokens that end an answer."""
        n = llama_cpp.llama_vocab_n_tokens(self._vocab)
        return [i for i in range(n) if llama_cpp.llama_vocab_is_eog(self._vocab, i)]

    def whole(self, text: str) -> list[int]:
        """Return the ids of a text with what the model wants before and after it."""
        data = text.encode()
        ids = (ctypes.c_int32 * (len(data) + 8))()
        n = llama_cpp.llama_tokenize(self._vocab, data, len(data), ids, len(ids), True, False)
        return list(ids[:n])

    def golden(self, texts: Mapping[str, str] = TEXTS) -> dict[str, object]:
        """Return the ids of all texts, as plain text and, where that differs, with specials."""
        plain = {name: self.tokenize(text, special=False) for name, text in texts.items()}
        special = {name: self.tokenize(text, special=True) for name, text in texts.items()}
        special = {name: ids for name, ids in special.items() if ids != plain[name]}
        return {"ends": self.ends(), "plain": plain, "special": special}


def write_vocabulary(path: Path, metadata: Mapping[str, object]) -> None:
    """Write metadata as a GGUF file without tensors."""
    writer = GGUFWriter(path, str(metadata["general.architecture"]))
    for key, value in metadata.items():
        if isinstance(value, bool):
            writer.add_bool(key, value)
        elif isinstance(value, int):
            writer.add_uint32(key, value)
        elif isinstance(value, str):
            if key != "general.architecture":
                writer.add_string(key, value)
        elif key.endswith("charsmap"):
            writer.add_array(key, bytes(value.tolist()))
        else:
            writer.add_array(key, value if isinstance(value, list) else value.tolist())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()


def tiny() -> None:
    """Store the small vocabularies and their ids."""
    merges = trained_merges()
    pieces = pieces_of(trained_processor())
    cases = {f"bpe/{pre}": bpe_metadata(merges, pre) for pre in PRETOKENIZERS}
    cases["spm"] = spm_metadata(pieces)
    cases["spm/space"] = spm_metadata(pieces, add_space_prefix=True)
    goldens = {}
    with tempfile.TemporaryDirectory() as folder:
        for name, metadata in cases.items():
            path = Path(folder) / "vocabulary.gguf"
            write_vocabulary(path, metadata)
            goldens[name] = Vocabulary(path).golden()
    save("tiny", {"merges": merges, "pieces": pieces, "cases": goldens})


def opened(metadata: Mapping[str, object], folder: str) -> Vocabulary:
    """Return a vocabulary that llama.cpp reads from a file with this metadata."""
    path = Path(folder) / "vocabulary.gguf"
    write_vocabulary(path, metadata)
    return Vocabulary(path)


def splits() -> None:
    """Store the ids of every way to split text where they differ from gpt-2's."""
    merges = json.loads((GOLDENS / "tokens_tiny.json").read_text(encoding="utf-8"))["merges"]
    texts = {**TEXTS, **SPLIT_TEXTS}
    stored: dict[str, object] = {}
    with tempfile.TemporaryDirectory() as folder:
        for name in LLAMA_CPP_NAMES.split():
            vocabulary = opened(bpe_metadata(merges, name), folder)
            ids = {key: vocabulary.tokenize(text, special=False) for key, text in texts.items()}
            stored[name] = ids
    base = stored["gpt-2"]
    assert isinstance(base, dict)
    names: dict[str, object] = {}
    for name, ids in stored.items():
        assert isinstance(ids, dict)
        same = next((other for other in names if stored[other] == ids), None)
        names[name] = same or {key: found for key, found in ids.items() if found != base[key]}
    save("splits", {"base": base, "names": names})


def families() -> None:
    """Store small vocabularies of the other kinds, and their ids."""
    tokens, merges = character_merges()
    pieces, table = unigram_parts(trained_unigram())
    words = wordpieces()
    cases = {
        "gemma4": character_metadata(tokens, merges),
        "granite-embed-multi-311m": character_metadata(
            tokens, merges, "gpt2", "granite-embed-multi-311m"
        ),
        "sarvam-moe": character_metadata(tokens, merges, "gpt2", "sarvam-moe"),
        "whitespace": character_metadata(tokens, merges, "whitespace", "whitespace"),
        "t5": unigram_metadata(pieces, table),
        "t5/spaces": unigram_metadata(pieces, table, merge_spaces=False),
        "t5/bare": unigram_metadata(pieces, table, add_space_prefix=False, merge_spaces=False),
        "bert": wordpiece_metadata(words),
        "bert/cased": wordpiece_metadata(words, lowercase=False),
    }
    texts = {**TEXTS, **SPLIT_TEXTS}
    goldens = {}
    with tempfile.TemporaryDirectory() as folder:
        for name, metadata in cases.items():
            vocabulary = opened(metadata, folder)
            goldens[name] = vocabulary.golden(texts) | {"whole": vocabulary.whole("a b")}
    made = {"tokens": tokens, "merges": merges, "pieces": pieces, "words": words}
    save("families", {**made, "table": base64.b64encode(table).decode(), "cases": goldens})


def save(name: str, content: Mapping[str, object]) -> None:
    """Write a golden, one entry a line."""
    tool = {"tool": "llama.cpp", "version": f"llama-cpp-python {llama_cpp.__version__}"}
    text = json.dumps({**tool, **content}, indent=1)
    lines: list[str] = []
    depth = 0  # of the lists of numbers, which stay on one line
    for line in text.splitlines():
        if depth:
            opens = lines[-1].endswith("[") or line.strip().startswith("]")
            lines[-1] += ("" if opens else " ") + line.strip()
        else:
            lines.append(line)
        depth += line.endswith("[") - line.strip().startswith("]")
    path = GOLDENS / f"tokens_{name}.json"
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    print(f"{path.relative_to(ROOT)}: {path.stat().st_size} bytes")


MADE = {"tiny": tiny, "splits": splits, "families": families}


def main() -> None:
    """Do what the command line says."""
    parser = argparse.ArgumentParser(description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    for name in MADE:
        commands.add_parser(name)
    model = commands.add_parser("model")
    model.add_argument("name", choices=("smollm2", "gemma3"))
    model.add_argument("path", type=Path)
    arguments = parser.parse_args()
    if arguments.command in MADE:
        MADE[arguments.command]()
    else:
        save(arguments.name, Vocabulary(arguments.path).golden())


if __name__ == "__main__":
    main()
