"""Speed measurements: which batches are run, and what is made of the times."""

from __future__ import annotations

import statistics
from collections.abc import Callable

import pytest
from fake_runtime import FakeModel

from quantcli.errors import ResourceError, UsageError
from quantcli.evaluate.throughput import (
    Runner,
    Throughput,
    Workload,
    estimate,
    measure,
    samples,
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
        (Workload("tg", 128, n_sequences=4), "tg128 x4"),
        (Workload("tg", 128, 2048, 4), "tg128 x4 @ d2048"),
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


def test_sequences_generate_together_one_token_each_a_step() -> None:
    model = FakeModel(n_vocab=16, n_sequences=3)
    result = measure(model, Workload("tg", 4, n_sequences=3), 1, warmup=False, clock=ticking())
    assert [batch.positions for batch in model.batches] == [[p] * 3 for p in range(4)]
    assert all(batch.sequences == batch.outputs == [0, 1, 2] for batch in model.batches)
    first = model.batches[0].tokens
    assert len(set(first)) > 1
    assert model.batches[-1].tokens == [(token + 3) % 16 for token in first]
    assert result.rates == (12 / 0.5,)
    assert model.kv.n_free_pages == model.kv.n_pages


def test_each_sequence_is_filled_to_the_depth() -> None:
    model = FakeModel(n_vocab=16, n_sequences=2)
    workload = Workload("tg", 1, depth=5, n_sequences=2)
    measure(model, workload, 1, warmup=False, clock=ticking())
    assert [batch.sequences for batch in model.batches] == [[0] * 5, [1] * 5, [0, 1]]
    assert model.batches[-1].positions == [5, 5]
    assert model.batches[0].tokens != model.batches[1].tokens


def test_the_depth_is_computed_once_however_often_a_workload_is_repeated() -> None:
    model = FakeModel(max_rows=64)
    measure(model, Workload("tg", 1, depth=10), 3, clock=ticking())
    assert [len(batch.tokens) for batch in model.batches] == [10, 1, 1, 1, 1]


def test_a_runner_feeds_only_what_a_deeper_workload_lacks() -> None:
    model = FakeModel(max_rows=64)
    runner = Runner(model, ticking())
    for depth in (10, 10, 30, 5, 0):
        list(samples([runner], Workload("pp", 4, depth), 1, warmup=False))
    starts = [(batch.positions[0], len(batch.tokens)) for batch in model.batches]
    assert starts == [(0, 10), (10, 4), (10, 4), (10, 20), (30, 4), (5, 4), (0, 4)]
    tokens = {p: t for b in model.batches[:4] for p, t in zip(b.positions, b.tokens, strict=True)}
    again = dict(zip(range(5, 9), model.batches[5].tokens, strict=True))
    assert all(tokens[position] == token for position, token in again.items())
    runner.close()
    assert model.kv.n_free_pages == model.kv.n_pages


def test_two_models_take_turns() -> None:
    order: list[str] = []

    class Noting(FakeModel):
        def __init__(self, name: str) -> None:
            super().__init__()
            self.name = name

        def forward(self, batch):  # type: ignore[no-untyped-def]
            order.append(self.name)
            return super().forward(batch)

    runners = [Runner(Noting(name), ticking()) for name in "ab"]
    found = list(samples(runners, Workload("pp", 4), 2))
    assert order == ["a", "b", "a", "b", "a", "b"]
    assert found == [(0, 0.5), (1, 0.5), (0, 0.5), (1, 0.5)]


def test_closing_early_frees_the_cache() -> None:
    model = FakeModel()
    running = samples([Runner(model, ticking())], Workload("tg", 2, depth=4), 5)
    next(running)
    running.close()
    assert model.kv.n_free_pages == model.kv.n_pages


def test_more_sequences_than_rows_of_a_step_are_refused_with_the_numbers() -> None:
    with pytest.raises(UsageError, match="steps of 9 rows, and 8 is the most"):
        measure(FakeModel(max_rows=8), Workload("tg", 2, n_sequences=9), 1)


def test_more_sequences_than_the_cache_holds_are_refused() -> None:
    model = FakeModel(n_sequences=2)
    with pytest.raises(ResourceError, match="the KV cache is full"):
        measure(model, Workload("tg", 2, n_sequences=3), 1)
    assert model.kv.n_free_pages == model.kv.n_pages


def test_an_estimate_is_seconds_a_prompt_token_and_a_step() -> None:
    model = FakeModel(max_rows=32)
    assert estimate(Runner(model, ticking())) == (0.5 / 32, 0.5 / 4)
    tiny = FakeModel(context=2)
    assert estimate(Runner(tiny, ticking())) == (0.25, 0.25)
    assert tiny.kv.n_free_pages == tiny.kv.n_pages
