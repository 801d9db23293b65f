"""Answers that must match a JSON schema, a regular expression or a grammar, through llguidance.

llguidance compiles the grammar and says, token by token, what may come next. What it does not
support is refused, never ignored. Its own limits bound each step; ours bound what it is given.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Protocol

import numpy as np

from quantcli.engine.grammar_limits import check_limits
from quantcli.engine.request import GrammarSpec
from quantcli.engine.sampling import U32
from quantcli.errors import UsageError
from quantcli.kernels.token_mask import n_words

_MAX_COMPILED = 16  # grammars kept for the next request
# Between the parts of a JSON document, what models write: one space, or a new line and an indent.
# Without a limit a small model may write white space until its tokens run out.
_WHITESPACE = r"( ?|\n{1,2}[ \t]{0,20})"
_JSON_OPTIONS = {
    "whitespace_pattern": _WHITESPACE,
    "lenient": False,
    "json_allow_general_unicode_escapes": True,
}
_DIRECTIVE = "%llguidance"
_WITHOUT_FORCING = ("lark", "gbnf")  # rules that repeat rules that repeat: it could be endless
_LIMITS = {
    "max_items_in_row": 10_000,
    "max_lexer_states": 20_000,
    "max_grammar_size": 100_000,
    "verbose_errors": False,
}


class Vocabulary(Protocol):
    """What a grammar must know of a tokenizer; `quantcli.text.Tokenizer`."""

    n_vocab: int
    bos: int | None
    eog: frozenset[int]

    def token_bytes(self, token: int) -> bytes:
        """Return the bytes that a token stands for."""
        ...

    def is_control(self, token: int) -> bool:
        """Return whether a token never comes out of a text."""
        ...

    def encode(
        self, text: str, *, add_special: bool = True, parse_special: bool = False
    ) -> list[int]:
        """Return the tokens of a text."""
        ...


class Grammars:
    """Compiles grammars for one vocabulary. Any thread may call it."""

    def __init__(self, vocabulary: Vocabulary, n_tokens: int) -> None:
        """Prepare to compile; the vocabulary is read when the first grammar comes.

        n_tokens   tokens that can be chosen, from 0 on
        """
        self._vocabulary = vocabulary
        self._n_tokens = n_tokens
        self._lock = threading.Lock()
        self._tokens: Any = None
        self._compiled: OrderedDict[GrammarSpec, Any] = OrderedDict()

    def matcher(self, spec: GrammarSpec) -> Matcher:
        """Return a new matcher that has seen no token.

        Raises UsageError if llguidance is not installed, and for a grammar that is wrong, not
        supported, too large, or that nothing matches.
        """
        check_limits(spec)
        with self._lock:
            compiled = self._compiled.pop(spec, None) or self._compile(spec)
            self._compiled[spec] = compiled  # the most recently used is last
            if len(self._compiled) > _MAX_COMPILED:
                self._compiled.popitem(last=False)
            is_forcing = spec.kind not in _WITHOUT_FORCING
            return Matcher(compiled.deep_copy(), self._n_tokens, is_forcing=is_forcing)

    def _compile(self, spec: GrammarSpec) -> Any:
        library = _library()
        if self._tokens is None:
            self._tokens = _tokens(library, self._vocabulary, self._n_tokens)
        limits = library.LLParserLimits(**_LIMITS)
        try:
            text = _source(library, spec)
            compiled = library.LLMatcher(self._tokens, text, log_level=0, limits=limits)
            if compiled.is_error():
                raise UsageError(_refused(spec, compiled.get_error()))
            # The first tokens show what compiling does not: that it is too much, or never ends.
            Matcher(compiled.deep_copy(), self._n_tokens).allowed()
        except ValueError as error:
            raise UsageError(_refused(spec, str(error))) from None
        return compiled


class Matcher:
    """How far an answer has come in its grammar."""

    def __init__(self, matcher: Any, n_tokens: int, *, is_forcing: bool = False) -> None:
        """Follow a grammar from its start.

        matcher      llguidance's
        is_forcing   work out text that is forced
        """
        self._matcher = matcher
        self._forced: list[int] | None = None if is_forcing else []  # None: not known
        self._is_forcing = is_forcing
        self._mask: U32 = np.zeros(n_words(n_tokens), np.uint32)
        self._is_current = False  # whether the mask is that of this place

    @property
    def is_complete(self) -> bool:
        """Whether nothing can follow."""
        return bool(self._matcher.is_stopped() and not self._matcher.is_error())

    def allowed(self) -> U32:
        """Return u32 (words,): a bit for each token that can come next; valid until `accept`.

        Raises UsageError if the grammar turns out to be too much work, or to match nothing.
        """
        if not self._is_current:
            self._matcher.unsafe_compute_mask_ptr(self._mask.ctypes.data, self._mask.nbytes)
            if self._matcher.is_error() or self._matcher.is_stopped():
                reason = self._matcher.get_error() or self._matcher.stop_reason()
                raise UsageError(f"the grammar cannot be followed any further: {_line(reason)}.")
            self._is_current = True
        return self._mask

    def accept(self, token: int) -> None:
        """Go on with a token that was allowed."""
        self._is_current = False
        if self._forced and self._forced[0] == token:
            del self._forced[0]
        elif self._is_forcing:
            self._forced = None
        if not self._matcher.consume_token(token):
            reason = self._matcher.get_error()
            raise UsageError(f"the grammar cannot be followed any further: {_line(reason)}.")

    def forced(self) -> list[int]:
        """Return tokens that are likely to come next because their text must."""
        if self._forced is None:
            self._forced = list(self._matcher.compute_ff_tokens())
        return self._forced

    def n_valid(self, tokens: list[int]) -> int:
        """Return how many of some tokens, from the first on, can come next."""
        return int(self._matcher.validate_tokens(tokens)) if tokens else 0


def _library() -> Any:
    try:
        import llguidance
    except ImportError:
        raise UsageError(
            "grammars and schemas need llguidance. Install it with: pip install 'quantcli[serve]'."
        ) from None
    return llguidance


class _Wrapped:
    """A vocabulary as llguidance wants it: control tokens begin with a byte that no text has."""

    def __init__(self, vocabulary: Vocabulary, n_tokens: int) -> None:
        self._vocabulary = vocabulary
        self.eos_token_id = min(vocabulary.eog)
        self.bos_token_id = vocabulary.bos
        self.special_token_ids = [t for t in range(n_tokens) if vocabulary.is_control(t)]
        control = frozenset(self.special_token_ids)
        self.tokens = [
            (b"\xff" if t in control else b"") + vocabulary.token_bytes(t) for t in range(n_tokens)
        ]

    def __call__(self, text: str | bytes) -> list[int]:
        """Return the tokens of a text that is forced."""
        text = text if isinstance(text, str) else text.decode("utf-8", "replace")
        return self._vocabulary.encode(text, add_special=False)


def _tokens(library: Any, vocabulary: Vocabulary, n_tokens: int) -> Any:
    ends = sorted(token for token in vocabulary.eog if token < n_tokens)
    if not ends:
        raise UsageError("a grammar needs a token that ends an answer, and this model has none.")
    wrapper = library.TokenizerWrapper(_Wrapped(vocabulary, n_tokens))
    return library.LLTokenizer(wrapper, eos_token=ends)


def _source(library: Any, spec: GrammarSpec) -> str:
    """Return a grammar in llguidance's own form."""
    matcher = library.LLMatcher
    if spec.kind in ("json_schema", "json_object"):
        text = spec.text if spec.kind == "json_schema" else '{"type": "object"}'
        if text.strip() == "true":  # anything; options need an object
            text = "{}"
        return str(matcher.grammar_from_json_schema(text, overrides=_JSON_OPTIONS))
    if spec.kind == "regex":
        return str(matcher.grammar_from_regex(spec.text))
    text = spec.text if spec.kind == "lark" else _lark_of_gbnf(spec.text)
    if _DIRECTIVE in text:
        raise UsageError(f"a grammar may not set {_DIRECTIVE} options. Leave that line out.")
    return str(matcher.grammar_from_lark(f'{_DIRECTIVE} {{"no_forcing": true}}\n{text}'))


def _lark_of_gbnf(text: str) -> str:
    from llguidance.gbnf_to_lark import gbnf_to_lark

    # On another thread: it recurses, and what it raises is of no class that could be named.
    with ThreadPoolExecutor(1) as pool:
        converted = pool.submit(gbnf_to_lark, text)
        error = converted.exception()
    if error is not None:
        raise UsageError(f"the gbnf cannot be read: {_line(str(error))}.")
    return converted.result().replace(f"{_DIRECTIVE} {{}}", "", 1)


def _refused(spec: GrammarSpec, reason: str) -> str:
    return f"the {spec.kind} cannot be followed: {_line(reason)}."


def _line(reason: str) -> str:
    """Return a reason as part of a sentence: one line, not too long, without a stop."""
    text = " ".join(reason.split("<non-verbose/>")[0].split())
    return (text[:300] + "..." if len(text) > 300 else text).rstrip(".")
