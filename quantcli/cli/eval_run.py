"""What `quantcli eval` runs, on the worker and in parts, so that Ctrl-C keeps what is done."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from quantcli.arch import Hyper
from quantcli.checkpoint import Checkpoint
from quantcli.cli.generation import load_model
from quantcli.evaluate import divergence, from_file, multiple_choice, perplexity
from quantcli.evaluate.corpus import Text
from quantcli.evaluate.identity import build, files_sha256, vocabulary_sha256
from quantcli.evaluate.logits_file import LogitsFile, Origin, check_origin, new_file
from quantcli.evaluate.protocol import Chunk, Protocol, cut
from quantcli.evaluate.questions import Question
from quantcli.runtime.model import Model
from quantcli.text import Tokenizer

if TYPE_CHECKING:
    from quantcli.cli.options import LoadOptions
    from quantcli.cli.render import StatusLine
    from quantcli.cli.worker import Worker
    from quantcli.evaluate.perplexity import F64

T = TypeVar("T")

DEFAULT_K = 256


@dataclass(frozen=True)
class Wanted:
    """What to measure.

    text       None if only questions are asked
    against    whether models are compared with a base; else their perplexity is measured
    logits     file of the base's predictions, to write or to use
    k          tokens that it lists at each position; None: DEFAULT_K, or what there is
    """

    text: Text | None
    how: Protocol
    n_chunks: int | None
    questions: Sequence[Question]
    source: str
    against: bool
    logits: Path | None
    k: int | None
    force: bool
    load: LoadOptions


@dataclass
class Candidate:
    """A model file that is open but not loaded."""

    name: str
    checkpoint: Checkpoint
    tokenizer: Tokenizer

    @property
    def bits_per_weight(self) -> float:
        """Bits of all tensors, over their weights."""
        return 8 * self.checkpoint.nbytes / max(1, self.checkpoint.n_params)

    @cached_property
    def vocabulary(self) -> str:
        """What tells its vocabulary from others."""
        return vocabulary_sha256(self.checkpoint.metadata)

    @cached_property
    def hyper(self) -> Hyper:
        """The model's numbers. Raises UnsupportedModel or CheckpointError."""
        return Hyper.from_metadata(self.checkpoint.metadata, self.checkpoint.tensors)

    @property
    def n_vocab(self) -> int:
        """Logits of a row."""
        return self.hyper.n_vocab

    def chunks(self, wanted: Wanted) -> list[Chunk]:
        """Return the chunks to evaluate. Raises UsageError for a text that is too short."""
        assert wanted.text is not None
        tokens = self.tokenizer.encode(wanted.text.content)
        bos = self.tokenizer.bos if self.tokenizer.add_bos else None
        source = f"{wanted.text.name}, in the tokens of {self.name},"
        return cut(tokens, wanted.how, bos, n_chunks=wanted.n_chunks, source=source)


@dataclass
class Outcome:
    """What was measured of one model, as far as it got."""

    candidate: Candidate
    chunks: list[Chunk] = field(default_factory=list)
    tasks: list[multiple_choice.Task] = field(default_factory=list)
    nlls: list[F64] = field(default_factory=list)
    positions: list[divergence.Positions] = field(default_factory=list)
    choices: list[multiple_choice.Choice] = field(default_factory=list)
    is_exact: bool = True

    @property
    def n_done(self) -> int:
        """Chunks that are done."""
        return len(self.nlls) or len(self.positions)

    @property
    def is_complete(self) -> bool:
        """Whether everything was measured."""
        return self.n_done == len(self.chunks) and len(self.choices) == len(self.tasks)

    def perplexity(self) -> perplexity.Perplexity | None:
        """Return the perplexity over the chunks that are done."""
        if not self.nlls:
            return None
        targets = (t for chunk in self.chunks[: len(self.nlls)] for t in chunk.targets)
        n_bytes = sum(len(self.candidate.tokenizer.token_bytes(t)) for t in targets)
        return perplexity.summarize(self.nlls, n_bytes)

    def divergence(self) -> divergence.Divergence | None:
        """Return how far the model is from the base over the chunks that are done."""
        if not self.positions:
            return None
        joined = divergence.Positions.join(self.positions)
        return divergence.summarize(joined, is_exact=self.is_exact)

    def accuracy(self) -> multiple_choice.Accuracy | None:
        """Return the accuracy over the questions that are done."""
        return multiple_choice.summarize(self.choices) if self.choices else None


class Session:
    """Loads models one by one and runs on them what is wanted."""

    def __init__(self, wanted: Wanted, worker: Worker, status: StatusLine) -> None:
        """Use a worker for everything slow."""
        self._wanted = wanted
        self._worker = worker
        self._status = status
        self._meter = Meter(status)
        self._progress = worker.checked(self._meter)

    def prepare(self, candidates: Sequence[Candidate]) -> list[Outcome]:
        """Return what will be filled, after tokenizing. Raises UsageError for unfit text."""
        wanted = self._wanted
        outcomes = []
        for candidate in candidates:
            self._status(f"tokenizing for {candidate.name}", 0, 0)
            outcome = Outcome(candidate)
            if wanted.text is not None:
                outcome.chunks = candidate.chunks(wanted)
            outcome.tasks = multiple_choice.tasks(
                wanted.questions, candidate.tokenizer.encode, source=wanted.source
            )
            outcomes.append(outcome)
        self._status.clear()
        return outcomes

    def run(self, outcomes: Sequence[Outcome], base: Candidate | Path | None) -> None:
        """Fill outcomes in order; Ctrl-C leaves the parts that are done in them.

        base   a model to compare with, or a file of a model's logits
        """
        with ExitStack() as stack:
            reference = None if base is None else self._reference(base, outcomes[0], stack)
            for outcome in outcomes:
                with self._loaded(outcome.candidate, _context(self._wanted, outcome)) as model:
                    self._measure(outcome, model, reference)

    def _measure(
        self, outcome: Outcome, model: Model, reference: tuple[str, Model] | LogitsFile | None
    ) -> None:
        name, chunks, progress = outcome.candidate.name, outcome.chunks, self._progress
        models = [model]
        if isinstance(reference, LogitsFile):
            outcome.is_exact = reference.origin.k == reference.origin.n_vocab
            compare = partial(from_file.measure, reference, model, chunks, name=name)
            self._follow(partial(compare, progress=progress), outcome.positions, models, _kl)
        elif reference is not None:
            base_name, base = reference
            both = partial(divergence.measure, base, model, chunks, names=(base_name, name))
            models = [base, model]
            self._follow(partial(both, progress=progress), outcome.positions, models, _kl)
        elif chunks:
            score = partial(perplexity.score, model, chunks, name=name, progress=progress)
            self._follow(score, outcome.nlls, models, _ppl)
        if outcome.tasks:
            ask = partial(multiple_choice.answer, model, outcome.tasks, name=name)
            self._follow(
                partial(ask, progress=progress), outcome.choices, models, _acc, "questions"
            )

    def _reference(
        self, base: Candidate | Path, first: Outcome, stack: ExitStack
    ) -> tuple[str, Model] | LogitsFile:
        """Return what to compare with, closed when `stack` is: a model, or a file of its logits."""
        wanted = self._wanted
        if isinstance(base, Path):
            file = stack.enter_context(LogitsFile(base))
            check_origin(file, self._origin(first.candidate, first, file), is_base_known=False)
        elif wanted.logits is None:
            return base.name, stack.enter_context(self._loaded(base, wanted.how.context))
        elif wanted.force or not wanted.logits.exists():
            self._record(base, first, wanted.logits)
            file = stack.enter_context(LogitsFile(wanted.logits))
        else:
            file = stack.enter_context(LogitsFile(wanted.logits))
            digest = self._worker.call(partial(files_sha256, base.checkpoint.paths, self._progress))
            check_origin(file, self._origin(base, first, file, digest))
        self._status.clear()
        if file.origin.made_by != build():
            self._status.note(
                f"{file.path} was made by {file.origin.made_by}; this is {build()}, whose logits "
                "may differ in the last bits."
            )
        return file

    def _origin(
        self, base: Candidate, first: Outcome, file: LogitsFile | None, digest: str = ""
    ) -> Origin:
        """Return what a file of the base's logits must say of itself."""
        wanted, checkpoint = self._wanted, base.checkpoint
        assert wanted.text is not None
        k = wanted.k or (file.origin.k if file is not None else DEFAULT_K)
        return Origin(
            model=base.name,
            model_sha256=digest,
            model_nbytes=checkpoint.nbytes,
            model_n_params=checkpoint.n_params,
            vocabulary_sha256=base.vocabulary,
            n_vocab=base.n_vocab,
            text=wanted.text.name,
            text_sha256=wanted.text.sha256,
            protocol=wanted.how.name,
            context=wanted.how.context,
            begins_with_bos=wanted.how.replaces and base.tokenizer.add_bos,
            n_scored=wanted.how.n_scored,
            n_chunks=len(first.chunks),
            k=min(k, base.n_vocab),
            kv_type=wanted.load.chosen_kv_type(),
            backend=wanted.load.chosen_backend(),
            made_by=build(),
        )

    def _record(self, base: Candidate, first: Outcome, path: Path) -> None:
        """Write the base's predictions to a file."""
        from quantcli.engine.sampling import Chooser

        wanted = self._wanted
        chunks = base.chunks(wanted)
        digest = self._worker.call(partial(files_sha256, base.checkpoint.paths, self._progress))
        origin = self._origin(base, first, None, digest)
        with self._loaded(base, wanted.how.context) as model:

            def produce() -> Iterator[F64]:
                chooser = Chooser(model.n_vocab, wanted.load.chosen_backend())
                with new_file(path, origin, force=wanted.force) as writer:
                    yield from from_file.record(
                        model,
                        chunks,
                        writer,
                        origin.k,
                        name=base.name,
                        most_likely=lambda row, k: chooser.most_likely(row, k)[0],
                        progress=self._progress,
                    )

            self._follow(produce, [], [model], _ppl)

    def _follow(
        self,
        produce: Callable[[], Iterator[T]],
        parts: list[T],
        models: Sequence[Model],
        running: Callable[[list[T]], str],
        unit: str = "tokens",
    ) -> None:
        """Collect the parts of a task as they come.

        models   what to cancel on Ctrl-C, which is raised again
        running  returns what the parts so far come to, for the status line
        unit     what progress counts
        """
        self._meter.detail, self._meter.unit = "", unit
        try:
            for part in self._worker.stream(produce):
                parts.append(part)
                self._meter.detail = running(parts)
        except KeyboardInterrupt:
            for model in models:
                model.cancel()
            raise
        finally:
            self._status.clear()

    @contextmanager
    def _loaded(self, candidate: Candidate, context: int) -> Iterator[Model]:
        """Hold a loaded model; close it on the worker in the end."""
        self._meter.detail = self._meter.unit = ""
        options = replace(self._wanted.load, ctx=context)
        load = partial(load_model, candidate.checkpoint, options, self._progress)
        try:
            model = self._worker.call(load)
        finally:
            self._status.clear()
        try:
            yield model
        finally:
            if self._worker.stop():
                self._worker.call(model.close)


class Meter:
    """A progress callback that adds the rate and what was found so far to the status line."""

    def __init__(self, status: StatusLine) -> None:
        """Report to a status line."""
        self.detail = ""
        self.unit = ""  # what is counted; without one no rate is shown
        self._status = status
        self._stage = ""
        self._began = (0.0, 0)

    def __call__(self, stage: str, done: int, total: int) -> None:
        """Show a step of a stage."""
        now = time.monotonic()
        if stage != self._stage:
            self._stage, self._began = stage, (now, done)
        elapsed, progressed = now - self._began[0], done - self._began[1]
        details = []
        if self.unit and elapsed > 0 and progressed > 0:
            rate = progressed / elapsed
            details.append(f"{rate:.{0 if rate >= 10 else 2}f} {self.unit}/s")
        if self.detail:
            details.append(self.detail)
        self._status(stage, done, total, detail=", ".join(details))


def _context(wanted: Wanted, outcome: Outcome) -> int:
    """Return the tokens that the longest part of the work needs."""
    needed = [wanted.how.context] if outcome.chunks else []
    if outcome.tasks:
        needed.append(multiple_choice.context_needed(outcome.tasks))
    return max(needed)


def _ppl(parts: list[F64]) -> str:
    return f"perplexity {perplexity.summarize(parts).value.value:.3f}"


def _kl(parts: list[divergence.Positions]) -> str:
    return f"KL {divergence.mean_kl(parts).value:.5f}"


def _acc(parts: list[multiple_choice.Choice]) -> str:
    return f"acc {multiple_choice.summarize(parts).acc.value:.3f}"
