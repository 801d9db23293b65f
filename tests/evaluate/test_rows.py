"""Rows of logits from a model in steps, slices and sequences."""

from __future__ import annotations

import numpy as np
import pytest
from bigram import BigramModel, bigram, near, text

from quantcli.errors import ModelError
from quantcli.evaluate.rows import check_finite, compare, predictions, sums, target_logits


@pytest.mark.parametrize("first", [0, 1, 7, 8, 9, 19])
def test_rows_come_in_order_whatever_the_steps_and_slices(first: int) -> None:
    model = bigram()
    tokens = text(20)
    steps: list[int] = []
    seen = [
        (row, logits.copy())
        for row, logits in predictions(model, tokens, first=first, step=steps.append)
    ]
    assert [row for row, _ in seen][:1] == [first]
    assert (np.concatenate([part for _, part in seen]) == model.table[tokens[first:]]).all()
    rows = [row + i for row, part in seen for i in range(len(part))]
    assert rows == list(range(first, 20))
    assert steps == [8, 8, 4]


def test_only_wanted_rows_are_asked_for() -> None:
    model = bigram()
    list(predictions(model, text(20), first=10))
    assert [batch.outputs for batch in model.batches] == [[], [2, 3, 4, 5, 6, 7], [0, 1, 2, 3]]


def test_a_sequence_goes_on_after_what_is_kept() -> None:
    model = bigram()
    list(predictions(model, text(9)))
    list(predictions(model, [1, 2], start=5))
    assert model.batches[-1].positions == [5, 6]
    model.kv.check()
    list(predictions(model, [3], start=0))
    assert model.batches[-1].positions == [0]


def test_sums_are_those_of_f64() -> None:
    model = bigram(60)
    found = sums(model, model.table)
    table = model.table.astype(np.float64)
    expected = np.log(np.exp(table).sum(axis=1))
    assert found.log_total == pytest.approx(expected, rel=1e-14)
    assert (found.likeliest == table.argmax(axis=1)).all()


def test_kl_is_that_of_f64_and_never_below_zero() -> None:
    base = bigram(60)
    model = near(base)
    found = compare(model, base.table, model.table)
    expected = (np.exp(base.log_p) * (base.log_p - model.log_p)).sum(axis=1)
    assert found.kl == pytest.approx(expected, rel=1e-12)
    shifted = BigramModel(base.table + np.float32(2.0))  # the same probabilities
    assert compare(shifted, base.table, shifted.table).kl.max() < 1e-6
    assert compare(shifted, base.table, shifted.table).kl.min() >= 0
    assert (compare(base, base.table, base.table).kl == 0).all()


def test_what_is_not_finite_is_refused_with_its_place() -> None:
    check_finite(np.array([1.0, 2.0]), "m", str)
    with pytest.raises(ModelError, match=r"m.gguf: logits row 1 are not finite"):
        check_finite(np.array([1.0, np.nan, -np.inf]), "m.gguf", lambda row: f"row {row}")


def test_target_logits_are_picked_row_by_row() -> None:
    table = np.arange(12, dtype=np.float32).reshape(3, 4)
    assert target_logits(table, [3, 0, 2]).tolist() == [3, 4, 10]
