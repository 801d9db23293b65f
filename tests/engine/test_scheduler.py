"""Scheduling on ints alone: no model, no tokens' meaning."""

from __future__ import annotations

import pytest

from quantcli.engine.scheduler import MAX_LOGIT_ROWS, Job, Scheduler, Slice
from quantcli.kvcache import KVCache, create


def job(number: int, n_tokens: int, n_slots: int = 0, **more: object) -> Job:
    tokens = [100 * number + i for i in range(n_tokens)]
    return Job(number, tokens, max(n_tokens, n_slots), **more)  # type: ignore[arg-type]


def paged(n_pages: int = 100, context: int = 1600) -> KVCache:
    cache = create("paged", context=context, n_sequences=1, n_slots=n_pages * 64)
    assert cache.n_pages == n_pages
    return cache


def shape(batch: list[Slice]) -> list[tuple[int, int, int, bool]]:
    return [(p.job.number, p.start, p.stop, p.is_last) for p in batch]


def numbers(batch: list[Slice]) -> list[int]:
    return [p.job.number for p in batch]


def step(scheduler: Scheduler, n_prompt_rows: int | None = None) -> list[Slice]:
    """Compute a batch; whoever has all its tokens computed chooses token 7."""
    batch = scheduler.next_batch(n_prompt_rows)
    scheduler.take_copies()
    scheduler.advance(batch)
    for piece in batch:
        if piece.is_last:
            piece.job.accept(0)
            piece.job.tokens.append(7)
    return batch


def run(scheduler: Scheduler, new: Job) -> None:
    """Compute a job's tokens."""
    scheduler.add(new)
    while new.n_missing or new.seq < 0:
        scheduler.advance(scheduler.next_batch())


# Rows --------------------------------------------------------------------------------------------


def test_prompts_are_cut_to_the_rows_of_a_step() -> None:
    scheduler = Scheduler(paged(), 8)
    scheduler.add(job(1, 20, 30))
    shapes = [piece for _ in range(3) for piece in shape(step(scheduler))]
    assert shapes == [(1, 0, 8, False), (1, 8, 16, False), (1, 16, 20, True)]


def test_short_prompts_share_a_step_oldest_first() -> None:
    scheduler = Scheduler(paged(), 8)
    for number, n_tokens in ((1, 3), (2, 4), (3, 5)):
        scheduler.add(job(number, n_tokens))
    assert shape(scheduler.next_batch()) == [(1, 0, 3, True), (2, 0, 4, True), (3, 0, 1, False)]


def test_a_long_prompt_does_not_stop_those_that_generate() -> None:
    scheduler = Scheduler(paged(), 8)
    for number in (1, 2):
        scheduler.add(job(number, 2, 20))
    step(scheduler)
    scheduler.add(job(3, 100))
    for n in range(3):
        assert shape(step(scheduler)) == [
            (1, 2 + n, 3 + n, True),
            (2, 2 + n, 3 + n, True),
            (3, 6 * n, 6 * n + 6, False),
        ]


def test_a_job_that_lacks_one_token_passes_an_older_prompt() -> None:
    scheduler = Scheduler(paged(), 8)
    scheduler.add(job(1, 100))
    step(scheduler)
    scheduler.add(job(2, 1, 10))
    assert shape(step(scheduler)) == [(1, 8, 16, False)]  # it is let in when a chunk has room
    scheduler = Scheduler(paged(), 8)
    scheduler.add(job(2, 1, 10))
    step(scheduler)
    scheduler.add(job(1, 100))
    step(scheduler)
    assert shape(step(scheduler)) == [(2, 2, 3, True), (1, 7, 14, False)]


def test_prompts_get_no_more_rows_than_allowed_while_somebody_generates() -> None:
    scheduler = Scheduler(paged(), 64)
    scheduler.add(job(1, 3, 20))
    assert shape(step(scheduler, 2)) == [(1, 0, 3, True)]  # nobody waits for this one
    scheduler.add(job(2, 30))
    assert shape(step(scheduler, 10)) == [(1, 3, 4, True), (2, 0, 10, False)]
    assert shape(step(scheduler, 0)) == [(1, 4, 5, True), (2, 10, 11, False)]  # never none


def test_never_more_jobs_than_rows_or_than_allowed() -> None:
    for max_rows, max_jobs, n_running in ((3, None, 3), (8, 2, 2), (2, 5, 2)):
        scheduler = Scheduler(paged(), max_rows, max_jobs)
        for number in range(6):
            scheduler.add(job(number, 1, 5))
        assert numbers(scheduler.next_batch()) == list(range(n_running))


def test_logits_are_wanted_of_the_last_token_or_of_all() -> None:
    scheduler = Scheduler(paged(), 256)
    scheduler.add(job(1, 90, 100))
    scheduler.add(job(2, 90, 100, all_logits=True))
    first = scheduler.next_batch()
    assert [(p.first_output, p.stop) for p in first] == [(89, 90), (0, MAX_LOGIT_ROWS)]
    scheduler.advance(first)
    scheduler.remove(first[0].job)
    assert [(p.first_output, p.stop) for p in scheduler.next_batch()] == [(64, 90)]


# Drafts ------------------------------------------------------------------------------------------


def test_a_draft_is_computed_behind_the_tokens_and_counts_only_once_accepted() -> None:
    scheduler = Scheduler(paged(), 8)
    drafted = job(1, 3, 20)
    scheduler.add(drafted)
    step(scheduler)
    drafted.draft[:] = [5, 6, 7]
    (piece,) = scheduler.next_batch()
    assert (piece.start, piece.stop, piece.first_output, piece.is_last) == (3, 7, 3, True)
    scheduler.advance([piece])
    assert drafted.n_computed == 4
    drafted.tokens += [5, 6, 9]  # two were right, and one more was chosen
    drafted.accept(2)
    assert (drafted.n_computed, drafted.n_missing, drafted.draft) == (6, 1, [])
    assert shape(scheduler.next_batch()) == [(1, 6, 7, True)]


def test_drafts_take_only_rows_that_nobody_needs() -> None:
    scheduler = Scheduler(paged(), 8)
    jobs = [job(number, 1, 20) for number in range(3)]
    for new in jobs:
        scheduler.add(new)
    step(scheduler)
    for new in jobs:
        new.draft[:] = [1, 2, 3, 4]
    batch = scheduler.next_batch()
    assert shape(batch) == [(0, 1, 6, True), (1, 1, 3, True), (2, 1, 2, True)]
    assert [len(new.draft) for new in jobs] == [4, 1, 0]


def test_pages_of_a_wrong_draft_are_not_found_by_others() -> None:
    cache = paged()
    scheduler = Scheduler(cache, 128)
    drafted = Job(1, list(range(60)), 100)
    scheduler.add(drafted)
    step(scheduler)
    drafted.draft[:] = [5] * 10
    (piece,) = scheduler.next_batch()
    scheduler.advance([piece])
    drafted.tokens.append(9)
    drafted.accept(0)
    assert cache.find([*range(60), 7, 5, 5, 5, 5]).n_tokens == 60
    scheduler.remove(drafted)
    assert cache.find([*range(60), 7, 5, 5, 5, 5]).n_tokens == 61


# Admission, order and making room ----------------------------------------------------------------


def test_a_job_waits_until_all_its_slots_are_free_and_nobody_passes_it() -> None:
    scheduler = Scheduler(paged(n_pages=3), 64)
    first, big, small = job(1, 10, 100), job(2, 10, 160), job(3, 10, 20)
    for new in (first, big, small):
        scheduler.add(new)
    assert numbers(scheduler.next_batch()) == [1]
    scheduler.remove(first)
    assert numbers(scheduler.next_batch()) == [2]
    scheduler.remove(big)
    assert numbers(scheduler.next_batch()) == [3]


def test_pages_are_taken_as_they_are_needed_though_all_are_promised() -> None:
    cache = paged(n_pages=10)
    scheduler = Scheduler(cache, 64)
    scheduler.add(job(1, 10, 640))
    step(scheduler)
    assert cache.n_free_pages == 9
    scheduler.add(job(2, 10, 64))
    assert numbers(scheduler.next_batch()) == [1]


def test_priority_decides_before_age() -> None:
    scheduler = Scheduler(paged(), 64, max_jobs=1)
    jobs = [job(1, 5, 9), job(2, 5, 9, priority=1), job(3, 5, 9, priority=-1), job(4, 5, 9)]
    for new in jobs:
        scheduler.add(new)
    order = []
    for _ in jobs:
        (piece,) = scheduler.next_batch()
        order.append(piece.job.number)
        scheduler.remove(piece.job)
    assert order == [3, 1, 4, 2]


def test_a_removed_job_leaves_no_page_wherever_it_was() -> None:
    cache = paged()
    scheduler = Scheduler(cache, 8, 2)
    jobs = [job(number, 20, 40) for number in range(4)]
    for new in jobs:
        scheduler.add(new)
    scheduler.advance(scheduler.next_batch())
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


def overcommitted(n_pages: int, *jobs: Job) -> Scheduler:
    scheduler = Scheduler(paged(n_pages), 256, overcommit=3.0)
    for new in jobs:
        scheduler.add(new)
    return scheduler


def test_the_newest_of_the_least_important_makes_room_and_is_computed_again() -> None:
    old, new, low = job(1, 60, 128), job(2, 60, 128), job(0, 60, 128, priority=1)
    scheduler = overcommitted(4, old, new, low)
    assert numbers(step(scheduler)) == [1, 2, 0]
    for _ in range(3):  # a page each; the fourth goes to the first that needs a second
        step(scheduler)
    while not low.n_preempted:
        batch = step(scheduler)
    assert numbers(batch) == [1, 2]  # each has its second page now
    assert (low.seq, low.n_computed, old.n_preempted, new.n_preempted) == (-1, 0, 0, 0)
    assert scheduler.n_waiting == 1
    scheduler.remove(old)
    batch = step(scheduler)
    assert numbers(batch) == [2, 0]
    assert low.n_computed > 0
    assert low.n_reused == 0  # of the prompt, nothing had been cached


def test_one_that_made_room_goes_before_those_that_never_ran() -> None:
    old, new, later = job(1, 60, 128), job(2, 60, 128), job(3, 10, 64)
    scheduler = overcommitted(2, old, new)
    while not new.n_preempted:
        step(scheduler)
    scheduler.add(later)
    assert numbers(step(scheduler)) == [1]
    scheduler.remove(old)
    assert numbers(step(scheduler)) == [2]


def test_within_the_cache_nobody_ever_makes_room() -> None:
    scheduler = Scheduler(paged(4), 256)
    jobs = [job(number, 60, 128) for number in range(2)]
    for new in jobs:
        scheduler.add(new)
    for _ in range(60):
        step(scheduler)
    assert [new.n_preempted for new in jobs] == [0, 0]


# What others have computed -----------------------------------------------------------------------


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
@pytest.mark.parametrize("kind", ["paged", "contiguous"])
def test_the_longest_common_prefix_is_reused(kind: str, then: list[int], n_reused: int) -> None:
    cache = create(kind, context=100, n_sequences=1)
    scheduler = Scheduler(cache, 64)
    first, second = Job(1, [1, 2, 3], 100), Job(2, then, 100)
    run(scheduler, first)
    scheduler.remove(first)
    run(scheduler, second)
    assert second.n_reused == n_reused
    cache.check()


@pytest.mark.parametrize("n_tokens", [3, 64, 65, 200])
def test_the_same_prompt_at_once_is_computed_once_but_for_its_last_token(n_tokens: int) -> None:
    cache = paged()
    scheduler = Scheduler(cache, 128)
    jobs = [Job(number, list(range(n_tokens)), 250) for number in range(4)]
    for new in jobs:
        scheduler.add(new)
    while jobs[0].n_computed != n_tokens:
        assert numbers(step(scheduler)) == [0]
    assert shape(step(scheduler))[1:] == [
        (number, n_tokens - 1, n_tokens, True) for number in (1, 2, 3)
    ]
    # Whole pages are shared, and what the last page has in common is copied.
    n_own = cache.n_pages_for(n_tokens) - (n_tokens - 1) // 64
    n_grown = 0 if n_tokens % 64 else 1
    used = cache.n_pages - cache.n_free_pages
    assert used <= (n_tokens - 1) // 64 + 4 * n_own + n_grown
    cache.check()


def test_a_salt_keeps_prompts_apart() -> None:
    scheduler = Scheduler(paged(), 256)
    for number, salt in enumerate(("", "a", "a", "b")):
        new = Job(number, list(range(100)), 120, salt=salt)
        run(scheduler, new)
        assert new.n_reused == (99 if number == 2 else 0)
        scheduler.remove(new)


def test_nothing_is_reused_when_all_logits_are_wanted_or_sharing_is_off() -> None:
    for all_logits, is_sharing in ((True, True), (False, False)):
        scheduler = Scheduler(paged(), 256, is_sharing=is_sharing)
        run(scheduler, Job(1, list(range(100)), 120))
        second = Job(2, list(range(100)), 120, all_logits=all_logits)
        run(scheduler, second)
        assert second.n_reused == 0


def test_what_a_failed_job_computed_is_not_found() -> None:
    cache = paged()
    scheduler = Scheduler(cache, 256)
    failed = Job(1, list(range(100)), 120)
    run(scheduler, failed)
    scheduler.remove(failed, is_sound=False)
    assert (cache.n_free_pages, cache.n_cached_pages) == (cache.n_pages, 0)


def test_a_job_cancelled_in_its_prompt_leaves_what_was_computed() -> None:
    scheduler = Scheduler(paged(), 2)
    first = Job(1, [1, 2, 3, 4, 5], 9)
    scheduler.add(first)
    scheduler.advance(scheduler.next_batch())
    scheduler.remove(first)
    second = Job(2, [1, 2, 3, 4, 5], 9)
    run(scheduler, second)
    assert second.n_reused == 2


def test_the_prompt_unused_for_longest_is_put_out_when_pages_run_short() -> None:
    scheduler = Scheduler(paged(n_pages=3), 64)
    for number in (1, 2, 3):
        new = Job(number, [number, 8, 9], 10)
        run(scheduler, new)
        scheduler.remove(new)
    for number, n_reused in ((1, 3), (7, 0), (3, 3), (2, 0)):
        new = Job(number, [number, 8, 9, 10], 10)
        run(scheduler, new)
        assert new.n_reused == n_reused, number
        scheduler.remove(new)


# Shifting ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("n_keep", "left", "n_computed"),
    [(0, [3, 4, 5], 0), (1, [0, 3, 4, 5], 1), (4, [0, 1, 2, 3, 5], 4), (5, [0, 1, 2, 3, 4], 5)],
)
@pytest.mark.parametrize("kind", ["paged", "contiguous"])
def test_a_shift_drops_the_older_half_behind_what_is_kept(
    kind: str, n_keep: int, left: list[int], n_computed: int
) -> None:
    cache = create(kind, context=100, n_sequences=1, n_slots=128)
    scheduler = Scheduler(cache, 64)
    shifted = Job(1, [0, 1, 2, 3, 4, 5], 6)
    run(scheduler, shifted)
    scheduler.shift(shifted, n_keep)
    assert (shifted.tokens, shifted.n_computed) == (left, n_computed)
    cache.check()
