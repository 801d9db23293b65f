"""Who runs next: requests, rows and pages as whole numbers. No arrays, no model.

One rule covers prompts, decoding and shifted contexts: a job's tokens are computed until the cache
holds all of them, at most `max_rows` rows a step. Jobs that lack one token go first, so that a
long prompt never stops those that are generating; prompts share the rows that are left, oldest
first.

A job is let in when the cache has room for all it may ever need, so none is put out again. Jobs of
one session share a sequence, one after the other; an idle session keeps its pages until somebody
needs them.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from itertools import count
from typing import NamedTuple

from quantcli.kvcache import KVCache


@dataclass(slots=True, eq=False)
class Job:
    """A request as the scheduler sees it.

    [0, n_computed)            tokens whose keys and values are in the cache
    [n_computed, len(tokens))  tokens to compute
    [len(tokens), n_slots)     room that is reserved for tokens to come
    """

    number: int
    tokens: list[int]
    n_slots: int
    session: int | None = None
    seq: int = -1  # its sequence in the cache while it runs
    n_computed: int = 0
    n_reused: int = 0  # tokens found in the session's sequence

    @property
    def n_missing(self) -> int:
        """Tokens to compute."""
        return len(self.tokens) - self.n_computed


class Slice(NamedTuple):
    """Tokens [start, stop) of a job, to be computed in one step.

    is_last   nothing is missing after it, so that the logits of its last row choose a token
    """

    job: Job
    start: int
    stop: int
    is_last: bool


@dataclass(slots=True)
class _Session:
    seq: int
    tokens: list[int] = field(default_factory=list)  # whose keys and values are in the cache
    is_busy: bool = False


class Scheduler:
    """Lets jobs in, divides the rows of each step, and keeps the sequences of sessions."""

    def __init__(self, kv: KVCache, max_rows: int, max_jobs: int | None = None) -> None:
        """Start without jobs, on an empty cache.

        max_rows   most rows of a step
        max_jobs   most jobs that run at once; each needs a row a step, so never more than max_rows
        """
        assert max_rows > 0, max_rows
        self._kv = kv
        self._max_rows = max_rows
        self._max_jobs = min(max_rows, max_jobs or max_rows)
        self._waiting: deque[Job] = deque()
        self._running: list[Job] = []  # in the order they were let in
        self._sessions: dict[int, _Session] = {}  # least recently used first
        self._seqs: set[int] = set()  # in use

    @property
    def is_idle(self) -> bool:
        """Whether there is nothing to compute."""
        return not self._waiting and not self._running

    def add(self, job: Job) -> None:
        """Put a job at the end of the queue."""
        assert 0 < len(job.tokens) <= job.n_slots, (len(job.tokens), job.n_slots)
        self._waiting.append(job)

    def next_batch(self) -> list[Slice]:
        """Let jobs in and return the slices to compute now; call `advance` when that is done."""
        self._admit()
        n_left = self._max_rows
        batch = []
        for job in sorted(self._running, key=lambda job: job.n_missing > 1):  # a stable sort
            n_rows = min(job.n_missing, n_left)
            if n_rows:
                stop = job.n_computed + n_rows
                batch.append(Slice(job, job.n_computed, stop, stop == len(job.tokens)))
                n_left -= n_rows
        assert batch or not self._running, self._running
        return batch

    def advance(self, batch: list[Slice]) -> None:
        """Note that the slices are computed."""
        for piece in batch:
            assert piece.start == piece.job.n_computed, piece
            piece.job.n_computed = piece.stop

    def shift(self, job: Job, n_keep: int) -> None:
        """Drop the older half of a running job's tokens behind the first n_keep.

        What moves is computed again at its new place.
        """
        drop_older_half(job.tokens, n_keep)
        job.n_computed = min(job.n_computed, n_keep)

    def remove(self, job: Job, *, keep_session: bool = True) -> None:
        """Take a job out, waiting or running, and give its pages back.

        keep_session  leave the computed tokens of a session for its next job
        """
        if job in self._waiting:
            self._waiting.remove(job)
            return
        self._running.remove(job)
        session = None if job.session is None else self._sessions.get(job.session)
        if session is None or session.seq != job.seq:  # it has none, or it was closed
            self._free(job.seq)
            return
        del self._sessions[job.session]  # type: ignore[arg-type]
        if not keep_session or not job.n_computed:
            self._free(job.seq)
            return
        self._kv.truncate(job.seq, job.n_computed)
        kept = _Session(job.seq, job.tokens[: job.n_computed])
        self._sessions[job.session] = kept  # type: ignore[index]  # the most recently used is last

    def close_session(self, number: int) -> None:
        """Forget a session; if a job of it is running, the session ends with it."""
        session = self._sessions.get(number)
        if session is None:
            return
        del self._sessions[number]
        if not session.is_busy:
            self._free(session.seq)

    def _admit(self) -> None:
        """Let waiting jobs in, in order; only one whose session is busy is passed over."""
        for job in list(self._waiting):
            if len(self._running) == self._max_jobs:
                return
            session = None if job.session is None else self._sessions.get(job.session)
            if session is not None and session.is_busy:
                continue
            if not self._open(job, session):
                assert self._running, f"{job.n_slots} slots never fit"
                return
            self._waiting.remove(job)
            self._running.append(job)

    def _open(self, job: Job, session: _Session | None) -> bool:
        """Give a job a sequence with all its slots; return False if the cache lacks pages now."""
        n_reused = 0
        if session is not None:
            # The last token is computed in any case: its logits are needed.
            n_reused = common_prefix(session.tokens, job.tokens[:-1])
            del session.tokens[n_reused:]
            self._kv.truncate(session.seq, n_reused)
        seq = session.seq if session is not None else self._unused_seq()
        while not self._kv.can_reserve(seq, job.n_slots):
            if not self._evict_session(but=session):
                return False
        self._kv.reserve(seq, job.n_slots)
        self._seqs.add(seq)
        job.seq, job.n_computed, job.n_reused = seq, n_reused, n_reused
        if job.session is not None:
            self._sessions.pop(job.session, None)
            self._sessions[job.session] = _Session(seq, is_busy=True)
        return True

    def _evict_session(self, but: _Session | None) -> bool:
        """Free the least recently used idle session; return whether there was one."""
        for number, session in self._sessions.items():
            if not session.is_busy and session is not but:
                del self._sessions[number]
                self._free(session.seq)
                return True
        return False

    def _free(self, seq: int) -> None:
        self._kv.free(seq)
        self._seqs.discard(seq)

    def _unused_seq(self) -> int:
        return next(seq for seq in count() if seq not in self._seqs)


def drop_older_half(tokens: list[int], n_keep: int) -> None:
    """Delete the older half, at least one, of the tokens behind the first n_keep."""
    n_drop = max(1, (len(tokens) - n_keep) // 2)
    del tokens[n_keep : n_keep + n_drop]


def common_prefix(a: list[int], b: list[int]) -> int:
    """Return how many tokens two lists have in common at the start."""
    return next(
        (i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b))
    )
