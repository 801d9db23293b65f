"""Real models: the same bytes whatever the threads, chunks, cache and company.

Their text is longer than Gemma's window and than two chunks of keys.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from loaded_model import loaded, step

from quantcli.formats import F32
from quantcli.runtime.model import Model

pytestmark = [pytest.mark.jit, pytest.mark.model]

GOLDENS = Path(__file__).parent.parent / "goldens" / "logits"
N_TOKENS = 570
# Logits of a few rows: of all, those of Gemma's vocabulary would take 600 MB.
ROWS = (0, 6, 7, 63, 64, 255, 256, 300, 511, 512, 513, 560, 561, 565, 566, 567, 568, 569)


def run(model: Model, tokens: list[int], cuts: list[int], *, with_company: bool = False) -> F32:
    """Run a text in steps that end at `cuts`; return the logits of ROWS.

    with_company   sequence 1 runs the same text in the same steps, a token behind
    """
    found = []
    for start, stop in zip([0, *cuts], cuts, strict=False):
        parts = [(0, start, tokens[start:stop])]
        if with_company and stop > 1:
            behind = max(0, start - 1)
            parts.insert(0, (1, behind, tokens[behind : stop - 1]))
        offset = sum(len(ids) for _, _, ids in parts[:-1])
        rows = [offset + row - start for row in ROWS if start <= row < stop]
        found.append(step(model, parts, rows))
    model.kv.free(0)
    model.kv.free(1)
    return np.concatenate(found)


@pytest.mark.parametrize("kv_type", ["f16", "q8_0"])
@pytest.mark.parametrize("name", ["smollm2", "gemma3"])
def test_a_real_models_logits_are_the_same_bytes(
    name: str, kv_type: str, request: pytest.FixtureRequest
) -> None:
    path = request.getfixturevalue(f"{name}_path")
    golden = json.loads((GOLDENS / f"{name}.json").read_text(encoding="utf-8"))
    tokens = golden["tokens"][:N_TOKENS]
    assert len(tokens) == N_TOKENS
    options = {"kv_type": kv_type, "context": 608}
    with loaded(path, n_threads=1, **options) as model:
        expected = run(model, tokens, [256, 512, 570])
    assert len(expected) == len(ROWS)
    assert len({row.tobytes() for row in expected}) == len(ROWS)
    single = {*range(1, 8), *range(64, 68), *range(255, 259), 511, 512, 514, *range(566, 571)}
    plans = {  # by cache and number of threads
        ("paged", 2): sorted({*single, *range(100, 570, 100)}),
        ("contiguous", 1): [*range(7, 77, 7), *range(128, 570, 64), 570],
    }
    for (cache, n_threads), cuts in plans.items():
        with loaded(path, n_threads=n_threads, cache=cache, n_sequences=2, **options) as model:
            found = run(model, tokens, cuts, with_company=cache == "paged")
            same = (found.view(np.uint32) == expected.view(np.uint32)).all(axis=-1)
            assert same.all(), (cache, n_threads, np.array(ROWS)[~same])
