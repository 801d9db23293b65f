"""Scheduling on ints alone: no model, no tokens' meaning."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quantcli.engine.scheduler import Job, Scheduler, Slice, common_prefix, drop_older_half
from quantcli.kvcache import KVCache, create


def job(number: int, n_tokens: int, n_slots: int = 0, session: int | None = None) -> Job:
    tokens = [100 * number + i for i in range(n_tokens)]
    return Job(number, tokens, max(n_tokens, n_slots), session)


def paged(n_pages: int = 100, context: int = 1600) -> KVCache:
    cache = create("paged", context=context, n_sequences=1, n_slots=n_pages * 64)
    assert cache.n_pages == n_pages
    return cache


def shape(batch: list[Slice]) -> list[tuple[int, int, int, bool]]:
    return [(p.job.number, p.start, p.stop, p.is_last) for p in batch]


def test_prompts_are_cut_to_the_rows_of_a_step() -> None:
    scheduler = Scheduler(paged(), 8)
    scheduler.add(job(1, 20))
    shapes = []
    for _ in range(3):
        batch = scheduler.next_batch()
        shapes += shape(batch)
        scheduler.advance(batch)
    assert shapes == [(1, 0, 8, False), (1, 8, 16, False), (1, 16, 20, True)]


def test_short_prompts_share_a_step_oldest_first() -> None:
    scheduler = Scheduler(paged(), 8)
    for number, n_tokens in ((1, 3), (2, 4), (3, 5)):
        scheduler.add(job(number, n_tokens))
    assert shape(scheduler.next_batch()) == [(1, 0, 3, True), (2, 0, 4, True), (3, 0, 1, False)]


def test_a_long_prompt_does_not_stop_those_that_generate() -> None:
    scheduler = Scheduler(paged(), 8)
    jobs = [job(1, 2, 20), job(2, 2, 20)]
    for generating in jobs:
        scheduler.add(generating)
    scheduler.advance(scheduler.next_batch())
    for generating in jobs:
        generating.tokens.append(7)
    scheduler.add(job(3, 100))
    for step in range(3):
        batch = scheduler.next_batch()
        assert shape(batch) == [
            (1, 2 + step, 3 + step, True),
            (2, 2 + step, 3 + step, True),
            (3, 6 * step, 6 * step + 6, False),
        ]
        scheduler.advance(batch)
        for generating in jobs:
            generating.tokens.append(7)


def test_a_job_that_lacks_one_token_passes_an_older_prompt() -> None:
    scheduler = Scheduler(paged(), 8)
    long, short = job(1, 100), job(2, 1, 10)
    scheduler.add(long)
    scheduler.advance(scheduler.next_batch())
    scheduler.add(short)
    assert shape(scheduler.next_batch()) == [(2, 0, 1, True), (1, 8, 15, False)]


def test_never_more_jobs_than_rows_or_than_allowed() -> None:
    for max_rows, max_jobs, n_running in ((3, None, 3), (8, 2, 2), (2, 5, 2)):
        scheduler = Scheduler(paged(), max_rows, max_jobs)
        for number in range(6):
            scheduler.add(job(number, 1, 5))
        batch = scheduler.next_batch()
        assert [p.job.number for p in batch] == list(range(n_running))


def test_a_job_waits_until_all_its_slots_are_free_and_nobody_passes_it() -> None:
    scheduler = Scheduler(paged(n_pages=3), 64)
    first, big, small = job(1, 10, 100), job(2, 10, 160), job(3, 10, 20)
    for new in (first, big, small):
        scheduler.add(new)
    assert [p.job.number for p in scheduler.next_batch()] == [1]
    scheduler.remove(first)
    assert [p.job.number for p in scheduler.next_batch()] == [2]
    scheduler.remove(big)
    assert [p.job.number for p in scheduler.next_batch()] == [3]


def test_a_removed_job_leaves_no_page_wherever_it_was() -> None:
    cache = paged()
    scheduler = Scheduler(cache, 8, 2)
    jobs = [job(number, 20, 40) for number in range(4)]
    for new in jobs:
        scheduler.add(new)
    batch = scheduler.next_batch()
    scheduler.advance(batch)
    for old in jobs:  # half a prompt, none of it, and two that wait
        scheduler.remove(old)
    assert scheduler.is_idle
    assert scheduler.next_batch() == []
    assert cache.n_free_pages == cache.n_pages


def test_sequences_are_numbered_lowest_first() -> None:
    scheduler = Scheduler(paged(), 8)
    jobs = [job(number, 1) for number in range(3)]
    for new in jobs:
        scheduler.add(new)
    scheduler.next_batch()
    assert [old.seq for old in jobs] == [0, 1, 2]
    scheduler.remove(jobs[1])
    later = job(9, 1)
    scheduler.add(later)
    scheduler.next_batch()
    assert later.seq == 1


# Sessions ----------------------------------------------------------------------------------------


def run(scheduler: Scheduler, new: Job) -> None:
    scheduler.add(new)
    while new.n_missing or new.seq < 0:
        scheduler.advance(scheduler.next_batch())


def turn(tokens: list[int], session: int | None = 1, n_slots: int = 200) -> Job:
    return Job(0, list(tokens), n_slots, session)


def test_a_session_computes_only_what_is_new() -> None:
    cache = paged()
    scheduler = Scheduler(cache, 64)
    first = turn([1, 2, 3])
    run(scheduler, first)
    first.tokens += [4, 5]  # the last token chosen is never computed
    scheduler.advance([Slice(first, 3, 4, False)])
    scheduler.remove(first)
    second = turn([1, 2, 3, 4, 5, 6])
    scheduler.add(second)
    assert shape(scheduler.next_batch()) == [(0, 4, 6, True)]
    assert (second.n_reused, second.seq) == (4, first.seq)


@pytest.mark.parametrize(
    ("then", "n_reused"),
    [
        ([1, 2, 3], 2),  # the last token is computed again, for its logits
        ([1, 2], 1),
        ([1, 2, 9, 9], 2),
        ([9], 0),
        ([1, 2, 3, 4], 3),
    ],
)
def test_the_longest_common_prefix_is_reused(then: list[int], n_reused: int) -> None:
    cache = paged()
    scheduler = Scheduler(cache, 64)
    first, second = turn([1, 2, 3]), turn(then)
    run(scheduler, first)
    scheduler.remove(first)
    run(scheduler, second)
    assert second.n_reused == n_reused
    cache.check()


def test_jobs_of_one_session_run_one_after_the_other_and_others_pass_them() -> None:
    scheduler = Scheduler(paged(), 64)
    a, b, c = (turn([1, 2]), turn([1, 2, 3]), turn([5, 6], session=None))
    for new in (a, b, c):
        scheduler.add(new)
    assert [p.job for p in scheduler.next_batch()] == [a, c]
    scheduler.advance([Slice(a, 0, 2, True), Slice(c, 0, 2, True)])
    scheduler.remove(a)
    scheduler.remove(c)
    assert [p.job for p in scheduler.next_batch()] == [b]
    assert b.n_reused == 2


def test_an_idle_session_gives_back_what_it_does_not_use() -> None:
    cache = paged(n_pages=10)
    scheduler = Scheduler(cache, 64)
    first = turn([1, 2, 3], n_slots=640)
    run(scheduler, first)
    assert cache.n_free_pages == 0
    scheduler.remove(first)
    assert cache.n_free_pages == 9


def test_a_sessions_shorter_next_job_holds_no_more_pages_than_it_needs() -> None:
    cache = paged(n_pages=10)
    scheduler = Scheduler(cache, 640)
    first, second = turn([1] * 600, n_slots=640), turn([1, 2], n_slots=64)
    run(scheduler, first)
    scheduler.remove(first)
    run(scheduler, second)
    assert cache.n_free_pages == 9


def test_the_session_unused_for_longest_is_put_out_when_pages_run_short() -> None:
    cache = paged(n_pages=3)
    scheduler = Scheduler(cache, 64)
    for session in (1, 2, 3):
        new = turn([session, 8], session, n_slots=10)
        run(scheduler, new)
        scheduler.remove(new)
    again = turn([1, 8, 9], 1, n_slots=10)
    run(scheduler, again)
    scheduler.remove(again)
    other = turn([7], None, n_slots=10)
    run(scheduler, other)  # puts session 2 out
    scheduler.remove(other)
    for session, n_reused in ((3, 2), (1, 2), (2, 0)):
        new = turn([session, 8, 9], session, n_slots=10)
        run(scheduler, new)
        assert new.n_reused == n_reused
        scheduler.remove(new)
    cache.check()


def test_a_session_may_grow_into_its_own_pages() -> None:
    cache = create("contiguous", context=100, n_sequences=1)
    scheduler = Scheduler(cache, 64)
    for tokens in ([1, 2, 3], [1, 2, 3, 4], [7, 7]):
        new = turn(tokens, n_slots=100)
        run(scheduler, new)
        scheduler.remove(new)
    cache.check()


def test_a_session_closed_at_rest_or_at_work_leaves_no_page() -> None:
    cache = paged()
    scheduler = Scheduler(cache, 64)
    first = turn([1, 2, 3])
    run(scheduler, first)
    scheduler.close_session(1)
    second = turn([1, 2, 3])  # a new session of the same number, while the old one still runs
    run(scheduler, second)
    assert (second.n_reused, second.seq == first.seq) == (0, False)
    scheduler.remove(first)
    scheduler.remove(second)
    scheduler.close_session(1)
    scheduler.close_session(5)
    assert cache.n_free_pages == cache.n_pages


def test_a_failed_job_takes_its_session_with_it() -> None:
    cache = paged()
    scheduler = Scheduler(cache, 64)
    first = turn([1, 2, 3])
    run(scheduler, first)
    scheduler.remove(first, keep_session=False)
    assert cache.n_free_pages == cache.n_pages


def test_a_job_cancelled_in_its_prompt_leaves_what_was_computed() -> None:
    scheduler = Scheduler(paged(), 2)
    first = turn([1, 2, 3, 4, 5])
    scheduler.add(first)
    scheduler.advance(scheduler.next_batch())
    scheduler.remove(first)
    second = turn([1, 2, 3, 4, 5])
    run(scheduler, second)
    assert second.n_reused == 2


# Shifting ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("n_keep", "left", "n_computed"),
    [(0, [3, 4, 5], 0), (1, [0, 3, 4, 5], 1), (4, [0, 1, 2, 3, 5], 4), (5, [0, 1, 2, 3, 4], 5)],
)
def test_a_shift_drops_the_older_half_behind_what_is_kept(
    n_keep: int, left: list[int], n_computed: int
) -> None:
    scheduler = Scheduler(paged(), 64)
    shifted = Job(1, [0, 1, 2, 3, 4, 5], 6)
    run(scheduler, shifted)
    scheduler.shift(shifted, n_keep)
    assert (shifted.tokens, shifted.n_computed) == (left, n_computed)


def test_common_prefix() -> None:
    assert common_prefix([], [1]) == 0
    assert common_prefix([1, 2], [1, 2, 3]) == 2
    assert common_prefix([1, 2, 4], [1, 2, 3]) == 2


def test_drop_older_half_always_drops_one() -> None:
    tokens = [1, 2]
    drop_older_half(tokens, 1)
    assert tokens == [1]


# Random histories --------------------------------------------------------------------------------


class History:
    """Jobs that come, run, end and are thrown out, each checked after every action."""

    def __init__(self, kind: str, n_slots: int, max_rows: int) -> None:
        self.cache = create(kind, context=100, n_sequences=4, n_slots=n_slots)
        self.scheduler = Scheduler(self.cache, max_rows)
        self.max_rows = max_rows
        self.jobs: list[Job] = []

    def act(self, name: str, n_tokens: int, n_more: int, session: int | None) -> None:
        if name == "step":
            self.step()
        elif name == "add":
            tokens = [i % 5 for i in range(n_tokens)]
            self.jobs.append(Job(0, tokens, min(100, n_tokens + n_more), session))
            self.scheduler.add(self.jobs[-1])
        elif name == "close":
            self.scheduler.close_session(session or 0)
        elif self.jobs:
            old = self.jobs.pop(n_tokens % len(self.jobs))
            self.scheduler.remove(old, keep_session=name == "remove")
        self.cache.check()

    def step(self) -> None:
        batch = self.scheduler.next_batch()
        assert sum(p.stop - p.start for p in batch) <= self.max_rows
        for piece in batch:
            assert piece.start == piece.job.n_computed < piece.stop <= len(piece.job.tokens)
            n_slots = len(self.cache.page_table(piece.job.seq)) * self.cache.page_size
            assert piece.stop <= n_slots
        self.scheduler.advance(batch)
        for piece in batch:
            if piece.is_last and len(piece.job.tokens) < piece.job.n_slots:
                piece.job.tokens.append(3)
            elif piece.is_last:
                self.scheduler.remove(piece.job)
                self.jobs.remove(piece.job)


ACTIONS = st.tuples(
    st.sampled_from(["add", "add", "step", "step", "step", "remove", "fail", "close"]),
    st.integers(1, 90),
    st.integers(0, 40),
    st.sampled_from([None, None, 1, 2, 3]),
)


@given(
    kind=st.sampled_from(["contiguous", "paged"]),
    n_slots=st.integers(128, 500),
    max_rows=st.integers(1, 12),
    actions=st.lists(ACTIONS, max_size=60),
)
@settings(max_examples=150, deadline=None)
def test_any_history_ends_with_every_job_done_and_every_page_free(
    kind: str, n_slots: int, max_rows: int, actions: list[tuple[str, int, int, int | None]]
) -> None:
    history = History(kind, n_slots, max_rows)
    for action in actions:
        history.act(*action)
    for _ in range(20_000):
        if history.scheduler.is_idle:
            break
        history.step()
    assert not history.jobs
    for session in (1, 2, 3):
        history.scheduler.close_session(session)
    assert history.cache.n_free_pages == history.cache.n_pages
