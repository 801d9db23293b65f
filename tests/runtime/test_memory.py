"""Memory planning: KV bytes a token, the context that fits, what is available."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st

from quantcli.errors import ResourceError, UsageError
from quantcli.runtime.memory import (
    MIN_CONTEXT,
    MemoryPlan,
    available_memory,
    choose_context,
    kv_nbytes_per_token,
    peak_memory,
    plan_memory,
    reserve,
    size,
)

MIB = 1 << 20
GIB = 1 << 30


def test_f16_is_two_bytes_a_value_of_k_and_v() -> None:
    one_layer = np.zeros((2, 3, 64), dtype=np.float16)  # (k and v, kv heads, head dim)
    assert kv_nbytes_per_token(30, 3, 64, "f16") == 30 * one_layer.nbytes == 23040


def test_q8_0_is_34_bytes_for_32_values() -> None:
    assert kv_nbytes_per_token(1, 1, 64, "q8_0") == 2 * 2 * 34
    assert kv_nbytes_per_token(1, 1, 80, "q8_0") == 2 * 3 * 34  # heads are whole blocks


def test_an_unknown_kv_type_says_what_is_known() -> None:
    with pytest.raises(UsageError, match="known: f16, q8_0"):
        kv_nbytes_per_token(1, 1, 64, "q4_0")


def choose(requested: int | None, available: int, train_context: int = 8192) -> MemoryPlan:
    return choose_context(
        requested,
        train_context=train_context,
        weights_nbytes=100 * MIB,
        kv_nbytes_per_token=MIB // 16,
        buffers_nbytes=28 * MIB,
        available=available,
    )


def test_the_models_own_context_is_the_default_when_it_fits() -> None:
    assert choose(None, 8 * GIB).context == 8192
    assert choose(0, 8 * GIB).context == 8192
    assert choose(None, 8 * GIB, train_context=1000).context == 1000


def test_the_default_is_cut_to_what_fits_beside_the_reserve() -> None:
    plan = choose(None, 512 * MIB)
    # 512 - 128 reserved - 128 fixed = 256 MiB at 16 tokens a MiB
    assert plan.context == 4096
    assert plan.total == (128 + 256) * MIB
    assert plan.fits


def test_nothing_sensible_fitting_is_an_error_with_the_numbers() -> None:
    with pytest.raises(ResourceError, match=r"512 tokens needs 168 MB .* 137 MB of memory"):
        choose(None, 131 * MIB)


def test_a_requested_context_that_fits_is_taken_even_past_the_models_own() -> None:
    assert choose(10000, 8 * GIB).context == 10000


def test_a_requested_context_that_does_not_fit_names_the_longest_that_does() -> None:
    with pytest.raises(ResourceError, match="Use --ctx 4096 or less"):
        choose(8192, 384 * MIB)


def test_a_model_that_does_not_fit_at_all_suggests_a_smaller_one() -> None:
    with pytest.raises(ResourceError, match="smaller model"):
        choose(16, 100 * MIB)


def test_a_negative_context_is_refused() -> None:
    with pytest.raises(UsageError, match="-5 is negative"):
        choose(-5, GIB)


def test_sequences_multiply_the_cache() -> None:
    plan = plan_memory(
        context=10,
        n_sequences=3,
        weights_nbytes=1,
        kv_nbytes_per_token=7,
        buffers_nbytes=2,
        available=212,
    )
    assert (plan.kv_nbytes, plan.total, plan.fits) == (210, 213, False)


@given(
    available=st.integers(0, 1 << 44),
    train_context=st.integers(1, 1 << 20),
    weights=st.integers(0, 1 << 40),
    per_token=st.integers(0, 1 << 22),
    n_sequences=st.integers(1, 64),
)
def test_a_default_context_always_fits_or_is_refused(
    available: int, train_context: int, weights: int, per_token: int, n_sequences: int
) -> None:
    try:
        plan = choose_context(
            None,
            train_context=train_context,
            weights_nbytes=weights,
            kv_nbytes_per_token=per_token,
            buffers_nbytes=0,
            available=available,
            n_sequences=n_sequences,
        )
    except ResourceError:
        smallest = min(MIN_CONTEXT, train_context) * per_token * n_sequences
        assert weights + smallest > available - reserve(available) - 256 * per_token * n_sequences
        return
    assert plan.fits
    assert min(MIN_CONTEXT, train_context) <= plan.context <= train_context


def test_available_memory_is_at_most_the_machines() -> None:
    assert 0 < available_memory() <= psutil.virtual_memory().total


@pytest.mark.parametrize(
    ("files", "left"),
    [
        (
            {
                "proc/self/cgroup": "0::/\n",
                "sys/fs/cgroup/memory.max": "1000000\n",
                "sys/fs/cgroup/memory.current": "900000\n",
                "sys/fs/cgroup/memory.stat": "anon 1\ninactive_file 300000\n",
            },
            400000,
        ),
        (
            {
                "proc/self/cgroup": "7:memory:/slice/job\n",
                "sys/fs/cgroup/memory/slice/memory.limit_in_bytes": "5000\n",
                "sys/fs/cgroup/memory/slice/memory.usage_in_bytes": "4000\n",
                "sys/fs/cgroup/memory/slice/memory.stat": "cache 9\ntotal_inactive_file 500\n",
                "sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n",
                "sys/fs/cgroup/memory/memory.usage_in_bytes": "1\n",
            },
            1500,
        ),
        (
            {
                "proc/self/cgroup": "0::/\n",
                "sys/fs/cgroup/memory.max": "10\n",
                "sys/fs/cgroup/memory.current": "12\n",
            },
            0,
        ),
    ],
)
def test_a_control_groups_limit_is_what_is_left_of_it(
    tmp_path: Path, files: dict[str, str], left: int
) -> None:
    for name, text in files.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    assert available_memory(tmp_path) == left


def test_without_a_limit_the_machine_decides(tmp_path: Path) -> None:
    assert available_memory(tmp_path) > 0


@pytest.mark.parametrize(
    ("nbytes", "text"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (1000, "1.00 kB"),
        (98_362_432, "98.4 MB"),
        (253_113_024, "253 MB"),
        (999_600_000, "1.00 GB"),
        (25_276_514_304, "25.3 GB"),
        (1_500_000_000_000, "1500 GB"),
    ],
)
def test_sizes_have_three_digits(nbytes: int, text: str) -> None:
    assert size(nbytes) == text


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere the parent's peak is not inherited")
def test_the_peak_is_this_program_s_and_not_its_parent_s() -> None:
    import numpy as np

    code = "from quantcli.runtime.memory import peak_memory; print(peak_memory())"
    block = np.ones(256 << 20, np.uint8)  # what a forked child starts with
    child = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    assert peak_memory() >= block.nbytes
    assert 5_000_000 < int(child.stdout) < 200_000_000
