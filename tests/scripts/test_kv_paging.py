"""The simulation of a KV cache's use: what is wasted, and how many more requests fit."""

from __future__ import annotations

import json
import random
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path
from types import ModuleType

import pytest
from source_tree import ROOT

SCRIPT = ROOT / "scripts" / "bench_kv_paging"


@pytest.fixture(scope="module")
def script() -> ModuleType:
    import sys

    loader = SourceFileLoader("bench_kv_paging", str(SCRIPT))
    spec = spec_from_loader("bench_kv_paging", loader)
    assert spec is not None
    module = module_from_spec(spec)
    sys.modules["bench_kv_paging"] = module  # dataclasses look their module up
    loader.exec_module(module)
    module.N_REQUESTS = 120
    return module


def recorded() -> list[tuple[int, int]]:
    path = Path(SCRIPT).with_name("lengths.json")
    return [(p, a) for p, a in json.loads(path.read_text(encoding="utf-8"))]


@pytest.mark.parametrize("overcommit", [1.0, 3.0])
@pytest.mark.parametrize("seed", [0, 1])
def test_pages_waste_less_than_four_percent_and_a_page_a_sequence(
    script: ModuleType, overcommit: float, seed: int
) -> None:
    draw = random.Random(seed)
    uniform = [(draw.randint(1, 300), draw.randint(1, 300)) for _ in range(100)]
    for lengths in (recorded(), uniform):
        result = script.simulate(
            "paged",
            lengths,
            n_slots=4096,
            context=1024,
            max_tokens=768,
            overcommit=overcommit,
            seed=seed,
        )
        assert result.page_waste < 0.04


def test_more_than_twice_as_many_fit_as_with_whole_contexts(script: ModuleType) -> None:
    options = {"n_slots": 8192, "context": 2048, "max_tokens": 768}
    whole = script.simulate("contiguous", recorded(), overcommit=1.0, **options)
    pages = script.simulate("paged", recorded(), overcommit=1.0, **options)
    more = script.simulate("paged", recorded(), overcommit=2.0, **options)
    assert whole.n_running == pytest.approx(4)
    assert pages.n_running > 2 * whole.n_running
    assert more.n_running > 3.5 * whole.n_running
    assert (whole.n_preempted, pages.n_preempted) == (0, 0)
