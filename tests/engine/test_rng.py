from __future__ import annotations

import numpy as np

from quantcli.engine import rng


def test_stream_is_splitmix64_of_the_scrambled_seed() -> None:
    # Stepped in NumPy's wrapping arithmetic, as the paper has it.
    with np.errstate(over="ignore"):
        state = np.uint64(rng._mix(12345))
        for index in range(100):
            state += np.uint64(0x9E3779B97F4A7C15)
            z = state
            z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
            z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
            assert rng.bits(12345, index) == int(z ^ (z >> np.uint64(31)))


def test_known_numbers_of_splitmix64() -> None:
    # The first numbers that the published C code gives for seed 0.
    assert rng._mix(0) == 0
    assert [f"{rng.bits(0, i):016x}" for i in range(3)] == [
        "e220a8397b1dcdaf",
        "6e789e6aa1b965f4",
        "06c45d188009454f",
    ]


def test_uniform_lies_in_the_half_open_interval() -> None:
    numbers = [rng.uniform(seed, index) for seed in range(50) for index in range(50)]
    assert all(0 <= x < 1 for x in numbers)
    assert abs(np.mean(numbers) - 0.5) < 0.03


def test_neighbouring_seeds_have_different_streams() -> None:
    streams = {tuple(rng.bits(seed, i) for i in range(4)) for seed in range(1000)}
    assert len(streams) == 1000
    golden = 0x9E3779B97F4A7C15
    assert rng.bits(golden, 0) != rng.bits(0, 1)


def test_the_largest_seed_is_taken() -> None:
    assert 0 <= rng.uniform(2**64 - 1, 2**31) < 1
