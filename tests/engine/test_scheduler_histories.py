"""Random histories of the scheduler over a memory that remembers what was written where."""

from __future__ import annotations

import random
from dataclasses import dataclass

from hypothesis import given, settings
from hypothesis import strategies as st

from quantcli.engine.scheduler import Job, Scheduler, Slice
from quantcli.kvcache import Copy, create

CONTEXT = 100


class Memory:
    """Slots of pages, each with the token whose keys and values it would hold."""

    def __init__(self, n_pages: int, page_size: int) -> None:
        self.pages = [[-1] * page_size for _ in range(n_pages)]

    def copy(self, copies: list[Copy]) -> None:
        for source, target, n_slots in copies:
            assert source != target
            self.pages[target][:n_slots] = self.pages[source][:n_slots]

    def put(self, table: list[int], position: int, token: int) -> None:
        page, offset = divmod(position, len(self.pages[0]))
        self.pages[table[page]][offset] = token

    def read(self, table: list[int], stop: int) -> list[int]:
        tokens = [token for page in table for token in self.pages[page]]
        return tokens[:stop]


@dataclass
class Choices:
    """What a history draws at random."""

    kind: str
    n_slots: int
    max_rows: int
    overcommit: float
    is_sharing: bool


class History:
    """Jobs that come, run, end and are thrown out, each checked after every action."""

    def __init__(self, choices: Choices) -> None:
        self.cache = create(choices.kind, context=CONTEXT, n_sequences=4, n_slots=choices.n_slots)
        self.memory = Memory(self.cache.n_pages, self.cache.page_size)
        self.scheduler = Scheduler(
            self.cache,
            choices.max_rows,
            is_sharing=choices.is_sharing,
            overcommit=choices.overcommit,
        )
        self.max_rows = choices.max_rows
        self.most = min(CONTEXT, self.cache.n_pages * self.cache.page_size)
        self.random = random.Random(0)
        self.jobs: list[Job] = []
        self.n_added = 0

    def act(self, name: str, n_tokens: int, n_more: int, kind: int) -> None:
        if name == "step":
            self.step(n_prompt_rows=n_more or None)
        elif name == "add":
            self.add(n_tokens, n_more, kind)
        elif name == "shift" and (running := self.scheduler.running):
            job = running[n_tokens % len(running)]
            if len(job.tokens) > 2:
                self.scheduler.shift(job, n_more % (len(job.tokens) - 1))
        elif name in ("remove", "fail") and self.jobs:
            self.end(self.jobs[n_tokens % len(self.jobs)], is_sound=name == "remove")
        self.cache.check()

    def add(self, n_tokens: int, n_more: int, kind: int) -> None:
        n_tokens = min(n_tokens, self.most)
        tokens = [(i * i) % 7 if i < 40 else kind for i in range(n_tokens)]
        self.n_added += 1
        job = Job(
            self.n_added,
            tokens,
            min(self.most, n_tokens + n_more),
            priority=kind % 2,
            salt="ab"[kind == 3],
            all_logits=kind == 4,
        )
        self.jobs.append(job)
        self.scheduler.add(job)

    def end(self, job: Job, *, is_sound: bool = True) -> None:
        self.scheduler.remove(job, is_sound=is_sound)
        self.jobs.remove(job)

    def step(self, n_prompt_rows: int | None = None) -> None:
        for job in self.scheduler.running:
            n = min(job.n_slots - len(job.tokens), self.random.randrange(4))
            job.draft[:] = (
                [self.random.randrange(2) for _ in range(n)] if job.n_missing == 1 else []
            )
        batch = self.scheduler.next_batch(n_prompt_rows)
        assert sum(p.stop - p.start for p in batch) <= self.max_rows
        self.memory.copy(self.scheduler.take_copies())
        for piece in batch:
            self.compute(piece)
        self.scheduler.advance(batch)
        self.cache.check()
        for piece in batch:
            if piece.is_last:
                self.choose(piece.job)

    def compute(self, piece: Slice) -> None:
        """Write a slice's tokens; each must find the ones before it where they belong."""
        job = piece.job
        tokens = job.tokens + job.draft
        assert piece.start == job.n_computed < piece.stop <= len(tokens) <= job.n_slots
        table = list(self.cache.page_table(job.seq))
        assert piece.stop <= len(table) * self.cache.page_size
        for position in range(piece.start, piece.stop):
            self.memory.put(table, position, tokens[position])
        assert self.memory.read(table, piece.stop) == tokens[: piece.stop], (job, table)

    def choose(self, job: Job) -> None:
        """Choose tokens as the engine does: as long as they equal the draft, and one more."""
        draft, n_right = list(job.draft), 0
        for guess in [*draft, None]:
            if len(job.tokens) == job.n_slots:
                job.accept(n_right)
                self.end(job)
                return
            job.tokens.append(self.random.randrange(2))
            if job.tokens[-1] != guess:
                break
            n_right += 1
        job.accept(n_right)


ACTIONS = st.tuples(
    st.sampled_from(["add", "add", "step", "step", "step", "step", "remove", "fail", "shift"]),
    st.integers(1, 95),
    st.integers(0, 60),
    st.integers(0, 4),
)
CHOICES = st.builds(
    Choices,
    kind=st.sampled_from(["paged", "paged", "contiguous"]),
    n_slots=st.integers(128, 500),
    max_rows=st.integers(1, 70),
    overcommit=st.sampled_from([1.0, 1.5, 4.0]),
    is_sharing=st.sampled_from([True, True, False]),
)


@given(choices=CHOICES, actions=st.lists(ACTIONS, max_size=50))
@settings(max_examples=200, deadline=None)
def test_any_history_ends_with_every_job_done_and_every_page_free(
    choices: Choices, actions: list[tuple[str, int, int, int]]
) -> None:
    history = History(choices)
    for action in actions:
        history.act(*action)
    for _ in range(10_000):
        if history.scheduler.is_idle:
            break
        history.step()
    assert not history.jobs
    assert history.cache.n_free_pages == history.cache.n_pages
    if choices.overcommit == 1.0:
        assert history.scheduler.n_preempted == 0


@given(actions=st.lists(ACTIONS, max_size=30))
@settings(max_examples=30, deadline=None)
def test_the_most_important_job_never_makes_room(
    actions: list[tuple[str, int, int, int]],
) -> None:
    history = History(Choices("paged", 128, 64, 4.0, True))
    for action in actions:
        running = history.scheduler.running
        first = min(running, key=lambda job: job.rank) if running else None
        before = first.n_preempted if first else 0
        history.act(*action)
        assert first is None or first.n_preempted == before
