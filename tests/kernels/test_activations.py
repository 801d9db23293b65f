"""Staged activations: transforms, int8 codes, the words that go with them, and their groups."""

from __future__ import annotations

import numpy as np
import pytest
from kernel_calls import Threads, stage

from quantcli.formats import F32
from quantcli.kernels import activations
from quantcli.kernels.activations import (
    GELU_TANH,
    GELU_TANH_ALONE,
    LAYER_NORM,
    PLAIN,
    RELU_SQUARED,
    RMS_NORM,
    SCALE,
    SILU,
    SWIGLU_OAI,
    TINY,
)
from quantcli.kernels.matmul import SUM, SUM_HALVES, fold, fold_halves
from quantcli.runtime.reference import round_activations

pytestmark = pytest.mark.jit

UNIT = 2.0**-24
TRANSFORMS = (
    RMS_NORM,
    LAYER_NORM,
    SILU,
    GELU_TANH,
    SWIGLU_OAI,
    GELU_TANH_ALONE,
    RELU_SQUARED,
    SCALE,
)
WORDS = (*SUM, *SUM_HALVES, *fold(8), *fold_halves(32))


def values(seed: int, *shape: int) -> F32:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


@pytest.mark.parametrize("n_rows", [1, 2, 3, 7, 8, 9, 31])
def test_codes_are_the_twins(n_rows: int) -> None:
    x = values(1, n_rows, 96) * np.float32(10)
    x[0, :32] = 0
    staged = stage(x, WORDS)
    codes, scales = activations.reference_codes(x)
    np.testing.assert_array_equal(staged.codes(), codes)
    np.testing.assert_array_equal(staged.scales(), scales)
    np.testing.assert_array_equal(staged.values(), round_activations(x))


def test_words_are_sums_of_codes() -> None:
    staged = stage(values(1, 13, 128), WORDS)
    blocks = staged.codes().astype(np.int32).reshape(13, 4, 32)
    parts = (blocks.sum(axis=-1), blocks[..., :16].sum(axis=-1), blocks[..., 16:].sum(axis=-1))
    for i, (is_float, part, factor) in enumerate(WORDS):
        want = staged.scales() * np.float32(parts[part]) if is_float else factor * parts[part]
        np.testing.assert_array_equal(staged.word(i), want)


@pytest.mark.parametrize("n_rows", [1, 5, 16])
def test_floats_are_laid_out_as_they_are(n_rows: int) -> None:
    x = values(1, n_rows, 100)
    x[0, :3] = [np.nan, np.inf, -0.0]
    staged = stage(x, is_float=True)
    assert staged.values()[:, :100].tobytes() == x.tobytes()
    assert not staged.values()[:, 100:].any()


@pytest.mark.parametrize("transform", [PLAIN, RMS_NORM, SCALE])
def test_floats_may_end_in_half_a_block(transform: int) -> None:
    x, norm = values(1, 11, 16), values(2, 16)
    options = {"is_float": True, "transform": transform, "norm": norm, "factor": 0.25}
    want = stage(x, **options).values()[:, :16]
    assert stage(x, width=16, **options).values().tobytes() == want.tobytes()


def test_halves_round_to_even_and_extremes_are_127() -> None:
    x = np.zeros((1, 32), np.float32)
    x[0, :8] = [127, -127, 0.5, 1.5, 2.5, -0.5, -1.5, 126.5]
    codes = stage(x).codes()[0, :8].tolist()
    assert codes == [127, -127, 0, 2, 2, 0, -2, 126]
    for exponent in range(-110, 120, 7):
        staged = stage(np.ldexp(values(exponent + 200, 4, 64), exponent).astype(np.float32))
        assert np.abs(staged.codes().astype(int).reshape(4, 2, 32)).max(axis=-1).min() == 127


@pytest.mark.parametrize("width", [0, 256])
@pytest.mark.parametrize("transform", TRANSFORMS)
def test_rows_are_transformed_first(transform: int, width: int) -> None:
    x, up, norm, bias = values(1, 9, 150), values(2, 9, 150), values(3, 150), values(4, 150)
    x[0, :3], up[0, :3] = [9.0, -9.0, 20.0], [9.0, -9.0, 0.5]  # beyond the clamp of one of them
    options = {"transform": transform, "up": up, "norm": norm, "bias": bias, "eps": 1e-5}
    options["factor"] = -2.5
    staged = stage(x, is_float=True, width=width, **options)
    want = activations.reference(
        x,
        transform,
        up=up,
        norm=norm,
        eps=1e-5,
        bias=bias if transform == LAYER_NORM else None,
        factor=-2.5,
    )
    bound = 32 * UNIT * (np.abs(want) + np.abs(up) + np.abs(x) + 1)
    assert (np.abs(staged.values()[:, :150] - want) <= bound).all()
    assert not staged.values()[:, 150:].any()
    codes, scales = activations.reference_codes(staged.values())
    quantized = stage(x, width=width, **options)
    np.testing.assert_array_equal(quantized.codes(), codes)
    np.testing.assert_array_equal(quantized.scales(), scales)


@pytest.mark.parametrize("transform", [PLAIN, RMS_NORM, LAYER_NORM, SILU])
@pytest.mark.parametrize("is_float", [False, True])
def test_a_row_has_the_same_bits_in_any_group(transform: int, is_float: bool) -> None:
    x, up, norm = values(1, 40, 96), values(2, 40, 96), values(3, 96)
    options = {"is_float": is_float, "transform": transform, "norm": norm}
    words = () if is_float else SUM
    want = stage(x, words, up=up, **options)
    for n_rows in range(1, 40):
        found = stage(x[:n_rows], words, up=up[:n_rows], **options)
        assert found.values().tobytes() == want.values()[:n_rows].tobytes()


@pytest.mark.parametrize("n_threads", [1, 2, 3, 4])
@pytest.mark.parametrize("is_float", [False, True])
def test_threads_stage_the_same_bytes(is_float: bool, n_threads: int, threads: Threads) -> None:
    x, words = values(1, 45, 96), () if is_float else WORDS
    want = stage(x, words, is_float=is_float).memory.array.tobytes()
    found = stage(x, words, is_float=is_float, executor=threads[n_threads])
    assert found.memory.array.tobytes() == want


def test_private_activations_are_a_copy_for_each_thread(threads: Threads) -> None:
    x = values(1, 1, 96)
    want = stage(x, SUM).memory.array.tobytes()
    own = stage(x, SUM, executor=threads[3], private=3)
    assert own.memory.array.tobytes() == 3 * want


@pytest.mark.parametrize("bad", [np.nan, -np.nan, np.inf, -np.inf])
def test_a_block_with_a_bad_value_has_a_bad_scale(bad: float) -> None:
    x = values(1, 9, 96)
    x[5, 40] = bad
    scales = stage(x, SUM).scales()
    assert not np.isfinite(scales[5, 1])
    scales[5, 1] = 0
    assert np.isfinite(scales).all()
    spread = stage(x, SUM, transform=RMS_NORM, norm=np.ones(96, np.float32)).scales()
    assert not np.isfinite(spread[5, 1])
    assert np.isnan(spread[5]).all() or np.isinf(bad)


def test_blocks_of_next_to_nothing_are_zeros() -> None:
    x = np.ldexp(values(1, 6, 32), np.array([[-149], [-140], [-130], [-126], [-121], [-118]]))
    staged = stage(x.astype(np.float32), WORDS)
    largest = np.abs(x).max(axis=1)
    assert not staged.codes()[largest < float(TINY)].any()
    assert not staged.word(0)[largest < float(TINY)].any()
    assert np.abs(staged.codes()[largest > float(TINY)].astype(int)).max(axis=1).min() == 127
