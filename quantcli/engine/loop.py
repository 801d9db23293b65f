"""The engine: takes requests at any time, and with each step computes and chooses tokens for all.

engine = Engine(model, tokenizer)
number = engine.submit(Request(tokens))
while not engine.is_idle:
    for event in engine.step(): ...
"""

from __future__ import annotations

import secrets
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import count
from typing import Protocol

from quantcli.engine.generation import Generation
from quantcli.engine.request import Event, FinishReason, Request
from quantcli.engine.sampling import F32, Chooser, Sampler
from quantcli.engine.scheduler import Job, Scheduler, Slice, drop_older_half
from quantcli.errors import Cancelled, ResourceError, UsageError
from quantcli.kvcache import KVCache
from quantcli.runtime.step import Batch
from quantcli.text import Tokenizer
from quantcli.text.stream import TextStream

Progress = Callable[[str, int, int], None]


class Model(Protocol):
    """What the engine needs of a model; `quantcli.runtime.model.Model`."""

    n_vocab: int
    context: int
    max_rows: int
    kv: KVCache

    def forward(self, batch: Batch) -> F32:
        """Compute a step; return logits f32 (len(batch.outputs), n_vocab), valid until the next."""
        ...

    def cancel(self) -> None:
        """Make a forward that is running raise Cancelled soon; any thread may call it."""
        ...


class Engine:
    """Runs many requests on one model.

    `submit` and `cancel` may be called from any thread; everything else from one, the model's.
    What a request answers depends on nothing but the request.
    """

    def __init__(
        self,
        model: Model,
        tokenizer: Tokenizer,
        *,
        sampler: str = "compiled",
        progress: Progress | None = None,
    ) -> None:
        """Start without requests.

        sampler    "compiled", or "reference" for the sampling chain as it is written down
        progress   called with what is being done, how much is done and of how much
        """
        self._model = model
        self._tokenizer = tokenizer
        # Logits beyond the vocabulary are padding of the output matrix.
        self._n_tokens = min(model.n_vocab, tokenizer.n_vocab)
        self._n_slots = min(model.context, model.kv.n_pages * model.kv.page_size)
        if progress:
            progress("preparing the sampler for this CPU, slow only once", 0, 1)
        self._chooser = Chooser(self._n_tokens, sampler)
        self._scheduler = Scheduler(model.kv, model.max_rows)
        self._numbers = count(1)
        self._open: dict[int, Generation] = {}
        self._lock = threading.Lock()  # of the next three
        self._submitted: deque[Generation] = deque()  # since the last step
        self._cancelled: deque[int] = deque()
        self._computing: frozenset[int] = frozenset()  # while in the model
        self._unclaimed: list[Event] = []  # of other requests, seen by `generate`

    @property
    def is_idle(self) -> bool:
        """Whether no request is open."""
        return not (self._submitted or self._open or self._unclaimed)

    def submit(self, request: Request) -> int:
        """Put a request in the queue and return its number, which its events bear.

        Raises UsageError for a prompt that is empty, too long or not of this vocabulary, and
        ResourceError for one that the cache can never hold.
        """
        tokens = self._prompt(request)
        params = request.params
        seed = params.seed
        if seed is None or seed < 0:
            seed = secrets.randbits(32)  # short enough to be typed in again
        limit = params.max_tokens
        if limit is not None and limit < 0:
            limit = None
        request = replace(request, params=replace(params, seed=seed, max_tokens=limit))
        n_slots = self._n_slots
        if limit is not None and not request.context_shift:
            # The last token chosen is never computed.
            n_slots = min(n_slots, len(tokens) + max(0, limit - 1))
        eog = self._tokenizer.eog
        banned = eog if params.ignore_eos else ()
        sampler = Sampler(request.params, seed, self._chooser, banned, self._model.context)
        number = next(self._numbers)
        job = Job(number, tokens, n_slots, request.session)
        stream = TextStream(self._tokenizer)
        generation = Generation(number, request, job, sampler, stream, eog)
        with self._lock:
            self._submitted.append(generation)
        return number

    def cancel(self, number: int) -> None:
        """End a request. The next `step` frees its slots and returns its last event.

        A step that computes nothing else is broken off. Requests that have ended are ignored.
        """
        with self._lock:
            self._cancelled.append(number)
            is_in_vain = bool(self._computing) and self._computing <= set(self._cancelled)
        if is_in_vain:
            self._model.cancel()

    def step(self) -> list[Event]:
        """Compute at most model.max_rows rows and return what came of it, in order.

        An error of one request is in its last event. An error of the model is raised, after the
        requests that were being computed have been dropped; they have no more events.
        """
        events, self._unclaimed = self._unclaimed, []
        events += self._take_in()
        if batch := self._scheduler.next_batch():
            events += self._run(batch)
        return events

    def generate(self, request: Request) -> Iterator[Event]:
        """Submit a request and yield its events; closing the iterator cancels it.

        Events of other requests are kept for `step`. Raises the request's error, if it has one.
        """
        number = self.submit(request)
        try:
            while True:
                events = self.step()
                self._unclaimed += [event for event in events if event.request != number]
                for event in events:
                    if event.request == number:
                        if event.error is not None:
                            raise event.error
                        yield event
                        if event.finish is not None:
                            return
        finally:
            self.cancel(number)
            self._unclaimed += [e for e in self._take_in() if e.request != number]

    def close_session(self, session: int) -> None:
        """Give a session's slots back, at once or when its running request ends."""
        self._scheduler.close_session(session)

    def _prompt(self, request: Request) -> list[int]:
        """Return the tokens to start from."""
        tokens = list(request.tokens)
        if not tokens:
            if self._tokenizer.bos is None:
                raise UsageError(
                    "the prompt is empty, and the model has no BOS token to start from."
                )
            tokens = [self._tokenizer.bos]
        if bad := [token for token in tokens if not 0 <= token < self._n_tokens]:
            raise UsageError(f"no token {bad[0]}; the vocabulary has {self._n_tokens}.")
        if request.context_shift:
            n_keep = self._n_keep(request, len(tokens))
            while len(tokens) > self._n_slots:
                drop_older_half(tokens, n_keep)
        elif len(tokens) > self._model.context:
            raise UsageError(
                f"the prompt has {len(tokens)} tokens, and the context {self._model.context}. "
                "Shorten the prompt, use a larger --ctx, or drop its older part with "
                "--context-shift."
            )
        elif len(tokens) > self._n_slots:
            raise ResourceError(
                f"the prompt has {len(tokens)} tokens, and the KV cache {self._n_slots} slots. "
                "Shorten the prompt or use a larger cache."
            )
        return tokens

    def _n_keep(self, request: Request, n_prompt: int) -> int:
        """Return how many tokens a context shift keeps; at least two others must fit."""
        n_keep = n_prompt if request.n_keep < 0 else request.n_keep
        if n_keep > self._n_slots - 2:
            raise UsageError(
                f"a context shift cannot keep {n_keep} tokens in a context of {self._n_slots}; "
                f"at most {self._n_slots - 2}. Use a smaller --keep or a larger --ctx."
            )
        return n_keep

    def _take_in(self) -> list[Event]:
        """Take over what was submitted and cancelled; return the last events of the cancelled."""
        with self._lock:
            submitted, cancelled = list(self._submitted), list(self._cancelled)
            self._submitted.clear()
            self._cancelled.clear()
        for generation in submitted:
            self._open[generation.number] = generation
            self._scheduler.add(generation.job)
        events = []
        for number in cancelled:
            if ended := self._open.get(number):
                events.append(ended.end(FinishReason.CANCELLED))
                self._close(ended)
        return events

    def _run(self, batch: list[Slice]) -> list[Event]:
        """Compute slices of jobs and choose the next token of those that are complete."""
        start = time.perf_counter()
        try:
            try:
                logits = self._forward(batch)
            except Cancelled:  # nothing has changed: what is still wanted is computed once more
                return self._take_in()
            self._scheduler.advance(batch)
            events = self._take_in()  # of a request that was cancelled, nothing more is wanted
            events += self._choose(batch, logits, start)
        except BaseException:
            # Whatever it was: the cache may hold half a step of these.
            for piece in batch:
                if generation := self._open.get(piece.job.number):
                    self._close(generation, keep_session=False)
            raise
        return events

    def _forward(self, batch: list[Slice]) -> F32:
        step = Batch([], [], [], [])
        for job, start, stop, is_last in batch:
            step.tokens.extend(job.tokens[start:stop])
            step.positions.extend(range(start, stop))
            step.sequences.extend([job.seq] * (stop - start))
            if is_last:
                step.outputs.append(len(step.tokens) - 1)
        self._computing = frozenset(piece.job.number for piece in batch)
        try:
            return self._model.forward(step)
        finally:
            self._computing = frozenset()

    def _choose(self, batch: list[Slice], logits: F32, step_start: float) -> list[Event]:
        """Return the events of the requests whose next token can be chosen."""
        events = []
        row = 0
        for piece in batch:
            generation = self._open.get(piece.job.number)
            if generation is not None and piece.is_last:
                events.append(self._next(generation, logits[row], step_start))
            elif generation is not None:
                generation.add_time(step_start)
            row += piece.is_last
        return events

    def _next(self, generation: Generation, row: F32, step_start: float) -> Event:
        """Choose a request's next token; make room for it, or end the request."""
        event = generation.next(row[: self._n_tokens], self._n_slots, step_start)
        if event.finish is not None:
            self._close(generation)
        elif len(generation.job.tokens) > self._n_slots:
            n_keep = self._n_keep(generation.request, generation.n_prompt)
            self._scheduler.shift(generation.job, n_keep)
            generation.n_shifts += 1
        return event

    def _close(self, generation: Generation, *, keep_session: bool = True) -> None:
        del self._open[generation.number]
        self._scheduler.remove(generation.job, keep_session=keep_session)
