"""Encoding without statistics: llama.cpp's bytes, for weights of every size."""

from __future__ import annotations

import json
import threading
from pathlib import Path

import gguf
import gguf.quants
import numpy as np
import pytest
from encoder_cases import CASES, N_IN, digests, weights_of

from quantcli import catalog, formats
from quantcli.errors import UsageError
from quantcli.formats import F32
from quantcli.kernels import quantize
from quantcli.kernels.quantize.layouts import LAYOUTS
from quantcli.quantize.mixes import UNWRITTEN

pytestmark = pytest.mark.jit

GOLDENS = Path(__file__).parents[2] / "goldens" / "encoders"
PLAIN = json.loads((GOLDENS / "plain.json").read_text(encoding="utf-8"))
NAMES = ["f32", *PLAIN]
BLOCKS = [name for name in NAMES if formats.get(name).weights_per_block > 1]
# What gguf's own NumPy code encodes; it rounds ties and logarithms of its own way in mxfp4.
IN_GGUF = [name for name in NAMES if formats.get(name).encode or name.startswith("tq")]


def decoded(data: np.ndarray, name: str) -> F32:
    fmt = formats.get(name)
    return fmt.decode(data.view(fmt.block)).reshape(-1, N_IN)


def without_minus_zero(weights: F32) -> F32:
    """Return weights with 0 for -0: which of them a block of zeros starts with decides a sign."""
    return weights + np.float32(0)


def relative_losses(weights: F32, values: F32) -> np.ndarray:
    """Return each row's squared error over its squares."""
    error = np.square(np.float64(values) - weights).sum(axis=1)
    return error / np.square(np.float64(weights)).sum(axis=1)


def test_goldens_hold_every_format_that_can_be_written() -> None:
    assert {*NAMES} == {*LAYOUTS, *(fmt.name for fmt in formats.every() if fmt.encode)}
    assert {*NAMES} == {*catalog.names("format")} - UNWRITTEN


@pytest.mark.parametrize("name", sorted(UNWRITTEN))
def test_a_format_that_can_only_be_read_is_refused(name: str) -> None:
    for importance in (None, np.ones(256, np.float32)):
        with pytest.raises(UsageError, match=f"^quantcli reads {name} but does not write it"):
            quantize.encode(np.zeros((1, 256), np.float32), formats.get(name), importance)


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("name", PLAIN)
def test_bytes_are_llama_cpps(name: str, case: str) -> None:
    fmt = formats.get(name)
    assert digests(fmt, quantize.encode(weights_of(case), fmt)) == PLAIN[name][case]


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("name", IN_GGUF)
def test_bytes_are_those_of_gguf(name: str, case: str) -> None:
    weights, fmt = without_minus_zero(weights_of(case)), formats.get(name)
    want = gguf.quants.quantize(weights, gguf.GGMLQuantizationType(fmt.ggml_id))
    assert quantize.encode(weights, fmt).tobytes() == want.tobytes()


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("name", [n for n in NAMES if formats.get(n).encode])
def test_bytes_are_those_of_the_numpy_twin(name: str, case: str) -> None:
    weights, fmt = without_minus_zero(weights_of(case)), formats.get(name)
    assert fmt.encode is not None
    want = fmt.encode(weights.reshape(-1, fmt.weights_per_block))
    assert quantize.encode(weights, fmt).tobytes() == want.tobytes()


def test_mxfp4_takes_the_power_that_a_rounded_logarithm_gives() -> None:
    # Just below 2**-10, log2 in f32 is -10 exactly; three steps further down it is not.
    weights = np.zeros((3, 32), np.float32)
    weights[:, 0] = 2.0**-10
    for row, steps in enumerate((1, 2, 40)):
        for _ in range(steps):
            weights[row, 0] = np.nextafter(weights[row, 0], np.float32(0))
    blocks = quantize.encode(weights, formats.get("mxfp4")).view(formats.get("mxfp4").block)
    assert blocks["e"].tolist() == [115, 115, 114]


@pytest.mark.parametrize("exponent", [-149, -126, -100, -45])
@pytest.mark.parametrize("name", NAMES)
def test_weights_too_small_for_a_scale_become_smaller_still(name: str, exponent: int) -> None:
    weights = np.ldexp(np.random.default_rng(1).uniform(-1, 1, (2, N_IN)), exponent)
    values = decoded(quantize.encode(weights.astype(np.float32), formats.get(name)), name)
    assert np.abs(values).max() <= 2.0 ** max(exponent, -126)


@pytest.mark.parametrize("exponent", [18, 60, 120, 127])
@pytest.mark.parametrize("name", BLOCKS)
def test_weights_too_large_for_a_scale_are_clipped_and_never_infinite(
    name: str, exponent: int
) -> None:
    weights = np.ldexp(np.random.default_rng(1).uniform(-1, 1, (2, N_IN)), exponent)
    weights = weights.astype(np.float32)
    values = decoded(quantize.encode(weights, formats.get(name)), name)
    assert np.isfinite(values).all()
    assert (relative_losses(weights, values) <= 1 + 1e-6).all()


@pytest.mark.parametrize("name", NAMES)
def test_rows_do_not_know_of_each_other(name: str) -> None:
    weights, fmt = weights_of("heavy_tailed"), formats.get(name)
    whole = quantize.encode(weights, fmt).reshape(len(weights), -1)
    for start, stop in ((0, 1), (3, 7), (15, 16)):
        part = quantize.encode(weights[start:stop], fmt)
        assert part.tobytes() == whole[start:stop].tobytes()


@pytest.mark.parametrize("name", NAMES)
def test_any_strides_are_taken_and_the_argument_is_left_alone(name: str) -> None:
    fmt = formats.get(name)
    wide = np.repeat(weights_of("heavy_tailed")[:4], 2, axis=1)[:, ::2]
    before = wide.copy()
    assert not wide.flags.c_contiguous
    assert quantize.encode(wide, fmt).tobytes() == quantize.encode(before, fmt).tobytes()
    np.testing.assert_array_equal(wide, before)
    assert quantize.encode(wide[:0], fmt).shape == (0,)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("name", NAMES)
def test_what_is_not_finite_ends_in_some_bytes_without_a_warning(name: str, value: float) -> None:
    weights, fmt = weights_of("heavy_tailed"), formats.get(name)
    weights[0, 5], weights[1] = value, value
    nbytes = len(weights) * fmt.row_nbytes(N_IN)
    assert quantize.encode(weights, fmt).size == nbytes
    assert quantize.encode(weights, fmt, np.ones(N_IN, np.float32)).size == nbytes


@pytest.mark.parametrize("name", ["q4_0", "q4_k", "iq4_xs"])
def test_threads_that_encode_at_once_get_what_one_alone_gets(name: str) -> None:
    weights, fmt = weights_of("heavy_tailed"), formats.get(name)
    importance = np.ones(N_IN, np.float32)
    want = quantize.encode(weights, fmt).tobytes(), quantize.encode(weights, fmt, importance)
    wrong = []

    def work() -> None:
        for _ in range(20):
            plain, searched = (
                quantize.encode(weights, fmt),
                quantize.encode(weights, fmt, importance),
            )
            if plain.tobytes() != want[0] or searched.tobytes() != want[1].tobytes():
                wrong.append(name)

    workers = [threading.Thread(target=work) for _ in range(3)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert not wrong
