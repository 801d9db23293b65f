"""The loops that show what the machine can do compute what NumPy says, on every thread."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from quantcli.evaluate.machine import Peaks, lend
from quantcli.kernels import peaks
from quantcli.runtime.executor import Executor

pytestmark = pytest.mark.jit


@pytest.fixture(params=[1, 3])
def executor(request: pytest.FixtureRequest) -> Iterator[Executor]:
    executor = Executor(request.param)
    yield executor
    executor.close()


def test_every_byte_is_read_once_whatever_the_threads(executor: Executor) -> None:
    measured = Peaks(lend(executor), executor.n_threads, read_nbytes=1, n_loops=1)
    random = np.random.default_rng(1)
    measured.memory[:] = random.integers(0, 256, measured.memory.size, np.uint8)
    measured.bytes_per_s()
    total = measured.out.reshape(executor.n_threads, 16).sum(axis=0, dtype=np.int32)
    np.testing.assert_array_equal(total, peaks.read_reference(measured.memory))


@pytest.mark.parametrize("n_loops", [1, 15, 16, 53])
def test_every_thread_multiplies_all_codes_and_activations(
    executor: Executor, n_loops: int
) -> None:
    measured = Peaks(lend(executor), executor.n_threads, read_nbytes=1, n_loops=n_loops)
    random = np.random.default_rng(2)
    measured.codes[:] = random.integers(0, 64, measured.codes.size, np.uint8)
    measured.activations[:] = random.integers(-127, 128, measured.activations.size, np.int8)
    measured.macs_per_s()
    want = peaks.multiply_reference(measured.codes, measured.activations, n_loops)
    for out in measured.out.reshape(executor.n_threads, 16):
        np.testing.assert_array_equal(out, want)
