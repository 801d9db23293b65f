"""The load of bench_serving: what it counts, and that it is the same every time."""

from __future__ import annotations

import importlib.util
import sys
from types import ModuleType

import pytest
from running_server import running
from source_tree import ROOT


@pytest.fixture(scope="module")
def load() -> ModuleType:
    """Return the module, which lies beside the scripts."""
    path = ROOT / "scripts" / "serving_load.py"
    spec = importlib.util.spec_from_file_location("serving_load", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["serving_load"] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


def test_answers_are_counted_as_the_server_counts_them(load: ModuleType) -> None:
    with running(lambda history: 104, context=512) as server:
        asked = load.asks(3, 5, 20, seed=1)
        seconds, answers = load.run(server.url, asked)
    assert [answer.n_tokens for answer in answers] == [20] * 3
    for answer in answers:
        assert answer.n_prompt > 5
        assert 0 < answer.first_s <= answer.pieces[-1] - answer.sent_s <= seconds
        assert len(answer.gaps) == len(answer.pieces) - 1


def test_requests_at_random_are_the_same_every_time(load: ModuleType) -> None:
    first, again = (load.poisson(20, 5.0, 8, seed=3) for _ in range(2))
    assert first == again
    times = [ask.at_s for ask in first]
    assert times == sorted(times)
    assert len({ask.prompt for ask in first}) == 20


def test_a_server_that_refuses_ends_the_load(load: ModuleType) -> None:
    with running(limits={"n_waiting": 0}, n_parallel=1) as server:
        server.service.is_draining = True
        with pytest.raises(SystemExit, match="503"):
            load.run(server.url, load.asks(1, 5, 2, seed=1))


@pytest.mark.parametrize(("share", "value"), [(0.0, 1), (0.5, 2), (0.99, 3), (1.0, 3)])
def test_quantiles(load: ModuleType, share: float, value: int) -> None:
    assert load.quantile([3, 1, 2], share) == value
