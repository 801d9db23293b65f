"""How much is drafted: against a search over all possibilities, and on curves of known outcome."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quantcli.engine.speculation import MatchRates, Rate, allot, chances


def flat(n_rows: int) -> float:
    return 1.0


def linear(n_rows: int) -> float:
    return float(n_rows)


def test_free_rows_are_all_used_and_rows_at_full_price_never() -> None:
    drafts = [chances(0.5, 4), chances(0.9, 3)]
    assert allot(drafts, 2, 100, flat) == [4, 3]
    assert allot(drafts, 2, 100, linear) == [0, 0]


def test_nothing_is_drafted_before_anything_is_measured() -> None:
    assert allot([chances(1.0, 4)], 1, 8, lambda n: None) == [0]


def test_a_step_has_no_more_rows_than_it_may() -> None:
    assert sum(allot([chances(0.9, 8), chances(0.9, 8)], 2, 7, flat)) == 5


def test_the_likelier_guess_gets_the_rows() -> None:
    # Three rows cost no more than one, a fourth costs the double.
    curve = {2: 1.0, 3: 1.0, 4: 1.0}
    counts = allot([chances(0.4, 3), chances(0.9, 3)], 2, 99, lambda n: curve.get(n, 3.0))
    assert counts == [0, 2]


def test_many_at_once_draft_less_than_one_alone() -> None:
    def seconds(n_rows: int) -> float:  # weights once, then arithmetic
        return max(1.0, 0.2 * n_rows)

    alone = allot([chances(0.8, 8)], 1, 99, seconds)
    many = allot([chances(0.8, 8)] * 8, 8, 99, seconds)
    assert alone[0] >= 4
    assert sum(many) == 0


def test_bad_guesses_are_not_worth_a_row() -> None:
    def seconds(n_rows: int) -> float:
        return 1 + 0.15 * (n_rows - 1)

    assert allot([chances(0.15, 8)], 1, 99, seconds) == [0]
    assert allot([chances(0.9, 8)], 1, 99, seconds)[0] >= 4


@given(
    rates=st.lists(st.floats(0.05, 0.99), min_size=1, max_size=3),
    costs=st.lists(st.floats(0.01, 1.0), min_size=12, max_size=12),
)
@settings(max_examples=100, deadline=None)
def test_no_other_division_gives_more_tokens_a_second(
    rates: list[float], costs: list[float]
) -> None:
    drafts = [chances(rate, 3) for rate in rates]
    n_rows = len(rates)
    times = list(itertools.accumulate(costs))  # steps of more rows take longer

    def speed(counts: tuple[int, ...] | list[int]) -> float:
        tokens = n_rows + sum(sum(d[:n]) for d, n in zip(drafts, counts, strict=True))
        return tokens / times[n_rows + sum(counts) - 1]

    counts = allot(drafts, n_rows, 12, lambda n: times[n - 1])
    best = max(itertools.product(range(4), repeat=n_rows), key=speed)
    if sum(counts):
        assert speed(counts) == pytest.approx(speed(best))
    else:
        assert speed(best) <= 1.04 * speed(counts) * (1 + 1e-9)


def test_a_rate_follows_what_happens() -> None:
    rate = Rate(0.5)
    assert rate.value == 0.5
    for _ in range(60):
        rate.note(True)
    assert rate.value > 0.95
    for _ in range(60):
        rate.note(False)
    assert rate.value < 0.1


def test_longer_matches_start_with_more_trust_and_learn_apart() -> None:
    rates = MatchRates()
    values = [rates.of(n).value for n in (1, 3, 4, 5, 6, 9, 17, 100)]
    assert values == sorted(values)
    rates.of(3).note(False)
    assert rates.of(3).value < values[1]
    assert rates.of(9).value == values[5]
