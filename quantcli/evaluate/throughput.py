"""How fast a model reads prompts and generates, measured on forward passes alone.

The tests are llama-bench's: pp512 feeds 512 tokens, with logits for the last one only; tg128
generates 128 tokens one at a time, the choice of the likeliest token included. tg128 x4 generates
128 tokens in each of four sequences, one token of each a step.
"""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from quantcli.errors import UsageError
from quantcli.runtime.model import Batch

F32 = npt.NDArray[np.float32]
Progress = Callable[[str, int, int], None]
Clock = Callable[[], float]

_PROBE_ROWS = 64
_PROBE_STEPS = 4


class Cache(Protocol):
    """A KV cache as far as measuring needs it; see `quantcli.kvcache.KVCache`."""

    def reserve(self, seq: int, n_tokens: int) -> None:
        """Make slots for positions [0, n_tokens) of a sequence."""
        ...

    def truncate(self, seq: int, n_tokens: int) -> None:
        """Keep the first n_tokens of a sequence."""
        ...

    def free(self, seq: int) -> None:
        """Forget a sequence, if it is known."""
        ...


class Runnable(Protocol):
    """A model as far as measuring needs it."""

    n_vocab: int
    context: int
    max_rows: int

    @property
    def kv(self) -> Cache:
        """Who holds which slots."""
        ...

    def forward(self, batch: Batch) -> F32:
        """Return f32 (n_outputs, n_vocab), the logits of the rows that want them."""
        ...


@dataclass(frozen=True, slots=True)
class Workload:
    """What one measurement does.

    kind         "pp" for prompt processing, "tg" for text generation
    n_tokens     tokens of each sequence that are timed
    depth        tokens of each sequence already in the context when the clock starts
    n_sequences  sequences that generate at once
    """

    kind: str
    n_tokens: int
    depth: int = 0
    n_sequences: int = 1

    @property
    def name(self) -> str:
        """The name llama-bench gives it: pp512, tg128 @ d2048; and tg128 x4 for four sequences."""
        sequences = f" x{self.n_sequences}" if self.n_sequences > 1 else ""
        depth = f" @ d{self.depth}" if self.depth else ""
        return f"{self.kind}{self.n_tokens}{sequences}{depth}"

    @property
    def n_positions(self) -> int:
        """Positions of a sequence that are needed."""
        return self.depth + self.n_tokens

    @property
    def n_timed(self) -> int:
        """Tokens that are timed, of all sequences."""
        return self.n_tokens * self.n_sequences


@dataclass(frozen=True, slots=True)
class Throughput:
    """The result of one workload, one time for each repetition."""

    workload: Workload
    seconds: tuple[float, ...]

    @property
    def rates(self) -> tuple[float, ...]:
        """Tokens per second of each repetition."""
        return tuple(self.workload.n_timed / s for s in self.seconds)

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


class Runner:
    """Runs workloads on one model, whose sequences it has to itself.

    What lies in the context beforehand is computed once and kept from one run to the next.
    """

    def __init__(self, model: Runnable, clock: Clock = time.perf_counter) -> None:
        """Take a model with an empty cache."""
        self.model = model
        self._clock = clock
        self._fed: dict[int, int] = {}  # sequence: tokens of it in the cache

    def prepare(self, workload: Workload, progress: Progress | None = None) -> None:
        """Bring every sequence to the workload's depth.

        Raises UsageError if the context or a step is too small, ResourceError if the cache is.
        """
        _check(self.model, workload)
        for sequence in [s for s in self._fed if s >= workload.n_sequences]:
            self._free(sequence)
        for sequence in range(workload.n_sequences):
            fed = self._fed.get(sequence, 0)
            if fed > workload.depth:
                self._truncate(sequence, workload.depth)
            elif fed < workload.depth:
                self._feed(sequence, fed, workload.depth, progress)
            self._fed[sequence] = workload.depth

    def run(self, workload: Workload) -> float:
        """Return the seconds of a prepared workload; the cache is as before, afterwards."""
        run = self._prompt if workload.kind == "pp" else self._generation
        elapsed = run(workload)
        for sequence in range(workload.n_sequences):
            if workload.depth:
                self._truncate(sequence, workload.depth)
            else:
                self._free(sequence)
        return elapsed

    def close(self) -> None:
        """Give all slots back."""
        for sequence in list(self._fed):
            self._free(sequence)

    def _prompt(self, workload: Workload) -> float:
        begin = self._clock()
        self._feed(0, workload.depth, workload.n_positions)
        return self._clock() - begin

    def _generation(self, workload: Workload) -> float:
        model, sequences = self.model, list(range(workload.n_sequences))
        tokens = [
            random_tokens(model.n_vocab, s, workload.n_positions)[workload.depth] for s in sequences
        ]
        begin = self._clock()
        for position in range(workload.depth, workload.n_positions):
            for sequence in sequences:
                model.kv.reserve(sequence, position + 1)
            batch = Batch(tokens, [position] * len(tokens), sequences, sequences)
            tokens = model.forward(batch).argmax(axis=1).tolist()
        return self._clock() - begin

    def _feed(self, sequence: int, start: int, stop: int, progress: Progress | None = None) -> None:
        """Run a sequence's tokens [start, stop) through in the largest steps there are.

        Only the last wants logits.
        """
        model = self.model
        tokens = random_tokens(model.n_vocab, sequence, stop)
        for position in range(start, stop, model.max_rows):
            n = min(model.max_rows, stop - position)
            if progress is not None:
                progress(f"filling the context to {stop} tokens", position, stop)
            model.kv.reserve(sequence, position + n)
            self._fed[sequence] = position + n
            outputs = [n - 1] if position + n == stop else []
            positions = list(range(position, position + n))
            model.forward(
                Batch(tokens[position : position + n], positions, [sequence] * n, outputs)
            )

    def _truncate(self, sequence: int, n_tokens: int) -> None:
        self.model.kv.truncate(sequence, n_tokens)
        self._fed[sequence] = n_tokens

    def _free(self, sequence: int) -> None:
        self.model.kv.free(sequence)
        self._fed.pop(sequence, None)


def samples(
    runners: Sequence[Runner],
    workload: Workload,
    repetitions: int,
    *,
    warmup: bool = True,
    rest_s: float = 0.0,
    progress: Progress | None = None,
) -> Iterator[tuple[int, float]]:
    """Run a workload several times, the runners in turns, and yield (runner, seconds).

    warmup   run once more, first, without counting: it compiles, and fills the processor's caches
    rest_s   pause between runs, for another program's threads to stop waiting busily

    Raises UsageError if the context is too short.
    """
    if workload.n_tokens < 1 or repetitions < 1 or workload.depth < 0 or workload.n_sequences < 1:
        raise UsageError(f"{workload.name} repeated {repetitions} times measures nothing.")
    try:
        for runner in runners:
            runner.prepare(workload, progress)
        for repetition in range(-1 if warmup else 0, repetitions):
            for index, runner in enumerate(runners):
                if progress is not None:
                    progress(f"measuring {workload.name}", repetition + 1, repetitions)
                if rest_s:
                    time.sleep(rest_s)
                elapsed = runner.run(workload)
                if repetition >= 0:
                    yield index, elapsed
    except BaseException:
        for runner in runners:  # a cache may hold half a run
            runner.close()
        raise


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

    The sequences used are free again afterwards. Raises UsageError if the context is too short.
    """
    runner = Runner(model, clock)
    try:
        found = samples([runner], workload, repetitions, warmup=warmup, progress=progress)
        return Throughput(workload, tuple(seconds for _, seconds in found))
    finally:
        runner.close()


def estimate(runner: Runner) -> tuple[float, float]:
    """Return the seconds of a prompt's token and of a step of generation, measured briefly."""
    context, most = runner.model.context, runner.model.max_rows
    prompt = Workload("pp", max(1, min(_PROBE_ROWS, most, context)))
    steps = Workload("tg", max(1, min(_PROBE_STEPS, context)))
    seconds = {}
    for workload in (prompt, steps):
        # The second run: the first one compiles.
        (seconds[workload.kind],) = (s for _, s in samples([runner], workload, 1))
    return seconds["pp"] / prompt.n_tokens, seconds["tg"] / steps.n_tokens


def _check(model: Runnable, workload: Workload) -> None:
    if workload.n_positions > model.context:
        raise UsageError(
            f"{workload.name} needs a context of {workload.n_positions} tokens, and it is "
            f"{model.context}. Use a larger --ctx."
        )
    if workload.n_sequences > model.max_rows:
        raise UsageError(
            f"{workload.name} needs steps of {workload.n_sequences} rows, and {model.max_rows} is "
            "the most. Use a smaller --batch."
        )


def random_tokens(n_vocab: int, sequence: int, n_tokens: int) -> list[int]:
    """Return a sequence's tokens: the same each time, nothing a cache could profit from."""
    return random.Random(sequence).choices(range(n_vocab), k=n_tokens)
