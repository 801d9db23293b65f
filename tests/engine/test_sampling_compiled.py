"""The compiled loop against the chain as it is written: the same token for every row."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from quantcli.engine import rng
from quantcli.engine.leviathan import draw
from quantcli.engine.request import SamplingParams
from quantcli.engine.sampling import Chooser, Sampler, choose_reference, settings
from quantcli.errors import ModelError
from quantcli.kernels import sampling as kernel

pytestmark = pytest.mark.jit

SIZES = (1, 2, 255, 256, 257, 5000)
PARAMS = [
    SamplingParams(temperature=t, top_k=k, top_p=p, min_p=m, typical_p=typical)
    for t, k, p, m, typical in itertools.product(
        (0.0, 0.8, 1.0, 3.0), (0, 1, 40, 400), (0.0, 0.5, 0.95, 1.0), (0.0, 0.05), (0.6, 1.0)
    )
]


def rows(n: int, generator: np.random.Generator) -> list[np.ndarray]:
    """Return rows of many shapes: peaked, flat, tied, with bans, with both zeros, huge."""
    normal = generator.standard_normal(n)
    peaked = normal * 3
    peaked[generator.integers(n, size=min(n, 5))] += 12
    banned = normal * 2
    banned[generator.random(n) < 0.5] = -np.inf
    banned[generator.integers(n)] = 1.0
    shapes = [
        normal,
        peaked,
        normal * 0.01,
        np.zeros(n),
        np.round(normal),
        np.where(normal > 0, 0.0, -0.0),
        banned,
        normal * 1e30,
        np.where(normal > 1, 3e38, -3e38),
        np.sort(normal),
    ]
    return [shape.astype(np.float32) for shape in shapes]


@pytest.mark.parametrize("n", SIZES)
def test_same_token_as_the_reference(n: int) -> None:
    generator = np.random.default_rng(n)
    chooser = Chooser(n)
    checked = 0
    for params in PARAMS:
        for row in rows(n, generator):
            u = generator.random()
            want = choose_reference(row, params, u)
            got = chooser.choose(row, params, settings(params), u)
            assert got == want, (params, u, row[:8])
            checked += 1
    assert checked == len(PARAMS) * 10


def test_same_token_as_the_reference_at_both_ends_of_u() -> None:
    generator = np.random.default_rng(0)
    chooser = Chooser(257)
    for params, u in itertools.product(PARAMS[::7], (0.0, 1 - 2**-53)):
        for row in rows(257, generator):
            want = choose_reference(row, params, u)
            assert chooser.choose(row, params, settings(params), u) == want


@pytest.mark.parametrize("typical_p", [0.99, 1.0])
def test_a_banned_token_is_not_drawn_at_either_end_of_u(typical_p: float) -> None:
    row = np.full(300, -np.inf, np.float32)
    row[[7, 100]] = 1.0
    params = SamplingParams(top_k=40, top_p=1.0, min_p=0.0, typical_p=typical_p)
    chooser = Chooser(300)
    for u, token in ((0.0, 7), (1 - 2**-53, 100)):
        assert choose_reference(row, params, u) == token
        assert chooser.choose(row, params, settings(params), u) == token


def test_same_token_as_the_reference_in_a_large_vocabulary() -> None:
    n = 262_144
    generator = np.random.default_rng(3)
    chooser = Chooser(n)
    for params in PARAMS[::23]:
        for row in rows(n, generator)[:3]:
            u = generator.random()
            want = choose_reference(row, params, u)
            assert chooser.choose(row, params, settings(params), u) == want


@pytest.mark.parametrize("n", [1, 256, 300, 5000])
@pytest.mark.parametrize("bad", [math.nan, -math.nan, math.inf])
def test_bad_logits_are_seen_wherever_they_are(n: int, bad: float) -> None:
    chooser = Chooser(n)
    for place in {0, n // 2, n - 1}:
        row = np.zeros(n, np.float32)
        row[place] = bad
        for temperature in (0.0, 1.0):
            params = SamplingParams(temperature=temperature)
            assert chooser.choose(row, params, settings(params), 0.5) == kernel.NOT_FINITE


def test_every_nan_pattern_is_seen() -> None:
    chooser = Chooser(300)
    for bits in (0x7F800001, 0x7FC00000, 0x7FFFFFFF, 0xFF800001, 0xFFC00000, 0xFFFFFFFF):
        row = np.zeros(300, np.float32)
        row.view(np.uint32)[77] = bits
        params = SamplingParams()
        assert chooser.choose(row, params, settings(params), 0.5) == kernel.NOT_FINITE


def test_only_minus_inf_is_nothing() -> None:
    row = np.full(300, -np.inf, np.float32)
    chooser = Chooser(300)
    params = SamplingParams()
    assert chooser.choose(row, params, settings(params), 0.5) == kernel.NOTHING


def test_errors_say_where_as_the_reference_does() -> None:
    row = np.zeros(300, np.float32)
    row[[123, 200]] = math.nan
    messages = []
    for backend in ("compiled", "reference"):
        sampler = Sampler(SamplingParams(), 0, Chooser(300, backend))
        with pytest.raises(ModelError, match="request 1: the logit of token 123 is nan") as error:
            sampler.choose(row, "request 1: ")
        messages.append(str(error.value))
    assert messages[0] == messages[1]


@pytest.mark.parametrize("n", SIZES)
def test_most_likely_tokens_and_weight_equal_the_references(n: int) -> None:
    generator = np.random.default_rng(n)
    compiled, reference = Chooser(n), Chooser(n, "reference")
    for row in rows(n, generator):
        for k in (1, 5, 20, n):
            got, want = compiled.most_likely(row, k), reference.most_likely(row, k)
            assert list(got[0]) == list(want[0])
            assert got[1] == want[1]


def test_whole_requests_equal_the_references() -> None:
    generator = np.random.default_rng(5)
    n = 1000
    params = SamplingParams(
        repeat_penalty=1.3, presence_penalty=0.5, frequency_penalty=0.2, logit_bias={3: 4.0, 5: -2}
    )
    samplers = [Sampler(params, 11, Chooser(n, b), (7, 8)) for b in ("compiled", "reference")]
    table = (generator.standard_normal((n, n)) * 2).astype(np.float32)
    token = 0
    for _ in range(300):
        row = table[token]
        got = [sampler.choose(row) for sampler in samplers]
        assert got[0] == got[1]
        token = got[0]
        for sampler in samplers:
            sampler.accept(token)
    assert samplers[0].n_chosen == 300


def test_a_read_only_or_strided_row_is_taken() -> None:
    row = np.zeros((300, 2), np.float32)
    row[17, 0] = 1.0
    chooser = Chooser(300)
    params = SamplingParams(temperature=0.0)
    assert chooser.choose(row[:, 0], params, settings(params), 0.0) == 17
    row = np.ascontiguousarray(row[:, 0])
    row.flags.writeable = False
    assert chooser.choose(row, params, settings(params), 0.0) == 17


def test_draws_have_the_right_frequencies() -> None:
    scipy_stats = pytest.importorskip("scipy.stats")
    probabilities = np.array([0.4, 0.3, 0.15, 0.1, 0.05])
    row = np.log(probabilities).astype(np.float32)
    params = SamplingParams(temperature=1.0, top_k=0, top_p=1.0, min_p=0.0)
    chooser, packed = Chooser(5), settings(params)
    drawn = [chooser.choose(row, params, packed, rng.uniform(42, i)) for i in range(20_000)]
    counts = np.bincount(drawn, minlength=5)
    assert scipy_stats.chisquare(counts, probabilities * 20_000).pvalue > 1e-3


@pytest.mark.parametrize("n", SIZES)
def test_the_same_weights_as_the_reference(n: int) -> None:
    generator = np.random.default_rng(n)
    compiled, reference = Chooser(n), Chooser(n, "reference")
    for params in PARAMS[::7]:
        packed = settings(params)
        for row in rows(n, generator):
            ids, weights = compiled.weigh(row, params, packed)
            other_ids, other = reference.weigh(row, params, packed)
            # Some weigh nothing; the compiled loop looks no deeper than it must.
            assert ids[weights > 0].tolist() == other_ids[other > 0].tolist()
            assert weights[weights > 0].tolist() == other[other > 0].tolist()
            u = generator.random()
            assert compiled.choose(row, params, packed, u) == draw(ids, weights, u)


def test_a_mask_bias_and_penalties_compiled_and_as_written_choose_the_same() -> None:
    n = 500
    generator = np.random.default_rng(3)
    params = SamplingParams(
        temperature=0.9, repeat_penalty=1.2, logit_bias={3: 4.0, 7: -math.inf}, min_tokens=9
    )
    samplers = [
        Sampler(params, 11, Chooser(n, backend), ends=(5, 6))
        for backend in ("compiled", "reference")
    ]
    for row in rows(n, generator):
        allowed = generator.integers(0, 2**32, 16, np.uint32)
        allowed[0] |= np.uint32(1 << 3)
        tokens = [sampler.choose(row, allowed=allowed) for sampler in samplers]
        assert tokens[0] == tokens[1]
        assert allowed[tokens[0] // 32] >> np.uint32(tokens[0] % 32) & 1
        assert tokens[0] not in (5, 6, 7) or samplers[0].n_chosen > 9
        for sampler in samplers:
            sampler.accept(tokens[0])
