"""One matrix: the same request, the same tokens and log-probabilities to the last bit.

Alone or among 15 others, its prompt cached or not, in chunks or whole, in pages or one span,
drafted or not, put out and computed again or not, on one thread or two; with an adapter, too.
"""

from __future__ import annotations

import itertools
import struct
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest
from loaded_model import loaded
from lora_cases import Lora, write_adapter
from tiny import Tiny, write_model

from quantcli.checkpoint import open_checkpoint
from quantcli.engine import drafting
from quantcli.engine.draft_model import Wanted
from quantcli.engine.leviathan import Guess
from quantcli.engine.loop import Engine
from quantcli.engine.options import EngineOptions
from quantcli.engine.request import Event, Request, SamplingParams
from quantcli.runtime.model import Model
from quantcli.text import Tokenizer, from_metadata

pytestmark = pytest.mark.jit

CONTEXT = 160
N_OTHERS = 15
N_VOCAB = 250  # no more than the tiny vocabularies have
ARCHS = ("llama", "gemma3", "qwen3 with an adapter")
ADAPTER = Lora(rank=6, weight_format="f16")
PHRASE = (11, 45, 7, 99, 23, 23, 81)
PROMPT = (*PHRASE, *range(100, 160), *PHRASE, 5, *PHRASE[:4])  # a page and a bit; it repeats itself

# Between them: greedy and drawn, penalties that look back, log-probabilities of the prompt.
TARGETS = (
    SamplingParams(temperature=0.0, max_tokens=14, n_logprobs=3, ignore_eos=True),
    SamplingParams(
        seed=5, max_tokens=14, n_logprobs=3, repeat_penalty=1.1, repeat_last_n=20, ignore_eos=True
    ),
    SamplingParams(seed=6, temperature=1.5, max_tokens=4, n_logprobs=1, n_prompt_logprobs=2),
)


@dataclass(frozen=True)
class Way:
    """How a request is run."""

    cache: str = "contiguous"
    n_threads: int = 1
    n_others: int = 0
    is_cached: bool = False
    chunk: int = 256
    is_drafted: bool = False
    is_preempted: bool = False


WAYS = [
    Way(*values)
    for values in itertools.product(
        ("contiguous", "paged"), (1, 2), (0, N_OTHERS), (False, True), (256, 16), (False, True),
        (False, True),
    )
]  # fmt: skip


@pytest.fixture(scope="module", params=ARCHS)
def path(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    arch, *adapter = request.param.split(" with ")
    tiny = Tiny(arch, weight_format="mix", context=CONTEXT)
    if adapter:
        write_adapter(folder / "adapter.gguf", tiny, ADAPTER)
    return write_model(folder / f"{arch}.gguf", tiny)


@pytest.fixture(scope="module")
def models(path: Path) -> Iterator[dict[tuple[str, int], tuple[Model, Tokenizer]]]:
    """Yield a model of each kind of cache and number of threads."""
    with open_checkpoint(path) as checkpoint:
        tokenizer = from_metadata(checkpoint.metadata)
    kinds = list(itertools.product(("contiguous", "paged"), (1, 2)))
    adapter = path.with_name("adapter.gguf")
    adapters = [(adapter, 0.5)] if adapter.exists() else []
    found = {}
    with ExitStack() as opened:
        for cache, n in kinds:
            options = {"context": CONTEXT, "n_sequences": N_OTHERS + 1, "adapters": adapters}
            model = loaded(path, cache=cache, n_threads=n, **options)  # type: ignore[arg-type]
            found[cache, n] = (opened.enter_context(model), tokenizer)
        yield found


class Oracle:
    """Drafts what the request is going to say, with mistakes; nonsense for others."""

    seconds = 0.0

    def __init__(self, answer: list[int]) -> None:
        self.answer = answer

    def draft(self, wanted: Sequence[Wanted]) -> dict[int, list[Guess]]:
        return {w.job.number: [Guess(token) for token in self._tokens(w)] for w in wanted}

    def forget(self, number: int) -> None:
        pass

    def _tokens(self, w: Wanted) -> list[int]:
        n_said = len(w.job.tokens) - len(PROMPT)
        if tuple(w.job.tokens[: len(PROMPT)]) != PROMPT:
            return [n_said % 200, 7][: w.n]
        tokens = self.answer[n_said : n_said + min(w.n, 4)]
        return [token if (n_said + i) % 3 < 2 else 3 for i, token in enumerate(tokens)]


@pytest.fixture(autouse=True)
def everything_is_drafted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(drafting, "allot", lambda drafts, *_: [len(draft) for draft in drafts])
    monkeypatch.setattr(drafting, "draft_length", lambda rates, n_most, *_: n_most)


def told(events: list[Event]) -> list[object]:
    """Return what an answer is, with every float as its bytes."""

    def exact(logprobs: object) -> object:
        if logprobs is None:
            return None
        pairs = [(t, struct.pack("d", p)) for t, p in logprobs.top]  # type: ignore[attr-defined]
        return struct.pack("d", logprobs.chosen), pairs  # type: ignore[attr-defined]

    return [
        (
            e.token,
            e.text,
            e.finish,
            exact(e.logprobs),
            None if e.prompt_logprobs is None else [exact(p) for p in e.prompt_logprobs],
        )
        for e in events
    ]


def others() -> Iterator[Request]:
    """Yield company: prompts that begin alike or not, of many lengths and settings."""
    for i in range(N_OTHERS):
        tokens = PROMPT[: 5 * i + 1] if i % 2 else tuple(range(i, 9 * i + 2, 2))
        yield Request(tokens, SamplingParams(seed=i, max_tokens=6 + i, top_k=0, ignore_eos=True))


def run(
    model: Model,
    tokenizer: Tokenizer,
    way: Way,
    params: SamplingParams,
    answer: list[int] | None = None,
) -> list[Event]:
    """Return the events of the request, run in a way.

    answer   what it is going to say, if it is to be drafted
    """
    model.kv.clear()
    options = EngineOptions(
        target_s=None,
        prefix_caching=way.is_cached,
        spec="ngram" if way.is_drafted else "none",
    )
    model.max_rows, max_rows = way.chunk, model.max_rows
    engine = Engine(model, tokenizer, options=options)
    model.max_rows = max_rows
    if way.is_drafted:
        engine._drafting._drafter = Oracle(answer or [])
    request = Request(PROMPT, params)
    if way.is_cached:
        list(engine.generate(Request((*PROMPT, 1, 2), SamplingParams(max_tokens=3))))
    company = list(others())[: way.n_others]
    numbers = [engine.submit(other) for other in company[::2]]
    engine.step()
    number = engine.submit(request)
    numbers += [engine.submit(other) for other in company[1::2]]
    events: list[Event] = []
    for n in itertools.count():
        if engine.is_idle:
            break
        if way.is_preempted and n in (3, 12, 30):
            for job in engine._scheduler.running[-2:]:
                engine._scheduler._preempt(job)
        events += [event for event in engine.step() if event.request == number]
        if events and events[-1].finish is not None:
            for other_number in numbers:
                engine.cancel(other_number)
    check_way(way, params, events, engine)
    model.kv.check()
    assert model.kv.n_free_pages == model.kv.n_pages
    return events


def check_way(way: Way, params: SamplingParams, events: list[Event], engine: Engine) -> None:
    """Assert that the request was run in the way it was meant to be."""
    stats = events[-1].stats
    assert stats is not None
    assert (stats.n_reused > 0) == (way.is_cached and params.n_prompt_logprobs is None)
    if not way.is_drafted:
        assert stats.n_drafted == 0
    elif way.chunk > way.n_others + 1:  # else all rows of a step may be taken
        assert stats.n_drafted > 0
    assert not way.is_preempted or engine.status().n_preempted > 0


@pytest.mark.parametrize("params", TARGETS, ids=("greedy", "drawn", "echo"))
def test_the_same_request_is_answered_in_the_same_bits(
    path: Path,
    models: dict[tuple[str, int], tuple[Model, Tokenizer]],
    params: SamplingParams,
) -> None:
    alone = run(*models["contiguous", 1], Way(), params)
    expected = told(alone)
    answer = [event.token for event in alone if event.token is not None]
    assert len(set(answer)) > 2
    is_whole_matrix = params is TARGETS[1] and "llama" in str(path)
    n_drafted = n_accepted = 0
    some = WAYS[:: 5 if params is TARGETS[0] else 7] if "qwen3" not in str(path) else WAYS[::11]
    for way in WAYS if is_whole_matrix else some:
        events = run(*models[way.cache, way.n_threads], way, params, answer)
        assert told(events) == expected, way
        stats = events[-1].stats
        assert stats is not None
        n_drafted, n_accepted = n_drafted + stats.n_drafted, n_accepted + stats.n_accepted
    assert 0 < n_accepted < n_drafted
