"""One request under way: its text, its end, and what it has taken."""

from __future__ import annotations

import time
from typing import Protocol

from quantcli.engine.request import Event, FinishReason, Logprobs, Request, Stats
from quantcli.engine.sampling import F32, Sampler
from quantcli.engine.scheduler import Job
from quantcli.engine.stop import StopStrings
from quantcli.errors import QuantcliError


class Stream(Protocol):
    """Turns tokens into text; `quantcli.text.stream.TextStream`."""

    def push(self, token: int) -> str:
        """Take a token; return the whole characters that are certain."""
        ...

    def finish(self) -> str:
        """Return what is left."""
        ...


class Generation:
    """Chooses a request's tokens and turns them into events. Its clock starts when it is made."""

    def __init__(
        self,
        number: int,
        request: Request,
        job: Job,
        sampler: Sampler,
        stream: Stream,
        eog: frozenset[int],
    ) -> None:
        """Prepare for a request.

        job   starts with the prompt; the tokens chosen are appended to it
        eog   tokens that end the generation
        """
        self.number = number
        self.request = request
        self.job = job
        self.n_shifts = 0
        self.prompt_s = 0.0
        self.decode_s = 0.0
        self._sampler = sampler
        self._stream = stream
        self._stops = StopStrings(request.params.stop)
        self._eog = eog
        self.n_prompt = len(job.tokens)
        self._n_generated = 0
        self._submitted = time.perf_counter()
        self._first_token_s: float | None = None
        for token in job.tokens:
            sampler.accept(token)

    def next(self, row: F32, n_slots: int, step_start: float) -> Event:
        """Choose the next token from its logits f32 (n_tokens,) and return what came of it.

        n_slots      most tokens that the cache can hold for this request
        step_start   when the step began that computed the logits

        After the event the request is over if `finish` is set, and must else be shifted if its
        tokens are more than n_slots.
        """
        if self.request.params.max_tokens == 0:
            self.add_time(step_start)
            return self.end(FinishReason.LENGTH)
        try:
            token = self._sampler.choose(row, self._where)
        except QuantcliError as error:
            self.add_time(step_start)
            return self.end(FinishReason.ERROR, error)
        logprobs = self._logprobs(row, token)
        self.add_time(step_start)
        self._sampler.accept(token)
        self.job.tokens.append(token)
        self._n_generated += 1
        if self._first_token_s is None:
            self._first_token_s = time.perf_counter() - self._submitted
        text, finish = self._take(token)
        if finish is None and len(self.job.tokens) > n_slots and not self.request.context_shift:
            finish = FinishReason.CONTEXT
            text += self._rest()
        stats = self._stats() if finish else None
        return Event(self.number, token, text, logprobs, finish, stats)

    def end(self, finish: FinishReason, error: BaseException | None = None) -> Event:
        """Return the last event, for an end that has nothing to do with a token."""
        return Event(
            self.number, text=self._rest(), finish=finish, stats=self._stats(), error=error
        )

    def add_time(self, step_start: float) -> None:
        """Count the time since a step began to the prompt, or after the first token to decoding."""
        seconds = time.perf_counter() - step_start
        if self._n_generated == 0:
            self.prompt_s += seconds
        else:
            self.decode_s += seconds

    def _take(self, token: int) -> tuple[str, FinishReason | None]:
        """Return the text that a token makes certain, and whether it ends the generation."""
        if token in self._eog:
            return self._rest(), FinishReason.STOP
        text, is_stopped = self._stops.push(self._stream.push(token))
        if is_stopped:
            return text, FinishReason.STOP
        if self._n_generated == self.request.params.max_tokens:
            return text + self._rest(), FinishReason.LENGTH
        return text, None

    def _rest(self) -> str:
        """Return the text that was held back: half a character, or the start of a stop string."""
        text, _ = self._stops.push(self._stream.finish())
        return text + self._stops.finish()

    def _logprobs(self, row: F32, token: int) -> Logprobs | None:
        n = self.request.params.n_logprobs
        return None if n is None else self._sampler.logprobs(row, token, n)

    @property
    def _where(self) -> str:
        return f"request {self.number}, position {len(self.job.tokens) - 1}: "

    def _stats(self) -> Stats:
        return Stats(
            n_prompt=self.n_prompt,
            n_reused=self.job.n_reused,
            n_generated=self._n_generated,
            n_shifts=self.n_shifts,
            prompt_s=self.prompt_s,
            decode_s=self.decode_s,
            first_token_s=self._first_token_s,
            seed=self._sampler.seed,
        )
