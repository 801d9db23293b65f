"""GPTQ as a quantizer: never worse than the search, the same bytes always, hard cases too."""

from __future__ import annotations

from dataclasses import replace

import gguf
import numpy as np
import pytest
from gguf.quants import dequantize

from quantcli import formats
from quantcli.formats import F32, U8
from quantcli.kernels.quantize.layouts import LAYOUTS
from quantcli.quantize import MatrixJob, MatrixResult, Statistics
from quantcli.quantize.factor import factorize
from quantcli.quantize.gptq import Gptq
from quantcli.quantize.plain import QUANTIZER as PLAIN
from quantcli.quantize.targets import BlockTarget, IntegerTarget, Scales

pytestmark = pytest.mark.jit

N_IN = 512


def tokens(n: int, n_in: int = N_IN, seed: int = 0) -> F32:
    """Return inputs whose channels differ in size and move together."""
    random = np.random.default_rng(seed)
    mixed = random.standard_normal((n, n_in // 3)) @ random.standard_normal((n_in // 3, n_in))
    x = mixed / np.sqrt(n_in / 3) + 0.5 * random.standard_normal((n, n_in))
    return (x * np.exp(0.7 * random.standard_normal(n_in))).astype(np.float32)


def statistics_of(x: F32) -> Statistics:
    """Return the moments of inputs."""
    h = np.float64(x).T @ np.float64(x) / max(len(x), 1)
    return Statistics(np.diag(h).astype(np.float32), len(x), h.astype(np.float32))


def job(name: str, x: F32, n_rows: int = 40, seed: int = 1) -> MatrixJob:
    """Return a matrix to quantize."""
    random = np.random.default_rng(seed)
    weight = (random.standard_t(6, (n_rows, x.shape[1])) * 0.02).astype(np.float32)
    return MatrixJob("w", weight, formats.get(name), formats.get("f32"), statistics_of(x))


def loss(work: MatrixJob, data: U8) -> float:
    """Return tr(dW H dW^T) in f64, decoded by the gguf package."""
    kind = gguf.GGMLQuantizationType(work.format.ggml_id)
    weight = np.float64(work.weight)
    error = weight - dequantize(data.reshape(len(weight), -1), kind)
    assert work.statistics is not None
    return float(np.einsum("ij,ij->", error @ np.float64(work.statistics.hessian), error))


def run(work: MatrixJob, gptq: Gptq) -> MatrixResult:
    """Quantize a copy, since a quantizer may overwrite the weights."""
    return gptq.quantize(replace(work, weight=work.weight.copy()))


@pytest.mark.parametrize("name", sorted(LAYOUTS))
def test_every_format_loses_much_less_than_by_the_search(name: str) -> None:
    work = job(name, tokens(2000))
    result = run(work, Gptq(n_threads=2))
    plain = PLAIN.quantize(replace(work, weight=work.weight.copy()))
    assert work.statistics is not None
    energy = float(np.einsum("ij,ij->", work.weight @ work.statistics.hessian, work.weight))
    np.testing.assert_allclose(result.error, loss(work, result.data) / energy, rtol=1e-3)
    assert result.baseline is not None
    np.testing.assert_allclose(result.baseline, loss(work, plain.data) / energy, rtol=2e-2)
    assert result.error < 0.65 * result.baseline
    assert result.notes == ()


@pytest.mark.parametrize("n_tokens", [3, 60, 400])
@pytest.mark.parametrize("name", ["q4_0", "q4_k", "q3_k"])
def test_no_row_is_worse_than_by_the_search(name: str, n_tokens: int) -> None:
    work = job(name, tokens(n_tokens, seed=n_tokens))
    statistics = work.statistics
    assert statistics is not None
    gptq, target = Gptq(n_threads=1, n_rounds=1), BlockTarget(work.format)
    factor = gptq.factor(statistics, target)
    assert factor is not None
    chosen = gptq.choose(work.weight, target, factor, statistics)
    assert (chosen.losses <= chosen.baseline).all()
    result = run(work, gptq)
    plain = PLAIN.quantize(replace(work, weight=work.weight.copy()))
    assert loss(work, result.data) <= loss(work, plain.data) * (1 + 1e-4)


def test_without_correlations_it_is_the_search() -> None:
    work = job("q4_k", tokens(10))
    eye = np.eye(N_IN, dtype=np.float32) * 3
    work = replace(work, statistics=Statistics(np.diag(eye).copy(), 1000, eye))
    result = run(work, Gptq(n_threads=1, n_rounds=0))
    plain = PLAIN.quantize(replace(work, weight=work.weight.copy()))
    assert result.data.tobytes() == plain.data.tobytes()
    assert result.error == result.baseline


def test_bytes_do_not_depend_on_threads_or_on_other_rows() -> None:
    work = job("q4_k", tokens(900), n_rows=300)
    results = [run(work, Gptq(n_threads=n)) for n in (1, 2, 3)]
    assert len({result.data.tobytes() for result in results}) == 1
    some = replace(work, weight=work.weight[37:90].copy())
    row = results[0].data.reshape(300, -1)
    assert run(some, Gptq(n_threads=1)).data.tobytes() == row[37:90].tobytes()


def test_matrices_that_share_an_input_share_its_factor() -> None:
    gptq = Gptq(n_threads=1, n_rounds=0)
    work = job("q4_0", tokens(100))
    assert work.statistics is not None
    first = gptq.factor(work.statistics, BlockTarget(formats.get("q4_0")))
    assert gptq.factor(work.statistics, BlockTarget(formats.get("q5_0"))) is first
    assert gptq.factor(work.statistics, BlockTarget(formats.get("q4_k"))) is not first


def test_dead_inputs_keep_their_weights() -> None:
    x = tokens(600)
    x[:, 40:44] = 0
    work = job("q8_0", x)
    kind = gguf.GGMLQuantizationType(work.format.ggml_id)
    result = run(work, Gptq(n_threads=1))
    values = dequantize(result.data.reshape(len(work.weight), -1), kind)
    error = np.abs(values - work.weight)[:, 40:44]
    assert error.max() < np.abs(work.weight).max() / 100


def test_what_cannot_be_factored_is_searched_with_a_note() -> None:
    work = job("q4_0", tokens(10))
    nothing = np.zeros((N_IN, N_IN), np.float32)
    unseen = replace(work, statistics=Statistics(np.zeros(N_IN, np.float32), 0, nothing))
    wrong = nothing.copy()
    wrong[np.diag_indices(N_IN)] = 1
    wrong[0, 1] = wrong[1, 0] = 1e9
    broken = replace(work, statistics=Statistics(np.ones(N_IN, np.float32), 9, wrong))
    bare = replace(work, statistics=Statistics(np.ones(N_IN, np.float32), 9))
    for case, why in ((unseen, "no token reached"), (broken, "cannot be factored"), (bare, "")):
        result = run(case, Gptq())
        plain = PLAIN.quantize(replace(case, weight=case.weight.copy()))
        assert result.data.tobytes() == plain.data.tobytes()
        assert not why or why in result.notes[-1]


def test_more_damping_than_asked_for_is_said() -> None:
    work = job("q4_0", tokens(300))
    assert work.statistics is not None
    assert work.statistics.hessian is not None
    h = work.statistics.hessian.copy()
    h[3, 5] = h[5, 3] = np.sqrt(h[3, 3] * h[5, 5]) + 0.1 * np.diag(h).mean()
    work = replace(work, statistics=replace(work.statistics, hessian=h))
    result = run(work, Gptq(n_threads=1, shrink=0.0))
    assert "damped by" in result.notes[0]
    assert result.baseline is not None
    assert result.error <= result.baseline


def test_formats_without_codes_are_encoded() -> None:
    work = job("bf16", tokens(10))
    assert run(work, Gptq()).data.tobytes() == PLAIN.quantize(work).data.tobytes()


@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize(("bits", "group"), [(4, 32), (4, 128), (8, 64)])
def test_integers_with_groups(bits: int, group: int, symmetric: bool) -> None:
    work = job("f32", tokens(1500))
    statistics = work.statistics
    assert statistics is not None
    assert statistics.hessian is not None
    target, gptq = IntegerTarget(bits, group, symmetric=symmetric), Gptq(n_threads=2)
    factor = gptq.factor(statistics, target)
    assert factor is not None
    chosen = gptq.choose(work.weight, target, factor, statistics)
    assert chosen.losses.sum() < 0.65 * chosen.baseline.sum()
    _check_integers(chosen.scales, chosen.codes, target)
    scale = np.repeat(chosen.scales.scales, group, axis=1)
    minimum = np.repeat(chosen.scales.minima, group, axis=1)
    error = np.float64(work.weight) - (scale * target.levels[chosen.codes] - minimum)
    want = np.einsum("ij,ij->i", error @ np.float64(statistics.hessian), error)
    np.testing.assert_allclose(chosen.losses, want, rtol=1e-3)


def _check_integers(scales: Scales, codes: U8, target: IntegerTarget) -> None:
    half = 1 << (target.bits - 1)
    assert codes.max() < 2 * half
    np.testing.assert_array_equal(scales.scales, np.float16(scales.scales).astype(np.float32))
    nonzero = scales.scales != 0
    zeros = scales.minima[nonzero] / scales.scales[nonzero]
    np.testing.assert_allclose(zeros, np.rint(zeros), atol=1e-3)
    assert zeros.min() >= -half
    assert zeros.max() < half
    if target.symmetric:
        assert not zeros.any()


def test_a_group_of_zeros_or_of_one_sign_is_no_trouble() -> None:
    target = IntegerTarget(4, 32, symmetric=False)
    weights = np.zeros((3, 64), np.float32)
    weights[1] = np.linspace(0.5, 1, 64)
    weights[2] = -weights[1]
    scales = target.fit(weights, np.ones(64, np.float32))
    codes = target.nearest(weights, scales)
    values = np.repeat(scales.scales, 32, 1) * target.levels[codes] - np.repeat(
        scales.minima, 32, 1
    )
    assert np.abs(values - weights).max() < 1 / 15
    _check_integers(scales, codes, target)


def test_blocks_are_assembled_as_chosen() -> None:
    work = job("f32", tokens(300, n_in=256), n_rows=17)
    statistics = work.statistics
    assert statistics is not None
    assert statistics.hessian is not None
    factors = {w: factorize(statistics.hessian, w, shrink=0.1, damping=0.01) for w in (32, 256)}
    for name in sorted(LAYOUTS):
        work = replace(work, format=formats.get(name))
        gptq, target = Gptq(n_threads=1, n_rounds=1), BlockTarget(work.format)
        factor = factors[target.width]
        assert factor is not None
        chosen = gptq.choose(work.weight, target, factor, statistics)
        data = target.assemble(chosen.scales, chosen.codes)
        blocks = data.reshape(-1).view(work.format.block)
        scale = np.repeat(chosen.scales.scales, target.group, axis=1)
        minimum = np.repeat(chosen.scales.minima, target.group, axis=1)
        want = scale * target.levels[chosen.codes] - minimum
        np.testing.assert_array_equal(work.format.decode(blocks).reshape(want.shape), want)
