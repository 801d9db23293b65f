"""Weights and importances that encoders are compared on, the same on every machine.

`scripts/make_goldens_encoders` has llama.cpp encode them; tests compare with what it stored.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable

import numpy as np

from quantcli.formats import F32, U8, BlockFormat

N_IN = 512


def _heavy_tailed(random: np.random.RandomState) -> F32:
    return (0.02 * random.standard_t(6, (16, N_IN))).astype(np.float32)


def _sparse(random: np.random.RandomState) -> F32:
    weights = _heavy_tailed(random)
    weights[random.uniform(size=weights.shape) < 0.9] = 0
    weights[:4] = 0
    weights[4, ::2] = -0.0
    return weights


def _on_a_grid(random: np.random.RandomState) -> F32:
    """Ties everywhere, constant blocks, blocks of one sign."""
    weights = (random.randint(-8, 8, (16, N_IN)) * 0.0625).astype(np.float32)
    weights[:3] = np.abs(weights[:3])
    weights[3:6] = -np.abs(weights[3:6])
    weights[6:8], weights[8:10] = 0.3, -0.3
    return weights


def _of_many_sizes(random: np.random.RandomState) -> F32:
    """Rows, and groups in a row, from almost nothing to what f16 scales can still hold."""
    uniform = random.uniform(-1, 1, (32, N_IN))
    rows = np.arange(-40, 24, 2)[:, None]
    uniform[::4] *= 2.0 ** random.randint(-10, 1, (8, N_IN // 16)).repeat(16, axis=1)
    return np.ldexp(uniform, np.minimum(rows, 10)).astype(np.float32)


CASES: dict[str, Callable[[np.random.RandomState], F32]] = {
    "heavy_tailed": _heavy_tailed,
    "sparse": _sparse,
    "on_a_grid": _on_a_grid,
    "of_many_sizes": _of_many_sizes,
}
IMPORTANCES = ("even", "uneven", "wild")


def weights_of(case: str) -> F32:
    """Return the weights f32 (n_rows, 512) of a case."""
    return CASES[case](np.random.RandomState(list(CASES).index(case)))


def importance_of(name: str) -> F32:
    """Return the importance f32 (512,): all 1, from 0.3 to 3, or as uneven as activations are."""
    spread = {"even": 0.0, "uneven": 0.5, "wild": 2.0}[name]
    normal = np.random.RandomState(99).standard_normal(N_IN)
    return np.exp(spread * normal).astype(np.float32)


def decoded(fmt: BlockFormat, data: U8) -> F32:
    """Return f32 (n_rows, 512): what blocks mean."""
    return fmt.decode(data.view(fmt.block)).reshape(-1, N_IN)


def digests(fmt: BlockFormat, data: U8) -> str:
    """Return four hexadecimal digits for each row."""
    rows = data.reshape(-1, fmt.row_nbytes(N_IN))
    return " ".join(hashlib.sha256(row.tobytes()).hexdigest()[:4] for row in rows)


def losses(weights: F32, importance: F32, values: F32) -> tuple[float, float]:
    """Return the squared errors weighted by importance, and by what llama.cpp makes of it.

    It multiplies by sqrt(2 * mean square of the super-block + w**2). Each row's is divided by what
    it would be with zeros in its place, so that rows of all sizes count.
    """
    w, error = np.float64(weights), np.square(np.float64(values) - weights)
    mean = np.square(w).reshape(len(w), -1, 256).mean(axis=-1).repeat(256, axis=-1)
    found = []
    for counts in (np.broadcast_to(np.float64(importance), w.shape), None):
        if counts is None:
            counts = importance * np.sqrt(2 * mean + w**2)
        whole = (counts * w**2).sum(axis=1)
        found.append(float(((counts * error).sum(axis=1) / np.where(whole > 0, whole, 1)).sum()))
    return found[0], found[1]
