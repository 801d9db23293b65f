"""One choice of a request under way: its text, its end, and what it has taken."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
import numpy.typing as npt

from quantcli.engine.leviathan import Guess
from quantcli.engine.request import Event, FinishReason, Logprobs, Request, Stats
from quantcli.engine.sampling import F32, U32, Sampler
from quantcli.engine.scheduler import Job, Slice
from quantcli.engine.stop import StopStrings
from quantcli.errors import ModelError, QuantcliError


class Stream(Protocol):
    """Turns tokens into text; `quantcli.text.stream.TextStream`."""

    def push(self, token: int) -> str:
        """Take a token; return the whole characters that are certain."""
        ...

    def finish(self) -> str:
        """Return what is left."""
        ...


class Grammar(Protocol):
    """What an answer must match, and how far it has come; `quantcli.engine.grammar.Matcher`."""

    @property
    def is_complete(self) -> bool:
        """Whether nothing can follow."""
        ...

    def allowed(self) -> U32:
        """Return u32 (words,): a bit for each token that can come next."""
        ...

    def accept(self, token: int) -> None:
        """Go on with a token that was allowed."""
        ...

    def forced(self) -> list[int]:
        """Return tokens that are likely to come next because their text must."""
        ...

    def n_valid(self, tokens: list[int]) -> int:
        """Return how many of some tokens, from the first on, can come next."""
        ...


@dataclass
class Counters:
    """What a choice has taken so far; see `Stats`."""

    n_generated: int = 0
    n_shifts: int = 0
    n_drafted: int = 0
    n_accepted: int = 0
    prompt_s: float = 0.0
    decode_s: float = 0.0
    queue_s: float | None = None
    first_token_s: float | None = None


class Generation:
    """Chooses a choice's tokens and turns them into events. Its clock starts when it is made."""

    def __init__(
        self,
        number: int,
        request: Request,
        job: Job,
        sampler: Sampler,
        stream: Stream,
        ends: frozenset[int],
        *,
        choice: int = 0,
        grammar: Grammar | None = None,
    ) -> None:
        """Prepare for a request.

        number  the request's
        job     starts with the prompt; the tokens chosen are appended to it
        ends    tokens that end the generation
        choice  which of the request's answers this is
        """
        self.number = number
        self.choice = choice
        self.request = request
        self.job = job
        self.grammar = grammar
        self.counters = Counters()
        self.guesses: list[Guess] = []  # the job's draft, if it was drawn at random
        self.n_prompt = len(job.tokens)
        self._sampler = sampler
        self._stream = stream
        self._stops = StopStrings(request.params.stop)
        self._ends = ends
        self._pooled: npt.NDArray[np.float64] | None = None
        self._submitted = time.perf_counter()
        wants_prompt = request.params.n_prompt_logprobs is not None and choice == 0
        self._prompt: list[Logprobs | None] | None = (
            [None] * self.n_prompt if wants_prompt else None
        )
        for token in job.tokens:
            sampler.accept(token)

    @property
    def n_draftable(self) -> int:
        """Tokens that may be drafted: one more than these can be chosen and kept."""
        return self.job.n_slots - len(self.job.tokens) if self.request.is_speculated else 0

    @property
    def seed(self) -> int:
        """The seed of this choice."""
        return self._sampler.seed

    def start(self, now: float) -> bool:
        """Note that a step begins that computes for this choice; return whether it is the first."""
        if self.counters.queue_s is not None:
            return False
        self.counters.queue_s = now - self._submitted
        return True

    def take(self, piece: Slice, rows: F32, n_slots: int, step_start: float) -> list[Event]:
        """Choose tokens from the logits of a slice's rows, and return what came of it.

        rows        f32 (piece.stop - piece.first_output, n_tokens)
        n_slots     most tokens that the cache can hold for this choice
        step_start  when the step began that computed the logits

        The choice is over if the last event has `finish`, and must else be shifted if its tokens
        are more than n_slots. A draft is right as long as it equals what is chosen.
        """
        self.add_time(step_start)
        job = self.job
        draft, n_right = list(job.draft), 0
        self.counters.n_drafted += len(draft)
        events: list[Event] = []
        try:
            for position, row in enumerate(rows, piece.first_output):
                if position < len(job.tokens) - 1:
                    self._note_prompt(row, position)
                    continue
                guess = draft[n_right] if n_right < len(draft) else None
                events.append(self._next(row, n_slots, guess))
                if events[-1].finish is not None or events[-1].token != guess:
                    break
                n_right += 1
        except QuantcliError as error:
            events.append(self.end(FinishReason.ERROR, error))
        job.accept(n_right)
        self.guesses.clear()
        return events

    def pool(self, piece: Slice, states: F32, step_start: float) -> Event | None:
        """Take the hidden states f32 (n, d_model) of a slice's rows; return the embedding's event.

        None while states are missing. Sums go row by row, so that chunks make no difference.
        """
        self.add_time(step_start)
        if self._pooled is None:
            self._pooled = np.zeros(states.shape[1], np.float64)
        if self.request.pooling == "last":
            self._pooled[:] = states[-1] if piece.is_last else 0.0
        else:
            for row in states:
                self._pooled += row
        if not piece.is_last:
            return None
        if not np.isfinite(self._pooled).all():
            error = ModelError(
                f"request {self.number}: the embedding is not finite. The model file is damaged; "
                "try another file of the same model."
            )
            return self.end(FinishReason.ERROR, error)
        n = self.n_prompt if self.request.pooling == "mean" else 1
        embedding = tuple((self._pooled / n).tolist())
        return replace(self.end(FinishReason.LENGTH), embedding=embedding)

    def end(self, finish: FinishReason, error: BaseException | None = None) -> Event:
        """Return the last event, for an end that has nothing to do with a token."""
        text = self._rest()
        return Event(
            self.number,
            text=text,
            finish=finish,
            stats=self._stats(),
            error=error,
            choice=self.choice,
            prompt_logprobs=None if error else self._told_prompt(),
        )

    def add_time(self, step_start: float) -> None:
        """Count the time since a step began to the prompt, or after the first token to decoding."""
        seconds = time.perf_counter() - step_start
        if self.counters.n_generated == 0:
            self.counters.prompt_s += seconds
        else:
            self.counters.decode_s += seconds

    def _next(self, row: F32, n_slots: int, guess: int | None) -> Event:
        """Choose the next token from its logits f32 (n_tokens,), which was guessed or not."""
        if self.request.params.max_tokens == 0:
            self._sampler.check(row, self._where)
            return self.end(FinishReason.LENGTH)
        allowed = None if self.grammar is None else self.grammar.allowed()
        if guess is not None and self.guesses:
            token = self._sampler.settle(row, self.guesses.pop(0), self._where, allowed)
        else:
            token = self._sampler.choose(row, self._where, allowed)
        self.counters.n_accepted += token == guess
        return self._event(row, token, n_slots)

    def _event(self, row: F32, token: int, n_slots: int) -> Event:
        """Take a token that was chosen from a row and return what comes of it."""
        logprobs = self._logprobs(row, token)
        self._sampler.accept(token)
        self.job.tokens.append(token)
        self.counters.n_generated += 1
        if self.counters.first_token_s is None:
            self.counters.first_token_s = time.perf_counter() - self._submitted
        text, finish = self._take(token)
        if finish is None and len(self.job.tokens) > n_slots and not self.request.context_shift:
            finish = FinishReason.CONTEXT
            text += self._rest()
        stats = self._stats() if finish else None
        prompt = self._told_prompt()
        return Event(self.number, token, text, logprobs, finish, stats, None, self.choice, prompt)

    def _take(self, token: int) -> tuple[str, FinishReason | None]:
        """Return the text that a token makes certain, and whether it ends the generation."""
        if token in self._ends:
            return self._rest(), FinishReason.STOP
        if self.grammar is not None:
            self.grammar.accept(token)
        text, is_stopped = self._stops.push(self._stream.push(token))
        if is_stopped:
            return text, FinishReason.STOP
        if self.grammar is not None and self.grammar.is_complete:
            return text + self._rest(), FinishReason.STOP
        if self.counters.n_generated == self.request.params.max_tokens:
            return text + self._rest(), FinishReason.LENGTH
        return text, None

    def _rest(self) -> str:
        """Return the text that was held back: half a character, or the start of a stop string."""
        text, _ = self._stops.push(self._stream.finish())
        return text + self._stops.finish()

    def _note_prompt(self, row: F32, position: int) -> None:
        """Keep the log-probabilities of the prompt's next token; None once they have been told."""
        n = self.request.params.n_prompt_logprobs
        if self._prompt is None or n is None:
            return
        self._sampler.check(row, f"request {self.number}, position {position}: ")
        token = self.job.tokens[position + 1]
        self._prompt[position + 1] = self._sampler.logprobs(row, token, n)

    def _told_prompt(self) -> tuple[Logprobs | None, ...] | None:
        """Return the prompt's log-probabilities if they are complete, and only once."""
        if self._prompt is None or self.job.n_computed < self.n_prompt:
            return None
        prompt, self._prompt = self._prompt, None
        self.job.all_logits = False
        return tuple(prompt)

    def _logprobs(self, row: F32, token: int) -> Logprobs | None:
        n = self.request.params.n_logprobs
        return None if n is None else self._sampler.logprobs(row, token, n)

    @property
    def _where(self) -> str:
        return f"request {self.number}, position {len(self.job.tokens) - 1}: "

    def _stats(self) -> Stats:
        counters = self.counters
        return Stats(
            n_prompt=self.n_prompt,
            n_reused=self.job.n_reused,
            n_generated=counters.n_generated,
            n_shifts=counters.n_shifts,
            prompt_s=counters.prompt_s,
            decode_s=counters.decode_s,
            first_token_s=counters.first_token_s,
            seed=self._sampler.seed,
            n_drafted=counters.n_drafted,
            n_accepted=counters.n_accepted,
            n_preempted=self.job.n_preempted,
            queue_s=counters.queue_s or 0.0,
        )
