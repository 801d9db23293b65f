"""Special tokens: which there are, which end an answer, and where text spells one.

Three things are told apart. A *control* token never comes out of a user's text. A *hidden* token
adds nothing to what is shown. An *end* token (EOG) ends an answer. Files get the first wrong often
enough that names count too: a token spelled like a marker is a control token, whatever its type.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass

from quantcli.text.vocabulary import Kind, Vocabulary, of_kind, spelled_like

# Spellings that end an answer in some model. Facts of each model's own tokenizer configuration.
END_TEXTS = frozenset(
    {
        "</s>",
        "<EOT>",
        "<end_of_turn>",
        "<end_of_utterance>",
        "<eos>",
        "<turn|>",
        "<|call|>",
        "<|calls|>",
        "<|end_of_text|>",
        "<|endoftext|>",
        "<|end|>",
        "<|eom_id|>",
        "<|eot_id|>",
        "<|flush|>",
        "<|im_end|>",
        "<|return|>",
        "<|tool_response>",
        "<\uff5cend\u2581of\u2581sentence\uff5c>",
        "[EOS]",
        "[EOT]",
        "[e~[",
        "_<EOT>",
        "\u2581<EOT>",
    }
)
# Tokens of code models that fill in the middle: reaching one of these means that the hole is full.
END_OF_FILL_TEXTS = frozenset(
    {
        "<PAD>",
        "<REPO>",
        "<fim-pad>",
        "<fim-repo>",
        "<fim_pad>",
        "<reponame>",
        "<|file_sep|>",
        "<|fim_pad|>",
        "<|fim_repo|>",
        "<|repo_name|>",
        "[PAD]",
    }
)
NAMED_ENDS = END_TEXTS | END_OF_FILL_TEXTS

# Channel marks of the harmony format: control tokens that a reader of the answer needs to see.
SHOWN_TEXTS = frozenset({"<|channel|>", "<|constrain|>", "<|message|>", "<|start|>"})

# <|name|>, and the same with DeepSeek's full-width bars.
MARKER = re.compile("<\\|[^|<>\\s\0]+\\|>|<\uff5c[^\uff5c<>\\s\0]+\uff5c>")
_BRACKETED = re.compile(r"<[^<>\s]+>|\[[^\[\]\s]+\]")


@dataclass(frozen=True, slots=True)
class Specials:
    """What the special tokens of a vocabulary are.

    kinds   the Kind of each token, mended by name; CONTROL and UNKNOWN never come from plain text
    hidden  tokens that add nothing to the text that is shown
    ends    tokens that end an answer (EOG)
    """

    kinds: bytes
    hidden: frozenset[int]
    ends: frozenset[int]


def classify(vocabulary: Vocabulary) -> Specials:
    """Return what each token is, by its type in the file and, where types are wrong, by name."""
    texts, kinds = vocabulary.texts, bytearray(vocabulary.kinds)
    shown: set[int] = set()
    ends = {vocabulary.ids[n] for n in _END_IDS if n in vocabulary.ids}
    for token in _candidates(vocabulary):
        text = texts[token]
        kind = kinds[token]
        is_html = text == "</s>" and kind == Kind.USER_DEFINED
        if text in NAMED_ENDS and not is_html:
            ends.add(token)
            kinds[token] = Kind.CONTROL
        elif kind in (Kind.NORMAL, Kind.USER_DEFINED) and MARKER.fullmatch(text):
            kinds[token] = Kind.CONTROL
            if kind == Kind.USER_DEFINED:
                shown.add(token)
        if text in SHOWN_TEXTS:
            shown.add(token)
    for name in ("bos", "eos", "eot", "eom"):
        token = vocabulary.ids.get(name, -1)
        # A wrong id may point at an everyday token, which must stay usable.
        if token >= 0 and kinds[token] == Kind.NORMAL and _BRACKETED.fullmatch(texts[token]):
            kinds[token] = Kind.CONTROL
    ends -= _not_ends(texts, kinds, ends, shown)
    hidden = frozenset(of_kind(kinds, Kind.UNKNOWN, Kind.CONTROL, Kind.UNUSED)) - shown
    return Specials(bytes(kinds), hidden, frozenset(ends))


_END_IDS = ("eos", "eot", "eom", "fim_pad", "fim_rep", "fim_sep")


def _candidates(vocabulary: Vocabulary) -> list[int]:
    """Return the tokens whose name may say more than their type."""
    by_text = vocabulary.by_text
    named = {by_text[text] for text in NAMED_ENDS if text in by_text}
    # A text with a NUL in it may be found in part; then it is none of the vocabulary's.
    marked = {by_text[t] for t in spelled_like(vocabulary.texts, MARKER) if t in by_text}
    typed = of_kind(vocabulary.kinds, Kind.CONTROL, Kind.USER_DEFINED)
    return sorted(named.union(marked, typed))


def _not_ends(
    texts: Sequence[str], kinds: bytearray, ends: Collection[int], shown: set[int]
) -> set[int]:
    """Return the tokens that are no end in this vocabulary, though their names say so.

    With <|return|> and <|call|> (or <|calls|> and <|flush|>) in it, <|end|> ends one message of
    several. Where <|tool_response> is an end, </s> is HTML.
    """
    by_text = {texts[token]: token for token in ends}
    wrong = set()
    calls = "<|call|>" in by_text or "<|calls|>" in by_text
    if calls and ("<|return|>" in by_text or "<|flush|>" in by_text) and "<|end|>" in by_text:
        wrong.add(by_text["<|end|>"])
        shown.add(by_text["<|end|>"])
    if "<|tool_response>" in by_text and "</s>" in by_text:
        wrong.add(by_text["</s>"])
        kinds[by_text["</s>"]] = Kind.NORMAL
    return wrong


class Matcher:
    """Finds tokens by their spelling: at each place the longest, from left to right.

    That is the order in which Hugging Face's tokenizers find added tokens.
    """

    def __init__(self, tokens: dict[str, int], strip_after: Collection[int] = ()) -> None:
        """Wrap tokens by spelling; white space after those of `strip_after` belongs to them."""
        self.tokens = tokens
        self._strip_after = frozenset(strip_after)
        self._pattern: re.Pattern[str] | None = None

    def split(self, text: str) -> Iterator[str | int]:
        """Yield the tokens that a text spells and the text between them, in order."""
        start = 0
        for match in self.find(text):
            if match.start() > start:
                yield text[start : match.start()]
            token = self.tokens[match.group()]
            yield token
            start = max(match.end(), start)
            if token in self._strip_after:
                while start < len(text) and text[start].isspace():
                    start += 1
        if start < len(text):
            yield text[start:]

    def find(self, text: str) -> Iterable[re.Match[str]]:
        """Return the matches in a text."""
        if not self.tokens or not text:
            return ()
        if self._pattern is None:  # takes 60 ms for 6,000 tokens, so not before it is needed
            self._pattern = _any_of(self.tokens)
        return self._pattern.finditer(text)


def _any_of(texts: Collection[str]) -> re.Pattern[str]:
    """Return a pattern for the longest of some texts, quick however many there are.

    A plain alternation would try each text at each place; this one shares their beginnings.
    """
    try:
        return re.compile(_alternation(sorted(texts), 0))
    except RecursionError:  # texts that share beginnings hundreds deep
        return re.compile("|".join(map(re.escape, sorted(texts, key=len, reverse=True))))


def _alternation(texts: Sequence[str], n_shared: int) -> str:
    """Return a pattern for sorted texts that share their first characters, without those."""
    shared = n_shared
    first, last = texts[0], texts[-1]
    while shared < len(first) and shared < len(last) and first[shared] == last[shared]:
        shared += 1
    head = re.escape(first[n_shared:shared])
    if len(texts) == 1:
        return head + re.escape(first[shared:])
    optional = len(first) == shared
    branches: dict[str, list[str]] = {}
    for text in texts[1:] if optional else texts:
        branches.setdefault(text[shared], []).append(text)
    tail = "|".join(_alternation(group, shared) for group in branches.values())
    return f"{head}(?:{tail}){'?' if optional else ''}"
