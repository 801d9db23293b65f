"""Driving a loaded model: prompts in chunks, sequences in company, rows wanted or not."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from quantcli.formats import F32
from quantcli.runtime.adapters import open_adapted
from quantcli.runtime.model import Batch, Model

Part = tuple[int, int, Sequence[int]]  # (sequence, position of the first token, tokens)


@contextmanager
def loaded(
    path: Path, *, adapters: Sequence[tuple[Path, float]] = (), **options: object
) -> Iterator[Model]:
    """Load a model, by default on two threads, and close it at the end."""
    options = {"n_threads": 2} | options
    with open_adapted(path, adapters) as checkpoint:
        model = Model.load(checkpoint, **options)  # type: ignore[arg-type]
        try:
            yield model
        finally:
            model.close()


def batch_of(parts: Sequence[Part], rows: Sequence[int] | None = None) -> Batch:
    """Return a step of parts, one after the other; None: all rows' logits are wanted."""
    tokens = [token for _, _, ids in parts for token in ids]
    positions = [start + i for _, start, ids in parts for i in range(len(ids))]
    sequences = [sequence for sequence, _, ids in parts for _ in ids]
    outputs = list(range(len(tokens)) if rows is None else rows)
    return Batch(tokens, positions, sequences, outputs)


def step(model: Model, parts: Sequence[Part], rows: Sequence[int] | None = None) -> F32:
    """Reserve slots, run one step and return a copy of the logits wanted."""
    for sequence, start, ids in parts:
        model.kv.reserve(sequence, start + len(ids))
    return model.forward(batch_of(parts, rows)).copy()


def feed(
    model: Model, tokens: Sequence[int], *, sequence: int = 0, start: int = 0, chunk: int = 0
) -> F32:
    """Run tokens of one sequence in chunks, at most what a step takes; return all rows' logits."""
    chunk = min(chunk or len(tokens), model.max_rows)
    cuts = range(0, len(tokens), chunk)
    return np.concatenate(
        [step(model, [(sequence, start + cut, tokens[cut : cut + chunk])]) for cut in cuts]
    )


def fed(path: Path, tokens: Sequence[int], *, chunk: int = 0, **options: object) -> F32:
    """Load a model, feed it one prompt and return all rows' logits."""
    with loaded(path, **options) as model:
        return feed(model, tokens, chunk=chunk)
