"""Which rule for splitting words a pipeline has whose vocabulary nobody knows.

The hash of `hf_pre` is of ids, and so of one vocabulary. A tokenizer that somebody trained for
a model of their own has another hash, but most often splits words like a model that is known.
"""

from __future__ import annotations

import json

from tokenizers import Regex, Tokenizer
from tokenizers.pre_tokenizers import ByteLevel, PreTokenizer, Sequence, Split

from quantcli.text.hf_pre import TEXT
from quantcli.text.pretokenizers import pretokenizer

# One name of each way to split, the best known first: the others of a way are models' names.
_COMMON = ("gpt-2", "llama-bpe", "qwen2", "starcoder", "gpt-4o", "tekken", "mpt", "deepseek-v3")

_PROBE = (
    f"{TEXT} We'LL see: it's a1b22c333 XMLHttpRequest\r\n\r\n  \tIt\u2019s 1,234.50\u00a0\u20ac!? "
    "na\u00efve \u00c9COLE \u0928\u092e\u0938\u094d\u0924\u0947 \ub300\ud55c\ubbfc\uad6d "
    "// x_y += z;\n\n\n\tend_ of\u3000it"
)


def splits_like(pipeline: Tokenizer) -> str | None:
    """Return a name in `tokenizer.ggml.pre` that splits as a byte-level pipeline does, or None.

    Only a pipeline that splits, maps bytes and at most brings text to normal form C has one.
    """
    parts = json.loads(pipeline.to_str())
    normalizer = (parts.get("normalizer") or {}).get("type")
    if pipeline.pre_tokenizer is None or normalizer not in (None, "NFC"):
        return None
    pieces = _pieces(pipeline.pre_tokenizer)
    ignores_merges = bool(parts["model"].get("ignore_merges"))
    for name in _COMMON:
        row = pretokenizer(name)
        if (row.nfc, row.ignore_merges) != (normalizer == "NFC", ignores_merges):
            continue
        splits = [Split(Regex(pattern), "isolated") for pattern in row.patterns]
        known = Sequence([*splits, ByteLevel(add_prefix_space=False, use_regex=False)])
        if pieces == _pieces(known):
            return name
    return None


def _pieces(splitter: PreTokenizer) -> list[str]:
    return [piece for piece, _ in splitter.pre_tokenize_str(_PROBE)]
