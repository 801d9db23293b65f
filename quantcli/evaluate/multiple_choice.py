"""Multiple choice by likelihood: a model chooses the continuation that it finds the likeliest.

The tokens of a choice are those that follow the context's when both are tokenized as one text; a
token that reaches across the border counts as the choice's, as in common evaluation harnesses.
What all choices share is computed once and stays in the KV cache.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from quantcli.errors import UsageError
from quantcli.evaluate.estimates import Estimate, share
from quantcli.evaluate.questions import Question
from quantcli.evaluate.rows import Runnable, check_finite, predictions, sums, target_logits
from quantcli.formats import F32

F64 = npt.NDArray[np.float64]
Encode = Callable[[str], list[int]]
Progress = Callable[[str, int, int], None]


@dataclass(frozen=True, slots=True)
class Task:
    """A question in tokens.

    texts     for each choice, the tokens of context and choice
    starts    where the tokens of each choice start; 1 at least, as the first has no prediction
    n_bytes   length of each choice in UTF-8
    n_shared  tokens that all texts start with, not counting the last of any
    """

    question: Question
    texts: tuple[tuple[int, ...], ...]
    starts: tuple[int, ...]
    n_bytes: tuple[int, ...]
    n_shared: int


@dataclass(frozen=True, slots=True)
class Choice:
    """What a model makes of one question.

    likelihoods  log-likelihood of each choice, in nats
    likeliest    the choice with the largest
    likeliest_per_byte  the choice with the largest per byte
    """

    question: Question
    likelihoods: tuple[float, ...]
    likeliest: int
    likeliest_per_byte: int


@dataclass(frozen=True, slots=True)
class Accuracy:
    """How often a model chose right.

    acc       by the likelihood of the choices
    acc_norm  by the likelihood per byte, which does not favour short ones
    chance    what guessing would reach
    """

    n_questions: int
    acc: Estimate
    acc_norm: Estimate
    chance: float


def tasks(questions: Sequence[Question], encode: Encode, *, source: str) -> list[Task]:
    """Return questions in tokens.

    encode  text to tokens, with BOS where the model wants it
    source  the file, for errors

    Raises UsageError for a question whose first token could not be scored.
    """
    return [_task(question, encode, source) for question in questions]


def context_needed(listed: Sequence[Task]) -> int:
    """Return the tokens of the longest text."""
    return max(len(text) for task in listed for text in task.texts)


def answer(
    model: Runnable, listed: Sequence[Task], *, name: str, progress: Progress | None = None
) -> Iterator[Choice]:
    """Yield a model's choices, question by question. Raises ModelError for logits not finite."""
    for number, task in enumerate(listed):
        if progress is not None:
            progress(f"questions for {name}", number, len(listed))
        yield _choose(model, task, name)


def summarize(choices: Sequence[Choice]) -> Accuracy:
    """Return the accuracy over questions, of which there is at least one."""
    right = np.array([c.likeliest == c.question.answer for c in choices])
    right_norm = np.array([c.likeliest_per_byte == c.question.answer for c in choices])
    chance = sum(1 / len(c.likelihoods) for c in choices) / len(choices)
    return Accuracy(len(choices), share(right), share(right_norm), chance)


def _task(question: Question, encode: Encode, source: str) -> Task:
    context = encode(question.context)
    n_choices = len(question.choices)
    texts = tuple(tuple(encode(question.text(i))) for i in range(n_choices))
    starts = tuple(min(n_common(context, text), len(text) - 1) for text in texts)
    if 0 in starts:
        raise UsageError(
            f"{source}, line {question.line}: the context has no token of its own before choice "
            f"{starts.index(0)}, and the model adds no BOS token. Give a context."
        )
    n_shared = min(len(text) - 1 for text in texts)
    for text in texts[1:]:
        n_shared = min(n_shared, n_common(texts[0], text))
    n_bytes = tuple(len(choice.encode()) for choice in question.choices)
    return Task(question, texts, starts, n_bytes, n_shared)


def n_common(one: Sequence[int], other: Sequence[int]) -> int:
    """Return how many tokens two texts have in common at their start."""
    n = min(len(one), len(other))
    return next((i for i in range(n) if one[i] != other[i]), n)


def _choose(model: Runnable, task: Task, name: str) -> Choice:
    """Compute the shared tokens, then each choice's own on top of them."""
    n_shared, first = task.n_shared, min(task.starts) - 1
    head = task.texts[0][:n_shared]
    shared = np.concatenate([rows.copy() for _, rows in predictions(model, head, first=first)])
    shared_totals = _log_totals(model, shared, task, name)
    likelihoods = []
    for text, start in zip(task.texts, task.starts, strict=True):
        known = slice(
            max(0, start - 1 - first), None
        )  # shared rows that predict the choice's tokens
        likelihood = _sum(shared[known], shared_totals[known], text[start : n_shared + 1])
        own, skipped = text[n_shared:-1], max(0, start - 1 - n_shared)
        for row, logits in predictions(model, own, start=n_shared, first=skipped):
            targets = text[n_shared + row + 1 :][: len(logits)]
            likelihood += _sum(logits, _log_totals(model, logits, task, name), targets)
        likelihoods.append(likelihood)
    per_byte = [x / n for x, n in zip(likelihoods, task.n_bytes, strict=True)]
    return Choice(
        task.question, tuple(likelihoods), int(np.argmax(likelihoods)), int(np.argmax(per_byte))
    )


def _log_totals(model: Runnable, logits: F32, task: Task, name: str) -> F64:
    found = sums(model, logits).log_total
    check_finite(found, name, lambda _: f"for the question on line {task.question.line}")
    return found


def _sum(logits: F32, log_totals: F64, targets: Sequence[int]) -> float:
    """Return the log-likelihood of tokens, each predicted by its row."""
    return float((target_logits(logits, targets) - log_totals).sum()) if targets else 0.0
