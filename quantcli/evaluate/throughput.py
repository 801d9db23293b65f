"""How fast a model reads prompts and generates, measured on forward passes alone.

The tests are llama-bench's: pp512 feeds 512 tokens, with logits for the last one only; tg128
generates 128 tokens one at a time, the choice of the likeliest token included.
"""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np
import numpy.typing as npt

from quantcli.errors import UsageError
from quantcli.runtime.model import Batch

if TYPE_CHECKING:
    from quantcli.kvcache import KVCache

F32 = npt.NDArray[np.float32]
Progress = Callable[[str, int, int], None]
Clock = Callable[[], float]

_SEQUENCE = 0


class Runnable(Protocol):
    """A model as far as measuring needs it."""

    n_vocab: int
    context: int
    max_rows: int
    kv: KVCache

    def forward(self, batch: Batch) -> F32:
        """Return f32 (n_outputs, n_vocab), the logits of the rows that want them."""
        ...


@dataclass(frozen=True, slots=True)
class Workload:
    """What one measurement does.

    kind      "pp" for prompt processing, "tg" for text generation
    n_tokens  tokens that are timed
    depth     tokens already in the context when the clock starts
    """

    kind: str
    n_tokens: int
    depth: int = 0

    @property
    def name(self) -> str:
        """The name llama-bench gives it: pp512, tg128, tg128 @ d2048."""
        return f"{self.kind}{self.n_tokens}" + (f" @ d{self.depth}" if self.depth else "")


@dataclass(frozen=True, slots=True)
class Throughput:
    """The result of one workload, one time for each repetition."""

    workload: Workload
    seconds: tuple[float, ...]

    @property
    def rates(self) -> tuple[float, ...]:
        """Tokens per second of each repetition."""
        return tuple(self.workload.n_tokens / s for s in self.seconds)

    @property
    def mean(self) -> float:
        """Mean tokens per second."""
        return statistics.fmean(self.rates)

    @property
    def sd(self) -> float:
        """Sample standard deviation of tokens per second, 0 for one repetition."""
        return statistics.stdev(self.rates) if len(self.seconds) > 1 else 0.0

    @property
    def median(self) -> float:
        """Median tokens per second."""
        return statistics.median(self.rates)


def measure(
    model: Runnable,
    workload: Workload,
    repetitions: int,
    *,
    warmup: bool = True,
    progress: Progress | None = None,
    clock: Clock = time.perf_counter,
) -> Throughput:
    """Run a workload several times, each on an empty cache, and return the times.

    The first run, which compiles and fills caches, is not counted unless `warmup` is off. The
    sequence used is free again afterwards. Raises UsageError if the context is too short.
    """
    if workload.n_tokens < 1 or repetitions < 1 or workload.depth < 0:
        raise UsageError(f"{workload.name} repeated {repetitions} times measures nothing.")
    if workload.depth + workload.n_tokens > model.context:
        raise UsageError(
            f"{workload.name} needs a context of {workload.depth + workload.n_tokens} tokens, and "
            f"it is {model.context}. Use a larger --ctx."
        )
    run = {"pp": _prompt, "tg": _generation}[workload.kind]
    seconds = []
    first = -1 if warmup else 0
    try:
        for repetition in range(first, repetitions):
            if progress is not None:
                progress(f"measuring {workload.name}", repetition + 1, repetitions)
            model.kv.free(_SEQUENCE)
            tokens = _tokens(model.n_vocab, workload.depth + workload.n_tokens)
            _feed(model, tokens[: workload.depth], 0)
            elapsed = run(model, tokens[workload.depth :], workload.depth, clock)
            if repetition >= 0:
                seconds.append(elapsed)
    finally:
        model.kv.free(_SEQUENCE)
    return Throughput(workload, tuple(seconds))


def read_bandwidth(
    n_threads: int, nbytes: int = 256 << 20, clock: Clock = time.perf_counter
) -> int:
    """Return how many bytes a second `n_threads` threads read from memory, best of five."""
    words = np.ones(nbytes // 8, np.uint64)
    parts = np.array_split(words, n_threads)

    def read(part: npt.NDArray[np.uint64]) -> int:
        return int(np.bitwise_xor.reduce(part))  # lets the other threads run, and adds no carries

    best = float("inf")
    with ThreadPoolExecutor(n_threads) as pool:
        for _ in range(5):
            start = clock()
            list(pool.map(read, parts))
            best = min(best, clock() - start)
    return int(nbytes / best)


def _prompt(model: Runnable, tokens: Sequence[int], start: int, clock: Clock) -> float:
    begin = clock()
    _feed(model, tokens, start)
    return clock() - begin


def _generation(model: Runnable, tokens: Sequence[int], start: int, clock: Clock) -> float:
    token = tokens[0]
    begin = clock()
    for position in range(start, start + len(tokens)):
        model.kv.reserve(_SEQUENCE, position + 1)
        logits = model.forward(Batch([token], [position], [_SEQUENCE], [0]))
        token = int(np.argmax(logits[0]))
    return clock() - begin


def _feed(model: Runnable, tokens: Sequence[int], start: int) -> None:
    """Run tokens through in the largest steps there are, with logits for the last only."""
    for first in range(0, len(tokens), model.max_rows):
        step = list(tokens[first : first + model.max_rows])
        position = start + first
        model.kv.reserve(_SEQUENCE, position + len(step))
        is_last = first + len(step) == len(tokens)
        model.forward(
            Batch(
                step,
                list(range(position, position + len(step))),
                [_SEQUENCE] * len(step),
                [len(step) - 1] if is_last else [],
            )
        )


def _tokens(n_vocab: int, n_tokens: int) -> list[int]:
    """Return tokens that are the same each time and nothing a cache could profit from."""
    return random.Random(0).choices(range(n_vocab), k=n_tokens)
