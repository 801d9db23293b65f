"""One answer as it comes: its events turned into thoughts, text and calls of tools."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from quantcli.engine.request import Event, FinishReason, Logprobs, Stats
from quantcli.engine.stop import StopStrings
from quantcli.server.reasoning import CLOSE, OPEN, ReasoningSplit
from quantcli.server.served import Served
from quantcli.server.tool_calls import CallDelta, CallParser
from quantcli.text.stream import TextStream

# JSON knows no infinity; OpenAI's own floor, below which a probability is none.
LOWEST_LOGPROB = -9999.0
_MARKERS = (OPEN, CLOSE, "<tool_call>", "</tool_call>", "[TOOL_CALLS]", "[ARGS]", "<|python_tag|>")


@dataclass
class Delta:
    """What some events add to an answer."""

    text: str = ""
    thoughts: str = ""
    calls: list[CallDelta] = field(default_factory=list)
    tokens: list[tuple[int, Logprobs | None]] = field(default_factory=list)

    def __bool__(self) -> bool:
        """Return whether there is anything to send."""
        return bool(self.text or self.thoughts or self.calls)


def marker_tokens(served: Served) -> frozenset[int]:
    """Return the control tokens that spell the markers of calls and thoughts."""
    known = set(served.tokenizer.control_texts)
    pieces = [served.tokenizer.split_control(text) for text in _MARKERS if text in known]
    return frozenset(token for ids in pieces for token in ids if isinstance(token, int))


class _SpelledText:
    """An answer's text with some control tokens spelled out, which the engine leaves out."""

    def __init__(self, served: Served, stops: tuple[str, ...], spelled: frozenset[int]) -> None:
        self._tokenizer = served.tokenizer
        self._stream = TextStream(served.tokenizer)
        self._stops = StopStrings(stops)
        self._spelled = spelled
        self._is_stopped = False

    def push(self, event: Event) -> str:
        """Return the text that an event makes certain."""
        if self._is_stopped:
            return ""
        text = ""
        if event.token is not None:
            if event.token in self._spelled:
                text = self._stream.finish() + self._tokenizer.token_bytes(event.token).decode()
            else:
                text = self._stream.push(event.token)
        if event.finish is not None:
            text += self._stream.finish()
        certain, self._is_stopped = self._stops.push(text)
        if event.finish is not None and not self._is_stopped:
            certain += self._stops.finish()
        return certain


class ChoiceReader:
    """Reads the events of one answer.

    finish, stats   set by its last event
    n_tokens        tokens so far
    calls           whole calls: [id, name, arguments]
    """

    def __init__(
        self,
        served: Served,
        *,
        stops: tuple[str, ...] = (),
        split: ReasoningSplit | None = None,
        parser: CallParser | None = None,
    ) -> None:
        """Start an answer.

        stops    the request's stop strings
        split    what divides thoughts from the answer, if it has any
        parser   what finds calls, if there are tools
        """
        self.finish: FinishReason | None = None
        self.stats: Stats | None = None
        self.n_tokens = 0
        self.text = ""
        self.thoughts = ""
        self.calls: list[list[str]] = []
        self.tokens: list[tuple[int, Logprobs | None]] = []
        self._split = split
        self._parser = parser
        spelled = marker_tokens(served) if split or parser else frozenset()
        self._spelled = _SpelledText(served, stops, spelled) if spelled else None
        self._new = Delta()

    def take(self, event: Event) -> None:
        """Take an event; what it adds waits for `taken`."""
        text = self._spelled.push(event) if self._spelled is not None else event.text
        if event.token is not None:
            self.n_tokens += 1
            self._new.tokens.append((event.token, event.logprobs))
        thoughts = ""
        if self._split is not None:
            thoughts, text = self._split.push(text)
            if event.finish is not None:
                more_thoughts, more_text = self._split.finish()
                thoughts, text = thoughts + more_thoughts, text + more_text
        calls: list[CallDelta] = []
        if self._parser is not None:
            text, calls = self._parser.push(text)
            if event.finish is not None:
                more, last_calls = self._parser.finish()
                text, calls = text + more, calls + last_calls
        self._add(text, thoughts, calls)
        if event.finish is not None:
            self.finish, self.stats = event.finish, event.stats

    def _add(self, text: str, thoughts: str, calls: Iterable[CallDelta]) -> None:
        self.text += text
        self.thoughts += thoughts
        self._new.text += text
        self._new.thoughts += thoughts
        for call in calls:
            self._new.calls.append(call)
            if call.id is not None:
                self.calls.append([call.id, call.name or "", ""])
            self.calls[call.index][2] += call.arguments

    def taken(self) -> Delta:
        """Return what has been added since the last time."""
        new, self._new = self._new, Delta()
        self.tokens += new.tokens
        return new

    @property
    def finish_reason(self) -> str | None:
        """OpenAI's word for why the answer ended."""
        if self.finish is None:
            return None
        if self.finish is FinishReason.STOP:
            return "tool_calls" if self.calls else "stop"
        return "length"


def usage(readers: Sequence[ChoiceReader], n_prompts: int = 1) -> dict[str, object]:
    """Return how many tokens answers took; those of one prompt stand next to each other."""
    per_prompt = max(1, len(readers) // n_prompts)
    stats = [reader.stats for reader in readers]
    first = [s for s in stats[::per_prompt] if s is not None]
    n_prompt = sum(s.n_prompt for s in first)
    n_answer = sum(s.n_generated for s in stats if s is not None)
    return {
        "prompt_tokens": n_prompt,
        "completion_tokens": n_answer,
        "total_tokens": n_prompt + n_answer,
        "prompt_tokens_details": {"cached_tokens": sum(s.n_reused for s in first)},
    }


def timings(stats: Stats) -> dict[str, object]:
    """Return what an answer took, in llama-server's names."""
    n_new = stats.n_prompt - stats.n_reused
    n_more = max(0, stats.n_generated - 1)
    return {
        "cache_n": stats.n_reused,
        "prompt_n": n_new,
        "prompt_ms": 1000 * stats.prompt_s,
        "prompt_per_second": n_new / stats.prompt_s if stats.prompt_s else 0.0,
        "predicted_n": stats.n_generated,
        "predicted_ms": 1000 * stats.decode_s,
        "predicted_per_second": n_more / stats.decode_s if stats.decode_s else 0.0,
        "draft_n": stats.n_drafted,
        "draft_n_accepted": stats.n_accepted,
    }


def finite(logprob: float) -> float:
    """Return a log-probability that JSON can hold."""
    return max(logprob, LOWEST_LOGPROB)
