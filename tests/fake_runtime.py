"""A model, tokenizer and engine of a few lines, for commands that need no arithmetic."""

from __future__ import annotations

import _thread
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from quantcli.cli.generation import Loaded
from quantcli.engine.request import Event, FinishReason, Request, Stats
from quantcli.errors import QuantcliError, ResourceError
from quantcli.kvcache import KVCache, create
from quantcli.runtime.model import Batch

F32 = npt.NDArray[np.float32]


class FakeTokenizer:
    """One token a character."""

    def encode(
        self, text: str, *, add_special: bool = True, parse_special: bool = False
    ) -> list[int]:
        return [ord(char) for char in text]


class FakeModel:
    """A model that says token (t + 1) % n_vocab after token t, and writes down its batches."""

    def __init__(
        self, *, n_vocab: int = 16, context: int = 64, max_rows: int = 8, n_sequences: int = 1
    ) -> None:
        self.n_vocab = n_vocab
        self.context = context
        self.max_rows = max_rows
        self.n_threads = 1
        self.kv: KVCache = create("contiguous", context=context, n_sequences=n_sequences)
        self.batches: list[Batch] = []
        self.is_closed = False

    def forward(self, batch: Batch) -> F32:
        self.batches.append(batch)
        logits = np.zeros((len(batch.outputs), self.n_vocab), np.float32)
        for row, output in enumerate(batch.outputs):
            logits[row, (batch.tokens[output] + 1) % self.n_vocab] = 1
        return logits

    def close(self) -> None:
        self.is_closed = True


@dataclass
class FakeEngine:
    """Gives out scripted answers, one piece a step; an error in place of pieces is raised.

    An answer of None never ends: it says "x" until it is cancelled. At step `interrupt_at` the
    user presses Ctrl-C.
    """

    answers: list[list[str] | QuantcliError | None]
    interrupt_at: int = 0
    requests: list[Request] = field(default_factory=list)
    n_cancelled: int = 0
    n_steps: int = 0
    _pieces: Iterator[str] | None = None
    _endless: bool = False

    def submit(self, request: Request) -> int:
        self.requests.append(request)
        answer = self.answers.pop(0)
        if isinstance(answer, QuantcliError):
            raise answer
        self._endless = answer is None
        self._pieces = iter(answer or [])
        return len(self.requests)

    def step(self) -> list[Event]:
        assert self._pieces is not None
        self.n_steps += 1
        if self.n_steps == self.interrupt_at:
            _thread.interrupt_main()
        number = len(self.requests)
        if self._endless:
            return [Event(number, token=120, text="x")]
        for piece in self._pieces:
            return [Event(number, token=0, text=piece)]
        return [Event(number, finish=FinishReason.STOP, stats=self._stats())]

    def cancel(self, number: int) -> None:
        assert number == len(self.requests)
        self.n_cancelled += 1
        self._endless = False

    def _stats(self) -> Stats:
        n_prompt = len(self.requests[-1].tokens)
        return Stats(n_prompt, 0, 1, 0, 0.1, 0.2, 0.1, 7)


class FakeCheckpoint:
    """A file without keys."""

    def __init__(self) -> None:
        self.metadata: dict[str, object] = {}
        self.tensors: dict[str, object] = {}
        self.notes: tuple[str, ...] = ()
        self.adapters: tuple[object, ...] = ()
        self.is_closed = False

    def close(self) -> None:
        self.is_closed = True


class FakeTemplate:
    """Renders a conversation as `role:content|` each."""

    def render(self, messages: Iterable[dict[str, str]], **_: object) -> str:
        return "".join(f"{m['role']}:{m['content']}|" for m in messages)


class FakeLoaded(Loaded):
    """A loaded model whose chat needs no Jinja."""

    def chat_tokens(self, messages: list) -> tuple[int, ...]:  # type: ignore[type-arg]
        return tuple(map(ord, FakeTemplate().render(messages)))


def fake_loaded(engine: FakeEngine, model: FakeModel, *, chat: bool = True) -> FakeLoaded:
    """Put the pieces together."""
    template = FakeTemplate() if chat else None
    pieces = (FakeCheckpoint(), FakeTokenizer(), template, model, engine)
    return FakeLoaded("fake", *pieces, load_s=0.5)  # type: ignore[arg-type]


def full(n: int, context: int) -> ResourceError:
    """Return an error such as the engine raises for a prompt that is too long."""
    return ResourceError(f"the prompt is {n} tokens and the context {context}.")
