"""What goes into the engine and what comes out: requests, sampling parameters, events. No arrays.

Names and defaults of the sampling parameters are llama.cpp's. A model file may bring its own
(`general.sampling.*`); what the user asks for goes before the file's, the file's before ours.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from quantcli.errors import CheckpointError, UsageError

# Metadata key: the parameter it sets. Source: gguf-py/gguf/constants.py, class Keys.General.
FILE_KEYS = {
    "general.sampling.top_k": "top_k",
    "general.sampling.top_p": "top_p",
    "general.sampling.min_p": "min_p",
    "general.sampling.temp": "temperature",
    "general.sampling.penalty_last_n": "repeat_last_n",
    "general.sampling.penalty_repeat": "repeat_penalty",
}

_INF = math.inf

# Parameter: (type, lowest, highest). Beyond these a value has no meaning or would overflow.
_RANGES: dict[str, tuple[type, float, float]] = {
    "temperature": (float, 0.0, 1e6),
    "top_k": (int, -1, 2**31 - 1),
    "top_p": (float, 0.0, 1.0),
    "min_p": (float, 0.0, 1.0),
    "typical_p": (float, 0.0, 1.0),
    "repeat_penalty": (float, 0.01, 100.0),
    "repeat_last_n": (int, -1, 2**31 - 1),
    "presence_penalty": (float, -100.0, 100.0),
    "frequency_penalty": (float, -100.0, 100.0),
    "seed": (int, -1, 2**64 - 1),
    "max_tokens": (int, -1, 2**31 - 1),
    "min_tokens": (int, 0, 2**31 - 1),
    "n_logprobs": (int, 0, 2**31 - 1),
    "n_prompt_logprobs": (int, 0, 2**31 - 1),
}
_OPTIONAL = ("seed", "max_tokens", "n_logprobs", "n_prompt_logprobs")
_MAX_BIAS = 1e6  # far beyond any logit, and f32 addition cannot overflow

MAX_CHOICES = 128  # of one request; OpenAI's limit
MAX_PRIORITY = 2**31 - 1
GRAMMAR_KINDS = ("json_schema", "json_object", "regex", "gbnf", "lark")
POOLINGS = ("mean", "last")


class FinishReason(StrEnum):
    """Why a request ended."""

    STOP = "stop"  # an end-of-generation token, a stop token or string, or a grammar's end
    LENGTH = "length"  # max_tokens reached
    CONTEXT = "context"  # no slot left for another token
    CANCELLED = "cancelled"
    ERROR = "error"  # Event.error says what happened


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How the tokens of a request are chosen, and when to stop.

    temperature        divides the logits; 0 takes the most likely token
    top_k              keep the k most likely tokens; 0 or less keeps all
    top_p              keep the most likely tokens until their probabilities reach p; 1 keeps all
    min_p              keep tokens at least p times as likely as the most likely; 0 keeps all
    typical_p          keep tokens whose information is nearest the entropy, up to p; 1 keeps all
    repeat_penalty     divide (if positive) or multiply the logits of recent tokens; 1 is off
    repeat_last_n      how many tokens are recent; 0 is off, -1 is all
    presence_penalty   subtracted from the logits of recent tokens
    frequency_penalty  subtracted once for each time a recent token occurred
    seed               of the random numbers; None or -1 draws one
    logit_bias         token id: added to its logit before all else; -inf bans it
    stop               strings that end the answer and are not part of it
    stop_tokens        tokens that end the answer, besides the vocabulary's own
    max_tokens         most tokens to generate; None or -1 means until the context is full
    min_tokens         choose no token that ends the generation before there are as many tokens
    ignore_eos         never choose a token that ends the generation
    n_logprobs         report the log-probability of each token and of the n most likely; None is
                       off. They are the model's own, before biases, penalties and temperature.
    n_prompt_logprobs  report the same for each token of the prompt, which is then computed anew
                       whatever is cached

    Raises UsageError for a value out of range.
    """

    temperature: float = 0.8
    top_k: int = 40
    top_p: float = 0.95
    min_p: float = 0.05
    typical_p: float = 1.0
    repeat_penalty: float = 1.0
    repeat_last_n: int = 64
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    seed: int | None = None
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    stop: tuple[str, ...] = ()
    stop_tokens: tuple[int, ...] = ()
    max_tokens: int | None = None
    min_tokens: int = 0
    ignore_eos: bool = False
    n_logprobs: int | None = None
    n_prompt_logprobs: int | None = None

    def __post_init__(self) -> None:
        """Check every value."""
        for name in _RANGES:
            _check(name, getattr(self, name))
        for token, bias in self.logit_bias.items():
            _check_bias(token, bias)
        if not isinstance(self.stop_tokens, tuple):
            raise UsageError(f"stop_tokens is {self.stop_tokens!r}; it must be a tuple of ids.")
        for token in self.stop_tokens:
            _check_int("a stop token", token, 0, 2**31 - 1)
        if not isinstance(self.stop, tuple):
            raise UsageError(f"stop is {self.stop!r}; it must be a tuple of strings.")
        for text in self.stop:
            if not isinstance(text, str) or not text:
                raise UsageError(f"stop string {text!r}: it must be a string of at least one byte.")
            if not text.isascii() and any("\ud800" <= char <= "\udfff" for char in text):
                raise UsageError(f"stop string {text!r} is not valid UTF-8; no answer can hold it.")

    @classmethod
    def resolve(
        cls, user: Mapping[str, object], metadata: Mapping[str, object] | None = None
    ) -> SamplingParams:
        """Return parameters: the user's, then the model file's, then the defaults.

        user      parameter: value; None counts as not given
        metadata  the model file's metadata

        Raises UsageError for a value of the user's, CheckpointError for one of the file's.
        """
        chosen = {name: value for name, value in user.items() if value is not None}
        for key, name in FILE_KEYS.items():
            if name not in chosen and metadata is not None and key in metadata:
                chosen[name] = _from_file(key, name, metadata[key])
        return cls(**chosen)  # type: ignore[arg-type]


def ignored_file_keys(metadata: Mapping[str, object]) -> tuple[str, ...]:
    """Return the file's `general.sampling.*` keys that have no counterpart here."""
    keys = (key for key in metadata if key.startswith("general.sampling."))
    return tuple(sorted(key for key in keys if key not in FILE_KEYS))


def _check(name: str, value: object) -> None:
    kind, lowest, highest = _RANGES[name]
    if value is None and name in _OPTIONAL:
        return
    accepted = int if kind is int else (int, float)
    if isinstance(value, bool) or not isinstance(value, accepted) or not lowest <= value <= highest:
        noun = "a whole number" if kind is int else "a number"
        limits = (
            f"{kind(lowest)} to {kind(highest)}" if kind is int else f"{lowest:g} to {highest:g}"
        )
        raise UsageError(f"{name} is {value!r}; it must be {noun} from {limits}.")


def _check_int(name: str, value: object, lowest: int, highest: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or not lowest <= value <= highest:
        raise UsageError(
            f"{name} is {value!r}; it must be a whole number from {lowest} to {highest}."
        )


def _check_bias(token: object, bias: object) -> None:
    if isinstance(token, bool) or not isinstance(token, int) or token < 0:
        raise UsageError(f"logit_bias: {token!r} is not a token id; ids are whole numbers from 0.")
    if isinstance(bias, bool) or not isinstance(bias, int | float):
        raise UsageError(f"logit_bias of token {token} is {bias!r}; it must be a number.")
    if not (bias == -_INF or -_MAX_BIAS <= bias <= _MAX_BIAS):
        raise UsageError(
            f"logit_bias of token {token} is {bias}; it must lie between {-_MAX_BIAS:g} and "
            f"{_MAX_BIAS:g}, or be -inf to ban the token."
        )


def _from_file(key: str, name: str, value: object) -> int | float:
    """Return a file's value as a number in range; files hold numbers of any type, or text."""
    try:
        number = float(value)  # type: ignore[arg-type]
        if _RANGES[name][0] is int and number == int(number):
            number = int(number)
        _check(name, number)
    except (TypeError, ValueError, OverflowError, UsageError) as e:
        raise CheckpointError(
            f"{key} is {value!r}, which is no valid {name}. Set {name} yourself."
        ) from e
    return number


@dataclass(frozen=True, slots=True)
class GrammarSpec:
    """What an answer must match, as the user wrote it.

    kind   one of GRAMMAR_KINDS
    text   the JSON schema as JSON, the regular expression, or the grammar; nothing for json_object

    Raises UsageError for an unknown kind. The text is checked when the request is submitted.
    """

    kind: str
    text: str = ""

    def __post_init__(self) -> None:
        """Check the kind."""
        if self.kind not in GRAMMAR_KINDS:
            raise UsageError(
                f"unknown kind of grammar {self.kind!r}. Known: {', '.join(GRAMMAR_KINDS)}."
            )
        if not isinstance(self.text, str):
            raise UsageError(f"a grammar is text, not {type(self.text).__name__}.")


@dataclass(frozen=True, slots=True)
class Request:
    """A prompt to continue.

    tokens         the prompt; if empty, the tokenizer's BOS takes its place
    params         how to choose tokens and when to stop
    session        requests of one session share a KV cache sequence, so that a chat's next turn
                   computes only what is new; one of them runs at a time
    context_shift  when the context is full, drop the older half instead of stopping
    n_keep         tokens at the start that a context shift keeps; -1 keeps the prompt
    n              choices: independent answers to the same prompt. Choice i is the answer to the
                   same request with n = 1 and seed + i
    priority       lower goes first; the same go in the order they were submitted
    cache_salt     only requests with the same salt share cached prompts
    grammar        what the answer must match; None is off
    is_speculated  whether tokens may be drafted, where the engine drafts any. The answer is the
                   same; only its speed differs
    pooling        answer with an embedding of the prompt instead of tokens: the mean of its
                   tokens' last hidden states, or the last of them
    """

    tokens: tuple[int, ...]
    params: SamplingParams = field(default_factory=SamplingParams)
    session: int | None = None
    context_shift: bool = False
    n_keep: int = 0
    n: int = 1
    priority: int = 0
    cache_salt: str = ""
    grammar: GrammarSpec | None = None
    is_speculated: bool = True
    pooling: str | None = None

    def __post_init__(self) -> None:
        """Check what can be checked without a model."""
        if self.n_keep < -1:
            raise UsageError(f"n_keep is {self.n_keep}; it must be -1 or more.")
        _check_int("n", self.n, 1, MAX_CHOICES)
        _check_int("priority", self.priority, -MAX_PRIORITY, MAX_PRIORITY)
        if self.n > 1 and self.session is not None:
            raise UsageError(f"a session has one answer a turn; n is {self.n}. Use n = 1.")
        if self.pooling is not None and (self.n > 1 or self.context_shift):
            raise UsageError("an embedding is one, and of a prompt that fits: n = 1, no shift.")
        if self.pooling is not None and self.pooling not in POOLINGS:
            raise UsageError(f"unknown pooling {self.pooling!r}. Known: {', '.join(POOLINGS)}.")


@dataclass(frozen=True, slots=True)
class Logprobs:
    """Log-probabilities of one step.

    chosen  of the token that was chosen
    top     (token, log-probability) of the most likely tokens, most likely first
    """

    chosen: float
    top: tuple[tuple[int, float], ...]


@dataclass(frozen=True, slots=True)
class Stats:
    """What a choice of a request took.

    n_prompt       tokens of the prompt
    n_reused       of these, found in the cache and not computed for this request
    n_generated    tokens chosen, an end-of-generation token included
    n_shifts       times that the context was shifted
    prompt_s       time of the steps that computed the prompt
    decode_s       time of the steps after these
    first_token_s  time from `submit` to the first token, None if there was none
    seed           the seed used
    n_drafted      tokens that were guessed and checked
    n_accepted     of these, the ones that were right, so that they cost no step of their own
    n_preempted    times that it had to make room for others and be computed again
    queue_s        time from `submit` to the first step that computed for it
    """

    n_prompt: int
    n_reused: int
    n_generated: int
    n_shifts: int
    prompt_s: float
    decode_s: float
    first_token_s: float | None
    seed: int
    n_drafted: int = 0
    n_accepted: int = 0
    n_preempted: int = 0
    queue_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Event:
    """One thing that happened to a request.

    request          its number, from `submit`
    token            the token that was chosen, or None
    text             what is now certain; "" while a character or a stop string may be under way
    logprobs         if they were asked for
    finish           set in a choice's last event, and only there
    stats            set with `finish`
    error            set if finish is ERROR
    choice           which of the request's n answers this belongs to
    prompt_logprobs  if they were asked for, in the first event of choice 0: one entry a token of
                     the prompt, None for the first
    embedding        of a request with `pooling`, in its only event; not normalized
    """

    request: int
    token: int | None = None
    text: str = ""
    logprobs: Logprobs | None = None
    finish: FinishReason | None = None
    stats: Stats | None = None
    error: BaseException | None = None
    choice: int = 0
    prompt_logprobs: tuple[Logprobs | None, ...] | None = None
    embedding: tuple[float, ...] | None = None
