"""Times of steps as they are measured, and how many rows fit in a time."""

from __future__ import annotations

import pytest

from quantcli.engine.pace import MIN_PROMPT_ROWS, Pace


def measured(times: dict[int, float]) -> Pace:
    pace = Pace()
    for n_rows, seconds in times.items():
        pace.note(n_rows, seconds)
    return pace


def test_nothing_is_known_before_the_first_step() -> None:
    assert Pace().seconds(1) is None
    assert Pace().prompt_rows(0, 0.1, 256) == 256


def test_between_measurements_the_line_and_beyond_them_the_slope() -> None:
    pace = measured({1: 1.0, 3: 2.0, 64: 10.0})
    assert pace.seconds(1) == 1.0
    assert pace.seconds(2) == pytest.approx(1.5)
    assert pace.seconds(128) == pytest.approx(10 + 64 * 9 / 63)


def test_one_measurement_gives_an_idea_of_the_others() -> None:
    pace = measured({1: 1.0})
    times = [pace.seconds(n) for n in (1, 2, 8, 64)]
    assert times == sorted(times)  # type: ignore[type-var]
    assert times[0] == 1.0
    below = measured({64: 8.0}).seconds(1)
    assert below is not None
    assert 0 < below < 8


def test_a_step_that_was_disturbed_counts_less_than_one_that_was_faster() -> None:
    slower, faster = measured({1: 1.0}), measured({1: 1.0})
    slower.note(1, 2.0)
    faster.note(1, 0.5)
    assert slower.seconds(1) == pytest.approx(1.1)
    assert faster.seconds(1) == pytest.approx(0.75)


def test_a_chunk_keeps_a_step_within_the_time() -> None:
    pace = measured({1: 0.010, 2: 0.011, 256: 0.265})  # a millisecond a row
    for target_s in (0.03, 0.05, 0.1):
        n_rows = pace.prompt_rows(2, target_s, 256)
        seconds, more = pace.seconds(2 + n_rows), pace.seconds(3 + n_rows)
        assert seconds is not None
        assert more is not None
        assert seconds <= target_s < more


def test_a_prompt_gets_on_however_short_the_time_and_never_beyond_a_step() -> None:
    pace = measured({1: 0.1, 256: 9.0})
    assert pace.prompt_rows(4, 0.001, 256) == MIN_PROMPT_ROWS
    assert pace.prompt_rows(4, 0.001, 5) == 5
    assert pace.prompt_rows(4, 100.0, 256) == 256
