"""Who runs next: requests, rows and pages as whole numbers. No arrays, no model.

One rule covers prompts, decoding, drafts, shifted contexts and jobs that had to make room: a job's
tokens and draft are computed until the cache holds all of them. In each step the jobs that lack one
token go first, so that a long prompt never stops those that are generating; then prompts share one
chunk, most important first, so that whoever begins as another does finds that computed.

A job is let in when the cache has room for all it may ever need. With `overcommit` above 1 more are
let in; when pages run out, the least important job gives its own back, waits, and is computed again
when there is room for all it needs. The most important job never gives way, so one always ends.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import count
from typing import NamedTuple

from quantcli.kvcache import Copy, Found, KVCache
from quantcli.kvcache.pages import common_prefix

# Rows a step of a prompt whose logits are all wanted: they take 4 bytes a token of the vocabulary.
MAX_LOGIT_ROWS = 64
_NOTHING = Found(0, (), (), -1, 0, 0)


@dataclass(slots=True, eq=False)
class Job:
    """A choice of a request as the scheduler sees it.

    [0, n_computed)            tokens whose keys and values are in the cache
    [n_computed, len(tokens))  tokens to compute
    then draft                 guesses of the tokens to come, computed to be checked
    up to n_slots              room for more

    number      in order of submission, which decides among jobs of one priority
    priority    lower goes first
    salt        only jobs with the same salt share what is cached
    all_logits  the logits of every token are wanted, so that none is taken from the cache
    """

    number: int
    tokens: list[int]
    n_slots: int
    priority: int = 0
    salt: str = ""
    all_logits: bool = False
    draft: list[int] = field(default_factory=list)
    seq: int = -1  # its sequence in the cache while it runs
    n_computed: int = 0
    n_reused: int = 0  # tokens of the prompt found in the cache
    n_preempted: int = 0
    n_described: int = 0  # tokens of whole pages that others can find

    @property
    def n_missing(self) -> int:
        """Tokens to compute, the draft not counted."""
        return len(self.tokens) - self.n_computed

    @property
    def rank(self) -> tuple[int, int]:
        """Return what jobs are ordered by: the most important is least."""
        return self.priority, self.number

    def accept(self, n_right: int) -> None:
        """Note that the draft's first n_right tokens, now among the tokens, are computed.

        The rest of the draft is dropped.
        """
        self.n_computed += n_right
        self.draft.clear()
        assert self.n_computed <= len(self.tokens), self


class Slice(NamedTuple):
    """Tokens [start, stop) of a job and its draft, to be computed in one step.

    first_output   the logits of tokens [first_output, stop) are wanted
    is_last        nothing is missing after it, so that the next token can be chosen
    """

    job: Job
    start: int
    stop: int
    first_output: int
    is_last: bool


class Scheduler:
    """Lets jobs in, divides the rows of each step, and says who must make room."""

    def __init__(
        self,
        kv: KVCache,
        max_rows: int,
        max_jobs: int | None = None,
        *,
        is_sharing: bool = True,
        overcommit: float = 1.0,
    ) -> None:
        """Start without jobs, on a cache without open sequences.

        max_rows    most rows of a step
        max_jobs    most jobs that run at once; each needs a row a step, so never above max_rows
        is_sharing  let jobs use what is cached
        overcommit  slots promised, as a multiple of the cache
        """
        assert max_rows > 0, max_rows
        self.n_preempted = 0
        self._kv = kv
        self._max_rows = max_rows
        self._max_jobs = min(max_rows, max_jobs or max_rows)
        self._is_sharing = is_sharing
        self._n_extra = int((overcommit - 1) * kv.n_pages)  # pages promised beyond those there are
        self._waiting: list[Job] = []  # both by rank
        self._running: list[Job] = []
        self._seqs: set[int] = set()  # in use
        self._batch: dict[Job, Slice] = {}  # while it is put together
        self._copies: list[Copy] = []

    @property
    def is_idle(self) -> bool:
        """Whether there is nothing to compute."""
        return not self._waiting and not self._running

    @property
    def running(self) -> tuple[Job, ...]:
        """The jobs that hold slots, most important first."""
        return tuple(self._running)

    @property
    def n_waiting(self) -> int:
        """How many jobs wait for slots."""
        return len(self._waiting)

    def add(self, job: Job) -> None:
        """Put a job in the queue, which is ordered by priority, then number."""
        assert 0 < len(job.tokens) <= job.n_slots, (len(job.tokens), job.n_slots)
        insort(self._waiting, job, key=lambda j: j.rank)

    def next_batch(self, n_prompt_rows: int | None = None) -> list[Slice]:
        """Return what to compute next, at most max_rows rows; nothing if there are no jobs.

        n_prompt_rows   most rows of prompts while somebody is generating; None: as many as fit
        """
        self._batch = {}
        n_left = self._max_rows
        decoding = [job for job in self._running if job.n_missing == 1]
        n_preempted = self.n_preempted
        for n_done, job in enumerate(decoding, 1):
            if job.seq < 0:  # it has made room for one before it
                continue
            del job.draft[max(0, n_left - 1 - (len(decoding) - n_done)) :]
            n_left -= self._schedule(job, 1 + len(job.draft))
        n_chunk = n_left
        if self._batch and n_prompt_rows is not None:
            n_chunk = min(n_left, max(1, n_prompt_rows))
        for job in [job for job in self._running if job.n_missing > 1]:
            if job.seq >= 0 and n_chunk > 0:
                n_chunk -= self._schedule(job, self._n_rows(job, n_chunk))
        while n_chunk > 0 and self.n_preempted == n_preempted and self._admit():
            job = self._last_admitted
            n_chunk -= self._schedule(job, self._n_rows(job, n_chunk))
        return list(self._batch.values())

    def take_copies(self) -> list[Copy]:
        """Return the copies that must be made, in order, before the batch is computed."""
        copies, self._copies = self._copies, []
        return copies

    def advance(self, batch: Iterable[Slice]) -> None:
        """Note that the slices are computed. Drafts count only once they are accepted."""
        for piece in batch:
            job = piece.job
            assert piece.start == job.n_computed, piece
            job.n_computed = min(piece.stop, len(job.tokens))
            is_prompts_end = piece.is_last and piece.stop - piece.start > 1 + len(job.draft)
            self._describe(job, whole_pages=not is_prompts_end)

    def shift(self, job: Job, n_keep: int) -> None:
        """Drop the older half of a running job's tokens behind the first n_keep.

        What moves is computed again at its new place.
        """
        self._describe(job, whole_pages=False)
        self._kv.free(job.seq)
        drop_older_half(job.tokens, n_keep)
        self._open(job, self._find(job, job.tokens[:n_keep]))

    def remove(self, job: Job, *, is_sound: bool = True) -> None:
        """Take a job out, waiting or running, and give its pages back.

        is_sound  what it computed may be found by others
        """
        if job in self._waiting:
            self._waiting.remove(job)
            return
        self._running.remove(job)
        if not is_sound:
            self._kv.forget(job.seq)
            job.n_computed = 0
        self._close(job)

    def _n_rows(self, job: Job, n_chunk: int) -> int:
        n_rows = min(job.n_missing, n_chunk)
        return min(n_rows, MAX_LOGIT_ROWS) if job.all_logits else n_rows

    def _schedule(self, job: Job, n_rows: int) -> int:
        """Make room for a job's next rows, whoever must go, and return how many it gets."""
        stop = job.n_computed + n_rows
        while not self._kv.can_reserve(job.seq, stop):
            victim = self._running[-1]
            self._preempt(victim)
            if victim is job:
                return 0
        self._kv.reserve(job.seq, stop)
        first_output = 0 if job.all_logits else len(job.tokens) - 1
        first_output = min(stop, max(job.n_computed, first_output))
        is_last = stop >= len(job.tokens)
        self._batch[job] = Slice(job, job.n_computed, stop, first_output, is_last)
        return n_rows

    def _preempt(self, job: Job) -> None:
        """Put the least important job back in the queue; its rows of this step are not made up."""
        self._batch.pop(job, None)
        self._running.remove(job)
        self._close(job)
        job.n_computed = 0
        job.draft.clear()
        job.n_preempted += 1
        self.n_preempted += 1
        self.add(job)

    def _admit(self) -> bool:
        """Let the first waiting job in and return True, unless it has to wait."""
        if not self._waiting or len(self._running) >= self._max_jobs:
            return False
        job, kv = self._waiting[0], self._kv
        n_extra = 0 if job.n_preempted else self._n_extra
        # What the running jobs may still take, of the pages that are free.
        n_promised = sum(
            kv.n_pages_for(j.n_slots) - len(kv.page_table(j.seq)) for j in self._running
        )
        n_room = kv.n_free_pages + n_extra - n_promised
        n_pages, n_now = kv.n_pages_for(job.n_slots), kv.n_pages_for(len(job.tokens))
        if n_pages - n_now > n_room:  # spares looking for the prompt
            assert self._running, f"{job.n_slots} slots never fit"
            return False
        found = self._find(job, job.tokens[:-1])  # the last is computed for its logits
        if self._is_coming(job, found.n_tokens):
            return False
        if n_pages - found.n_held > n_room or n_now - found.n_held > kv.n_free_pages:
            assert self._running, f"{job.n_slots} slots never fit"
            return False
        self._waiting.pop(0)
        job.seq = next(seq for seq in count() if seq not in self._seqs)
        self._seqs.add(job.seq)
        self._open(job, found)
        if not job.n_preempted:
            job.n_reused = job.n_computed
        insort(self._running, job, key=lambda j: j.rank)
        self._last_admitted = job
        return True

    def _is_coming(self, job: Job, n_found: int) -> bool:
        """Return whether a running job computes more of the same prompt than is there yet."""
        if job.all_logits or not self._is_sharing:
            return False
        for other in self._running:
            if other.n_missing < 2 or other.salt != job.salt:
                continue
            n = common_prefix(other.tokens, job.tokens[:-1])
            if n < len(other.tokens) - 1:  # only its whole pages can be found before its end
                n -= n % self._kv.page_size
            if n > n_found:
                return True
        return False

    def _find(self, job: Job, tokens: list[int]) -> Found:
        if job.all_logits or not self._is_sharing:
            return _NOTHING
        return self._kv.find(tokens, job.salt)

    def _open(self, job: Job, found: Found) -> None:
        """Open a job's sequence with what was found of it."""
        if found.n_tokens:
            copy = self._kv.open(job.seq, found)
            if copy is not None:
                self._copies.append(copy)
        else:
            self._kv.reserve(job.seq, 0)
        job.n_computed = found.n_tokens
        job.n_described = 0

    def _close(self, job: Job) -> None:
        """Free a job's sequence, which others may then find."""
        self._describe(job, whole_pages=False)
        self._kv.free(job.seq)
        self._seqs.discard(job.seq)
        job.seq = -1

    def _describe(self, job: Job, *, whole_pages: bool) -> None:
        """Let others find what a job has computed; what of a page is not full, only if asked."""
        if not self._is_sharing:
            return
        size = self._kv.page_size
        n = job.n_computed // size * size if whole_pages else job.n_computed
        if n > job.n_described:
            self._kv.describe(job.seq, job.tokens[:n], job.salt)
            job.n_described = n


def drop_older_half(tokens: list[int], n_keep: int) -> None:
    """Delete the older half, at least one, of the tokens behind the first n_keep."""
    n_drop = max(1, (len(tokens) - n_keep) // 2)
    del tokens[n_keep : n_keep + n_drop]
