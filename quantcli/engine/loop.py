"""The engine: takes requests at any time, and with each step computes and chooses tokens for all.

engine = Engine(model, tokenizer)
number = engine.submit(Request(tokens))
while not engine.is_idle:
    for event in engine.step(): ...
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import asdict
from typing import Protocol

from quantcli.engine.draft_model import DraftModel
from quantcli.engine.drafting import Drafting
from quantcli.engine.generation import Generation
from quantcli.engine.grammar import Grammars
from quantcli.engine.options import EngineOptions, EngineStatus, Totals
from quantcli.engine.pace import Pace
from quantcli.engine.request import Event, FinishReason, Request, Stats
from quantcli.engine.sampling import F32, Chooser
from quantcli.engine.scheduler import Scheduler, Slice
from quantcli.engine.submission import Submissions
from quantcli.errors import Cancelled, ModelError, QueueFull
from quantcli.kvcache import Copy, KVCache
from quantcli.runtime.step import Batch
from quantcli.text import Tokenizer

Progress = Callable[[str, int, int], None]


class Model(Protocol):
    """What the engine needs of a model; `quantcli.runtime.model.Model`."""

    n_vocab: int
    context: int
    max_rows: int
    kv: KVCache
    shares_pages: bool

    def forward(self, batch: Batch) -> F32:
        """Compute a step; return logits f32 (len(batch.outputs), n_vocab), valid until the next."""
        ...

    def hidden(self, batch: Batch) -> F32:
        """Compute a step; return hidden states f32 (len(batch.outputs), d_model)."""
        ...

    def copy_slots(self, copies: list[Copy]) -> None:
        """Copy slots between pages of the cache, in order."""
        ...

    def cancel(self) -> None:
        """Make a forward that is running raise Cancelled soon; any thread may call it."""
        ...


class Engine:
    """Runs many requests on one model.

    `submit`, `cancel` and `status` may be called from any thread; everything else from one, the
    model's. What a request answers depends on nothing but the request.
    """

    def __init__(
        self,
        model: Model,
        tokenizer: Tokenizer,
        *,
        options: EngineOptions | None = None,
        draft: Model | None = None,
        sampler: str = "compiled",
        progress: Progress | None = None,
    ) -> None:
        """Start without requests.

        options    how requests share the engine
        draft      a small model of the same vocabulary (`check_vocabularies`) that guesses tokens;
                   its cache is the engine's alone
        sampler    "compiled", or "reference" for the sampling chain as it is written down
        progress   called with what is being done, how much is done and of how much
        """
        self.options = options = options or EngineOptions()
        self._model = model
        # Logits beyond the vocabulary are padding of the output matrix.
        self._n_tokens = min(model.n_vocab, tokenizer.n_vocab)
        self._n_slots = min(model.context, model.kv.n_pages * model.kv.page_size)
        if progress:
            progress("preparing the sampler for this CPU, slow only once", 0, 1)
        self._submissions = Submissions(
            tokenizer,
            Chooser(self._n_tokens, sampler),
            context=model.context,
            n_slots=self._n_slots,
            grammar=Grammars(tokenizer, self._n_tokens).matcher,
        )
        self._max_jobs = min(model.max_rows, model.kv.n_pages, options.max_jobs or model.max_rows)
        self._scheduler = Scheduler(
            model.kv,
            model.max_rows,
            self._max_jobs,
            is_sharing=options.prefix_caching and model.shares_pages,
            overcommit=options.overcommit,
        )
        self._pace = Pace()
        drafter = DraftModel(draft, self._n_tokens, sampler=sampler) if draft else None
        self._drafting = Drafting(self._pace, options, model.max_rows, drafter)
        self._totals = Totals()
        self._open: dict[int, Generation] = {}  # by the number of their job
        self._lock = threading.Lock()  # of the next three
        self._submitted: deque[Generation] = deque()  # since the last step
        self._cancelled: deque[int] = deque()
        self._computing: frozenset[int] = frozenset()  # requests, while in the model
        self._unclaimed: list[Event] = []  # of other requests, seen by `generate`

    @property
    def is_idle(self) -> bool:
        """Whether no request is open."""
        return not (self._submitted or self._open or self._unclaimed)

    def submit(self, request: Request) -> int:
        """Put a request in the queue and return its number, which its events bear.

        Raises UsageError for a prompt that is empty, too long or not of this vocabulary and for a
        grammar that cannot be followed, ResourceError for a prompt that the cache can never hold,
        and QueueFull if as many requests wait as may.
        """
        most = self.options.max_waiting
        n_open = len(self._open) + len(self._submitted)
        if most is not None and n_open >= most + self._max_jobs:
            raise QueueFull(f"{n_open - self._max_jobs} requests wait already. Try again later.")
        generations = self._submissions.generations(request)
        with self._lock:
            self._submitted.extend(generations)
        self._totals.n_requests += 1
        return generations[0].number

    def cancel(self, number: int) -> None:
        """End a request. The next `step` frees its slots and returns its choices' last events.

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
        start = time.perf_counter()
        events, self._unclaimed = self._unclaimed, []
        events += self._take_in()
        self._draft()
        if batch := self._scheduler.next_batch(self._n_prompt_rows()):
            events += self._run(batch, start)
        self._totals.busy_s += time.perf_counter() - start
        return events

    def generate(self, request: Request) -> Iterator[Event]:
        """Submit a request and yield its events; closing the iterator cancels it.

        Events of other requests are kept for `step`. Raises the request's error, if it has one.
        """
        number = self.submit(request)
        n_left = request.n
        try:
            while n_left:
                events = self.step()
                self._unclaimed += [event for event in events if event.request != number]
                for event in events:
                    if event.request == number:
                        if event.error is not None:
                            raise event.error
                        n_left -= event.finish is not None
                        yield event
        finally:
            self.cancel(number)
            self._unclaimed += [e for e in self._take_in() if e.request != number]

    def status(self) -> EngineStatus:
        """Return what the engine is doing and has done."""
        kv, totals = self._model.kv, self._totals
        return EngineStatus(
            n_running=len(self._scheduler.running),
            n_waiting=len(self._submitted) + self._scheduler.n_waiting,
            n_slots=kv.n_pages * kv.page_size,
            n_slots_used=(kv.n_pages - kv.n_free_pages) * kv.page_size,
            n_slots_cached=kv.n_cached_pages * kv.page_size,
            n_preempted=self._scheduler.n_preempted,
            **asdict(totals),
        )

    def speedup(self, stats: Stats) -> float | None:
        """Return how many times as fast as without drafts an answer came, None if it had none.

        Compares with steps of one row as they were measured, so it is meant for an answer that
        had the engine to itself.
        """
        one_row_s = self._pace.seconds(1)
        if not stats.n_drafted or not stats.decode_s or one_row_s is None:
            return None
        return (stats.n_generated - 1) * one_row_s / stats.decode_s

    def _take_in(self) -> list[Event]:
        """Take over what was submitted and cancelled; return the last events of the cancelled."""
        with self._lock:
            submitted, cancelled = list(self._submitted), set(self._cancelled)
            self._submitted.clear()
            self._cancelled.clear()
        for generation in submitted:
            self._open[generation.job.number] = generation
            self._scheduler.add(generation.job)
        events = []
        if cancelled:
            for ended in [g for g in self._open.values() if g.number in cancelled]:
                events.append(ended.end(FinishReason.CANCELLED))
                self._close(ended)
        return events

    def _draft(self) -> None:
        """Give drafts to those that generate, unless prompts fill the step."""
        running = self._scheduler.running
        if all(job.n_missing == 1 for job in running):
            self._drafting.prepare([self._open[job.number] for job in running], len(running))

    def _n_prompt_rows(self) -> int | None:
        target_s = self.options.target_s
        if target_s is None:
            return None
        n_others = len(self._scheduler.running)
        return self._pace.prompt_rows(n_others, target_s, self._model.max_rows)

    def _run(self, batch: list[Slice], start: float) -> list[Event]:
        """Compute slices of jobs and choose the next tokens of those that are complete."""
        for piece in batch:
            if self._open[piece.job.number].start(start):
                self._totals.n_prompt += len(piece.job.tokens)
                self._totals.n_reused += piece.job.n_reused
        try:
            try:
                rows = self._compute(batch)
            except Cancelled:  # nothing has changed: what is still wanted is computed once more
                return self._take_in()
            self._scheduler.advance(batch)
            events = self._take_in()  # of a request that was cancelled, nothing more is wanted
            for piece, part in zip(batch, rows, strict=True):
                if generation := self._open.get(piece.job.number):
                    take = self._pool if generation.request.pooling else self._take
                    events += take(generation, piece, part, start)
        except BaseException:
            # Whatever it was: the cache may hold half a step of these.
            for piece in batch:
                if generation := self._open.get(piece.job.number):
                    self._close(generation, is_sound=False)
            raise
        return events

    def _compute(self, batch: list[Slice]) -> list[F32]:
        """Return the logits, or hidden states, of each slice's rows that are wanted."""
        if copies := self._scheduler.take_copies():
            self._model.copy_slots(copies)
        generations = [self._open[piece.job.number] for piece in batch]
        pooling = [bool(generation.request.pooling) for generation in generations]
        self._computing = frozenset(generation.number for generation in generations)
        found: dict[Slice, F32] = {}
        start = time.perf_counter()
        try:
            # Logits last: they are valid until the next call.
            for is_pooled, compute in ((True, self._model.hidden), (False, self._model.forward)):
                some = [piece for piece, p in zip(batch, pooling, strict=True) if p == is_pooled]
                if some:
                    found |= _divided(some, compute(_rows_of(some)))
        finally:
            self._computing = frozenset()
        seconds = time.perf_counter() - start
        n_rows = sum(piece.stop - piece.start for piece in batch)
        self._pace.note(n_rows, seconds)
        self._totals.n_steps += 1
        self._totals.n_computed += n_rows
        self._totals.step_s += seconds
        return [found[piece] for piece in batch]

    def _take(
        self, generation: Generation, piece: Slice, logits: F32, step_start: float
    ) -> list[Event]:
        """Choose a choice's next tokens; make room for them, or end it."""
        counters, totals = generation.counters, self._totals
        totals.n_drafted += len(piece.job.draft)
        n_generated, n_accepted = counters.n_generated, counters.n_accepted
        rows = logits[:, : self._n_tokens]
        events = generation.take(piece, rows, self._n_slots, step_start)
        self._drafting.learn(generation)
        totals.n_generated += counters.n_generated - n_generated
        totals.n_accepted += counters.n_accepted - n_accepted
        if events and events[-1].finish is not None:
            # Others would read the same NaNs; they are to compute them and see for themselves.
            self._close(generation, is_sound=not isinstance(events[-1].error, ModelError))
        elif len(generation.job.tokens) > self._n_slots:
            n_keep = self._submissions.n_keep(generation.request, generation.n_prompt)
            self._scheduler.shift(generation.job, n_keep)
            generation.counters.n_shifts += 1
        return events

    def _pool(
        self, generation: Generation, piece: Slice, states: F32, step_start: float
    ) -> list[Event]:
        """Take hidden states to an embedding; return its only event when it is complete."""
        event = generation.pool(piece, states, step_start)
        if event is None:
            return []
        self._close(generation)
        return [event]

    def _close(self, generation: Generation, *, is_sound: bool = True) -> None:
        del self._open[generation.job.number]
        self._drafting.forget(generation.job.number)
        self._scheduler.remove(generation.job, is_sound=is_sound)


def _rows_of(batch: list[Slice]) -> Batch:
    """Return slices as the rows of a step."""
    step = Batch([], [], [], [])
    for job, start, stop, first_output, _ in batch:
        step.tokens.extend((job.tokens + job.draft if job.draft else job.tokens)[start:stop])
        step.positions.extend(range(start, stop))
        step.sequences.extend([job.seq] * (stop - start))
        n = len(step.tokens)
        step.outputs.extend(range(n - (stop - first_output), n))
    return step


def _divided(batch: list[Slice], rows: F32) -> dict[Slice, F32]:
    """Return each slice's part of a step's output rows."""
    parts, start = {}, 0
    for piece in batch:
        stop = start + piece.stop - piece.first_output
        parts[piece] = rows[start:stop]
        start = stop
    return parts
