"""Two models on the same tokens: probabilities, divergence, and the place where answers part."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
from fakes import FakeModel, History
from tiny import write_tiny

from quantcli.checkpoint import open_checkpoint
from quantcli.errors import ModelError, UsageError
from quantcli.evaluate.comparison import (
    Position,
    Summary,
    check_vocabularies,
    follow,
    n_common,
)
from quantcli.formats import F32
from quantcli.runtime.model import Model


class NumpyModel(FakeModel):
    """A fake whose rows are worked on in NumPy."""

    is_compiled = False

    def slices(self, batch):  # type: ignore[no-untyped-def]
        yield self.forward(batch)


def shifted(by: float) -> NumpyModel:
    """Return a model whose logits are the fake's, tilted toward higher ids."""
    model = NumpyModel(n_vocab=32)

    def say(history: History) -> F32:
        return model.hashed(history) + np.linspace(0, by, 32, dtype=np.float32)

    model._say = say
    return model


def log_softmax(row: F32) -> np.ndarray:
    x = np.float64(row)
    return x - x.max() - np.log(np.exp(x - x.max()).sum())


@pytest.mark.parametrize("n_prompt", [1, 2, 9, 20])
def test_every_token_has_both_models_probabilities_in_the_same_context(n_prompt: int) -> None:
    a, b = shifted(0.0), shifted(3.0)
    prompt = [i % 7 for i in range(n_prompt)]
    answer = [(5 * i) % 32 for i in range(20)]
    found = list(follow(a, b, prompt, answer, n_vocab=32))
    assert [position.index for position in found] == list(range(20))
    for i, position in enumerate(found):
        history = tuple([*prompt, *answer[:i]])
        p, q = (log_softmax(model._say(history)) for model in (a, b))
        assert position.token == answer[i]
        assert position.p == pytest.approx((math.exp(p[answer[i]]), math.exp(q[answer[i]])))
        assert position.top == (p.argmax(), q.argmax())
        assert position.p_top_a == pytest.approx((np.exp(p.max()), np.exp(q[p.argmax()])))
        assert position.p_top_b == pytest.approx((np.exp(p[q.argmax()]), np.exp(q.max())))
        assert position.kl == pytest.approx((np.exp(p) * (p - q)).sum(), abs=1e-9)
        assert position.is_same == (p.argmax() == q.argmax())


def test_only_tokens_from_the_first_that_is_asked_for_are_compared() -> None:
    prompt, answer = [1, 2, 3], [4, 5, 6, 7, 8]
    whole = list(follow(shifted(0.0), shifted(1.0), prompt, answer, n_vocab=32))
    rest = list(follow(shifted(0.0), shifted(1.0), prompt, answer, n_vocab=32, first=3))
    assert rest == whole[3:]
    assert list(follow(shifted(0.0), shifted(1.0), prompt, [], n_vocab=32)) == []


def test_a_model_is_exactly_itself() -> None:
    found = list(follow(shifted(1.0), shifted(1.0), [1, 2], list(range(18)), n_vocab=32))
    assert all(position.kl == 0.0 and position.is_same for position in found)
    assert all(position.p[0] == position.p[1] for position in found)


def test_padding_of_the_output_matrix_takes_no_part() -> None:
    def padded(history: History) -> F32:
        return np.concatenate([a._say(history), np.full(16, 50, np.float32)])

    a, b = shifted(0.0), NumpyModel(padded, n_vocab=48)
    found = list(follow(a, b, [1], [2, 3], n_vocab=32))
    assert all(position.kl == 0.0 for position in found)


def test_progress_counts_positions() -> None:
    done: list[int] = []
    list(follow(shifted(0.0), shifted(1.0), [1], [2] * 20, n_vocab=32, step=done.append))
    assert done == [16, 20]


def test_logits_that_are_not_finite_name_the_model_and_the_token() -> None:
    def broken(history: History) -> F32:
        row = np.zeros(32, np.float32)
        row[3] = np.nan if len(history) == 3 else 0
        return row

    a, b = shifted(0.0), NumpyModel(broken, n_vocab=32)
    with pytest.raises(ModelError, match=r"bad\.gguf: logits for token 3 of the answer"):
        list(follow(a, b, [1], [2, 3, 4], n_vocab=32, names=("good.gguf", "bad.gguf")))


@pytest.mark.jit
def test_compiled_models_say_what_numpy_says(tmp_path: Path) -> None:
    paths = [
        write_tiny(tmp_path / f"{name}.gguf", "llama", weight_format=name, seed=1)
        for name in ("q8_0", "q4_0")
    ]
    results = {}
    for backend in ("compiled", "reference"):
        checkpoints = [open_checkpoint(path) for path in paths]
        a, b = (Model.load(c, context=64, backend=backend, n_threads=1) for c in checkpoints)
        results[backend] = list(follow(a, b, [1, 2, 3], list(range(10, 30)), n_vocab=a.n_vocab))
        for closable in (a, b, *checkpoints):
            closable.close()
    for fast, slow in zip(results["compiled"], results["reference"], strict=True):
        assert fast.token == slow.token
        assert fast.kl == pytest.approx(slow.kl, rel=0.3, abs=0.01)  # activations have 8 bits
        assert fast.p == pytest.approx(slow.p, abs=0.05)


@pytest.mark.parametrize(
    ("a", "b", "n"),
    [
        ([1, 2, 3], [1, 2, 4], 2),
        ([1, 2], [1, 2, 4], 2),
        ([1, 2], [1, 2], 2),
        ([3], [4], 0),
        ([], [1], 0),
    ],
)
def test_answers_part_at_the_first_difference(a: list[int], b: list[int], n: int) -> None:
    assert n_common(a, b) == n_common(b, a) == n


def position(index: int, kl: float, top: tuple[int, int] = (1, 1)) -> Position:
    return Position(index, 1, (0.5, 0.5), top, (0.5, 0.5), (0.5, 0.5), kl)


def test_a_summary_has_mean_largest_and_agreement() -> None:
    found = Summary.of([position(4, 0.1), position(5, 0.5, (1, 2)), position(6, 0.0)])
    assert (found.n_tokens, found.n_same) == (3, 2)
    assert found.kl_mean == pytest.approx(0.2)
    assert (found.kl_max, found.kl_max_index) == (0.5, 5)


def test_vocabularies_that_differ_are_refused_with_numbers() -> None:
    check_vocabularies(("a", "b"), ["x", "y"], ["x", "y"])
    with pytest.raises(
        UsageError, match=r"a\.gguf has a vocabulary of 3 tokens and b\.gguf one of 2"
    ):
        check_vocabularies(("a.gguf", "b.gguf"), ["x", "y", "z"], ["x", "y"])
    with pytest.raises(UsageError, match="differ in 2 of 4 tokens, first in 1: 'y' and 'Y'"):
        check_vocabularies(("a", "b"), ["x", "y", "z", "w"], ["x", "Y", "z", "W"])
