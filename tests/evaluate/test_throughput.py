"""Speed measurements: which batches are run, and what is made of the times."""

from __future__ import annotations

import statistics
from collections.abc import Callable

import pytest
from fake_runtime import FakeModel

from quantcli.errors import UsageError
from quantcli.evaluate.throughput import (
    Throughput,
    Workload,
    measure,
    read_bandwidth,
)


def ticking(step_s: float = 0.5) -> Callable[[], float]:
    """Return a clock that goes on by a step whenever it is read."""
    now = 0.0

    def clock() -> float:
        nonlocal now
        now += step_s
        return now

    return clock


def test_a_prompt_is_fed_in_the_largest_steps_with_logits_for_its_last_row() -> None:
    model = FakeModel(max_rows=8)
    result = measure(model, Workload("pp", 20), 1, warmup=False, clock=ticking())
    assert [len(batch.tokens) for batch in model.batches] == [8, 8, 4]
    assert [batch.outputs for batch in model.batches] == [[], [], [3]]
    assert [p for batch in model.batches for p in batch.positions] == list(range(20))
    assert result.seconds == (0.5,)
    assert result.rates == (40.0,)


def test_generation_feeds_each_likeliest_token_back() -> None:
    model = FakeModel(n_vocab=16)
    measure(model, Workload("tg", 5), 1, warmup=False, clock=ticking())
    tokens = [batch.tokens[0] for batch in model.batches]
    assert tokens == [(tokens[0] + i) % 16 for i in range(5)]
    assert [batch.positions for batch in model.batches] == [[0], [1], [2], [3], [4]]
    assert all(batch.outputs == [0] for batch in model.batches)


def test_depth_is_filled_before_the_clock_starts() -> None:
    model = FakeModel(max_rows=8)
    result = measure(model, Workload("tg", 2, depth=10), 1, warmup=False, clock=ticking())
    assert [batch.positions[0] for batch in model.batches] == [0, 8, 10, 11]
    assert len(result.seconds) == 1


def test_the_first_run_is_not_counted_and_each_starts_empty() -> None:
    model = FakeModel()
    stages: list[tuple[str, int, int]] = []
    result = measure(
        model, Workload("pp", 4), 3, progress=lambda *stage: stages.append(stage), clock=ticking()
    )
    assert len(result.seconds) == 3
    assert [batch.positions[0] for batch in model.batches] == [0, 0, 0, 0]
    assert stages == [("measuring pp4", done, 3) for done in (0, 1, 2, 3)]
    assert model.kv.n_free_pages == model.kv.n_pages
    model.kv.check()


def test_the_cache_is_free_again_after_an_error() -> None:
    class Failing(FakeModel):
        def forward(self, batch):  # type: ignore[no-untyped-def]
            raise RuntimeError("kernel")

    model = Failing()
    with pytest.raises(RuntimeError, match="kernel"):
        measure(model, Workload("pp", 4), 1)
    assert model.kv.n_free_pages == model.kv.n_pages


def test_mean_median_and_deviation_are_those_of_the_rates() -> None:
    result = Throughput(Workload("pp", 100), (1.0, 2.0, 4.0))
    assert result.rates == (100.0, 50.0, 25.0)
    assert result.mean == pytest.approx(statistics.fmean([100, 50, 25]))
    assert result.median == 50.0
    assert result.sd == pytest.approx(statistics.stdev([100, 50, 25]))
    assert Throughput(Workload("pp", 100), (1.0,)).sd == 0.0


@pytest.mark.parametrize(
    ("workload", "name"),
    [
        (Workload("pp", 512), "pp512"),
        (Workload("tg", 128), "tg128"),
        (Workload("tg", 128, 2048), "tg128 @ d2048"),
    ],
)
def test_names_are_llama_benchs(workload: Workload, name: str) -> None:
    assert workload.name == name


def test_a_context_that_is_too_short_is_refused_with_the_numbers() -> None:
    with pytest.raises(UsageError, match="needs a context of 100 tokens, and it is 64"):
        measure(FakeModel(context=64), Workload("tg", 90, depth=10), 1)


def test_nothing_to_measure_is_refused() -> None:
    with pytest.raises(UsageError, match="measures nothing"):
        measure(FakeModel(), Workload("pp", 0), 1)


def test_bandwidth_is_bytes_over_the_best_time() -> None:
    assert read_bandwidth(1, nbytes=1 << 20, clock=ticking(0.5)) == 2 << 20
    assert read_bandwidth(3, nbytes=1 << 16) > 0
