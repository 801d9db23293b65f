"""The search for scales: what it promises whoever chooses codes on its grid."""

from __future__ import annotations

import numpy as np
import pytest

from quantcli import formats
from quantcli.formats import F32
from quantcli.kernels import quantize
from quantcli.kernels.quantize.layouts import LAYOUTS

pytestmark = pytest.mark.jit

NAMES = tuple(LAYOUTS)


def case(n_rows: int = 5, n_in: int = 512, seed: int = 0) -> tuple[F32, F32]:
    """Return heavy-tailed weights and the importance of their inputs."""
    rng = np.random.default_rng(seed)
    weights = (rng.standard_t(6, (n_rows, n_in)) * 0.02).astype(np.float32)
    return weights, np.exp(1.5 * rng.standard_normal(n_in)).astype(np.float32)


def decoded(data: np.ndarray, name: str, shape: tuple[int, ...]) -> F32:
    fmt = formats.get(name)
    return fmt.decode(data.view(fmt.block)).reshape(shape)


@pytest.mark.parametrize("name", NAMES)
def test_encode_with_importance_is_the_nearest_codes_on_the_fitted_grid(name: str) -> None:
    weights, importance = case()
    fmt = formats.get(name)
    grid = quantize.fit(weights, fmt, importance)
    data = quantize.assemble(grid, quantize.nearest(grid, weights))
    assert data.tobytes() == quantize.encode(weights, fmt, importance).tobytes()


@pytest.mark.parametrize("name", NAMES)
def test_blocks_of_any_codes_decode_to_what_the_grid_says(name: str) -> None:
    weights, importance = case()
    grid = quantize.fit(weights, formats.get(name), importance)
    codes = np.random.default_rng(1).integers(0, len(grid.levels), weights.shape, np.uint8)
    scales, minima = (a.repeat(grid.group, axis=1) for a in (grid.scales, grid.minima))
    want = scales * grid.levels[codes] - minima
    np.testing.assert_array_equal(decoded(quantize.assemble(grid, codes), name, codes.shape), want)
