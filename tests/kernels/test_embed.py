"""Embedding lookup: threads, scale and order; what rows mean is tested for every format."""

from __future__ import annotations

import numpy as np
import pytest
from kernel_calls import Threads, decoded, look_up, pack, random_rows

from quantcli import formats
from quantcli.kernels import embed

pytestmark = pytest.mark.jit


@pytest.mark.parametrize("n_threads", [1, 2, 3])
@pytest.mark.parametrize("name", ["f32", "q4_0", "q6_k"])
def test_threads_look_up_the_same_rows(name: str, n_threads: int, threads: Threads) -> None:
    fmt = formats.get(name)
    data = random_rows(fmt, 70, 512)
    tokens = np.random.default_rng(1).integers(0, 70, 100).tolist()
    packed = pack(name, data)
    found = look_up(packed, tokens, 0.25, threads[n_threads])
    np.testing.assert_array_equal(found, embed.reference(decoded(fmt, data), tokens, 0.25))


def test_scale_one_keeps_every_bit() -> None:
    fmt = formats.get("f32")
    weights = np.array([[1.0, -0.0, np.nan, 1e-45] * 8] * 17, np.float32)
    packed = pack("f32", weights.view(np.uint8).reshape(17, -1))
    assert look_up(packed, range(17)).tobytes() == weights.tobytes()
    assert fmt.name == packed.panel.name
