"""Multiple choice: likelihoods are those of whole texts; what is shared is computed once."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
from bigram import BigramModel, bigram
from loaded_model import feed, loaded
from tiny import write_tiny

from quantcli.errors import ModelError, UsageError
from quantcli.evaluate.multiple_choice import (
    Choice,
    answer,
    context_needed,
    n_common,
    summarize,
    tasks,
)
from quantcli.evaluate.questions import Question

BOS = 39


def letters(text: str) -> list[int]:
    """Tokenize: BOS, then a token a letter; "th" is one token wherever it stands."""
    ids = [BOS]
    while text:
        n = 2 if text.startswith("th") else 1
        ids.append(38 if n == 2 else (ord(text[0]) - 90) % 38)
        text = text[n:]
    return ids


QUESTIONS = [
    Question(1, "a cat", ("sat", "ran off", "slept"), 0),
    Question(2, "one", ("two three", "two four", "two"), 1),  # choices share tokens
    Question(3, "", ("yes", "no"), 1),  # nothing but BOS before them
    Question(4, "ba", ("x", "yy"), 0),
    Question(5, "bat ", ("hat", "a"), 0),  # the border lies in no token
    Question(6, "same", ("x", "x"), 0),
]


def expected(log_p: np.ndarray, question: Question) -> list[float]:
    """Return the likelihoods, each from its whole text."""
    context = letters(question.context)
    totals = []
    for i in range(len(question.choices)):
        ids = letters(question.text(i))
        start = n_common(context, ids)
        totals.append(sum(log_p[ids[j - 1], ids[j]] for j in range(start, len(ids))))
    return totals


def test_likelihoods_are_those_of_the_whole_texts() -> None:
    model = bigram(context=64)
    listed = tasks(QUESTIONS, letters, source="q")
    for question, choice in zip(QUESTIONS, answer(model, listed, name="m"), strict=True):
        likelihoods = expected(model.log_p, question)
        assert choice.likelihoods == pytest.approx(likelihoods, rel=1e-12)
        assert choice.likeliest == int(np.argmax(likelihoods))
        per_byte = [x / len(c.encode()) for x, c in zip(likelihoods, question.choices, strict=True)]
        assert choice.likeliest_per_byte == int(np.argmax(per_byte))


def test_a_token_across_the_border_counts_as_the_choices() -> None:
    def encode(text: str) -> list[int]:
        return letters(text.replace(" ", ""))  # "bathat": the context's t goes into "th"

    (task,) = tasks([Question(1, "bat", ("hat", "a"), 0)], encode, source="q")
    assert task.starts == (3, 4)  # BOS b a | th a t   and   BOS b a t | a
    assert task.n_shared == 3


def test_what_is_shared_is_computed_once() -> None:
    model = bigram(context=64)
    (task,) = tasks(QUESTIONS[:1], letters, source="q")
    list(answer(model, [task], name="m"))
    computed = [t for batch in model.batches for t in batch.tokens]
    prefix = len(letters("a cat "))
    own = [len(letters(QUESTIONS[0].text(i))) - 1 - prefix for i in range(3)]
    assert task.n_shared == prefix
    assert len(computed) == prefix + sum(own)
    assert context_needed([task]) == len(letters("a cat ran off"))


def test_a_context_without_a_token_is_refused_by_line() -> None:
    with pytest.raises(UsageError, match=r"q.jsonl, line 3: the context has no token of its own"):
        tasks(QUESTIONS, lambda text: letters(text)[1:], source="q.jsonl")


def test_accuracy_is_counted_with_its_error_and_chance() -> None:
    def choice(likeliest: int, per_byte: int, n: int) -> Choice:
        return Choice(Question(1, "a", ("b",) * n, 1), (0.0,) * n, likeliest, per_byte)

    found = summarize([choice(1, 1, 2), choice(0, 1, 4), choice(1, 1, 4), choice(2, 0, 4)])
    assert found.n_questions == 4
    assert found.acc == (0.5, pytest.approx(math.sqrt(0.25 / 3)))
    assert found.acc_norm == (0.75, pytest.approx(math.sqrt(0.75 * 0.25 / 3)))
    assert found.chance == (0.5 + 3 * 0.25) / 4


def test_logits_that_are_not_finite_are_refused_by_line() -> None:
    model = bigram(context=64)
    model.table[letters("s")[1]] = np.nan
    listed = tasks(QUESTIONS, letters, source="q")
    with pytest.raises(ModelError, match="bad: logits for the question on line 1 are not finite"):
        list(answer(model, listed, name="bad"))


def test_equal_choices_go_to_the_first() -> None:
    model = BigramModel(np.zeros((40, 40), np.float32), context=64)
    (choice,) = answer(model, tasks(QUESTIONS[5:], letters, source="q"), name="m")
    assert (choice.likeliest, choice.likeliest_per_byte) == (0, 0)


@pytest.mark.parametrize("backend", ["reference", pytest.param("compiled", marks=pytest.mark.jit)])
def test_a_kept_prefix_changes_nothing(tmp_path: Path, backend: str) -> None:
    path = write_tiny(tmp_path / "tiny.gguf", "gemma3", context=64, window=16)
    listed = tasks(QUESTIONS, letters, source="q")
    with loaded(path, backend=backend, context=context_needed(listed)) as model:
        for question, choice in zip(QUESTIONS, answer(model, listed, name="m"), strict=True):
            context = letters(question.context)
            for i, likelihood in enumerate(choice.likelihoods):
                ids = letters(question.text(i))
                logits = feed(model, ids[:-1]).astype(np.float64)
                log_p = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
                start = n_common(context, ids)
                whole = sum(log_p[j - 1, ids[j]] for j in range(start, len(ids)))
                tolerance = 1e-12 if backend == "compiled" else 1e-4  # BLAS sums as it likes
                assert likelihood == pytest.approx(whole, abs=tolerance)
