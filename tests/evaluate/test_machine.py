"""What the machine can do at most, and how much of it a model's steps ask for."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from tiny import write_tiny

from quantcli.checkpoint import open_checkpoint
from quantcli.evaluate.machine import Demand, Limits, Peaks, lend, read_bandwidth
from quantcli.kernels import peaks
from quantcli.runtime.executor import Executor
from quantcli.runtime.sizing import size_model


def ticking(step_s: float) -> Callable[[], float]:
    """Return a clock that goes on by a step whenever it is read."""
    now = 0.0

    def clock() -> float:
        nonlocal now
        now += step_s
        return now

    return clock


def demand(path: Path, kv_type: str = "f16") -> Demand:
    with open_checkpoint(path) as checkpoint:
        formats = {name: info.format.name for name, info in checkpoint.tensors.items()}
        return Demand.of(size_model(checkpoint).plan, formats, kv_type)


@pytest.mark.jit
def test_peaks_are_bytes_and_multiplications_over_the_time() -> None:
    executor = Executor(2)
    try:
        measured = Peaks(
            lend(executor), executor.n_threads, read_nbytes=20 << 20, n_loops=8, clock=ticking(0.5)
        )
        assert measured.bytes_per_s() == (20 << 20) / 0.5
        assert measured.macs_per_s() == 8 * peaks.MACS_PER_LOOP * 2 / 0.5
        assert measured.sample() == Limits((20 << 20) / 0.5, 8 * peaks.MACS_PER_LOOP * 2 / 0.5)
    finally:
        executor.close()
    assert read_bandwidth(1) > 0


def test_the_best_of_two_samples_is_the_higher_of_each() -> None:
    assert Limits(1.0, 5.0).best(Limits(2.0, 4.0)) == Limits(2.0, 5.0)


def test_demand_counts_the_linears_of_a_tied_model(tmp_path: Path) -> None:
    found = demand(write_tiny(tmp_path / "m.gguf", "llama", tied=True, n_layers=2))
    layer = 128 * 128 + 2 * 64 * 128 + 128 * 128 + 3 * 192 * 128
    assert found.macs_per_token == 2 * layer
    assert found.integer
    n_vocab = 16 * -(-found.plan.logits.width // 16)
    # q4_0 in panels: 18 bytes for 32 weights, as in the file
    assert found.weights_nbytes == (2 * layer + n_vocab * 128) * 18 // 32


def test_keys_and_values_count_as_far_as_a_row_sees(tmp_path: Path) -> None:
    path = write_tiny(
        tmp_path / "m.gguf", "gemma3", n_layers=2, window=16, window_pattern=(True, False)
    )
    token = 2 * 2 * 32 * 2  # keys and values, 2 heads, 32 halves
    assert demand(path).kv_nbytes(100) == 16 * token + 100 * token
    assert demand(path).kv_nbytes(10) == 20 * token
    assert demand(path, "q8_0").kv_nbytes(10) == 20 * token * 34 / 64


def test_shares_are_of_what_was_measured(tmp_path: Path) -> None:
    found = demand(write_tiny(tmp_path / "m.gguf", "llama"))
    limits = Limits(read_nbytes_per_s=10.0 * found.weights_nbytes, dot_macs_per_s=1e9)
    assert found.read_share(limits, steps_per_s=5.0, n_sequences=4, n_keys=0.0) == 0.5
    with_keys = found.read_share(limits, steps_per_s=5.0, n_sequences=4, n_keys=8.0)
    assert with_keys == pytest.approx(0.5 + 4 * found.kv_nbytes(8) * 5 / limits.read_nbytes_per_s)
    assert found.dot_share(limits, 1000.0) == pytest.approx(found.macs_per_token / 1e6)


def test_plain_floats_have_no_share_of_the_dots(tmp_path: Path) -> None:
    found = demand(write_tiny(tmp_path / "m.gguf", "llama", weight_format="f16"))
    assert not found.integer
    assert found.dot_share(Limits(1.0, 1.0), 1.0) is None
