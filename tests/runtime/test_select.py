"""Choosing rows behind the last attention gives the bytes that choosing them at the end gives."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from loaded_model import step
from logit_cases import prompt
from tiny import write_tiny

from quantcli import catalog
from quantcli.checkpoint import open_checkpoint
from quantcli.formats import F32
from quantcli.plan import ENTRIES, OUTPUTS, TOKENS, Buffer, Op, Plan
from quantcli.runtime.compiled import CompiledBackend
from quantcli.runtime.model import Model
from quantcli.runtime.sizing import size_model

pytestmark = pytest.mark.jit

STEPS = (  # tokens of each step, and the rows wanted
    (40, [39]),
    (1, [0]),
    (30, []),
    (1, []),
    (50, list(range(50))),
    (7, [6, 0, 6, 3]),
    (1, [0]),
    (64, [63]),
)


def selecting_last(plan: Plan) -> Plan:
    """Return a plan with its rows chosen only before what belongs to no layer."""
    late = Plan()
    late.weights = plan.weights
    renamed: dict[Buffer, Buffer] = {}
    is_chosen = False
    for op in plan.ops:
        inputs = tuple(renamed[buffer] for buffer in op.inputs)
        if op.kind == "select":
            renamed[op.output] = inputs[0]
            continue
        if op.layer is None and inputs and not is_chosen:
            is_chosen = True
            chosen = Buffer("chosen", inputs[0].width, OUTPUTS)
            late.ops.append(Op("select", inputs, chosen))
            inputs = (chosen,)
        axis = OUTPUTS if is_chosen else TOKENS
        axis = ENTRIES[axis] if op.output.axis in ENTRIES.values() else axis
        renamed[op.output] = replace(op.output, axis=axis)
        late.ops.append(replace(op, inputs=inputs, output=renamed[op.output]))
    late.verify()
    return late


@contextmanager
def both(path: Path, n_threads: int, max_outputs: int = 0) -> Iterator[tuple[Model, Model]]:
    """Load a model as it is, and as one that chooses rows last."""
    with open_checkpoint(path) as checkpoint:
        sizing = size_model(checkpoint, context=256)
        sizing = replace(sizing, max_outputs=max_outputs or sizing.max_outputs)
        models = []
        for plan in (sizing.plan, selecting_last(sizing.plan)):
            changed, cache = replace(sizing, plan=plan), sizing.cache("contiguous")
            backend = CompiledBackend(checkpoint, changed, cache, n_threads, "f16")
            models.append(Model(changed, cache, backend, n_threads))
        try:
            yield models[0], models[1]
        finally:
            for model in models:
                model.close()


def logits(model: Model) -> list[F32]:
    """Run STEPS of one sequence."""
    tokens, found, start = prompt(270, 200), [], 0
    for n_tokens, rows in STEPS:
        found.append(step(model, [(0, start, tokens[start : start + n_tokens])], rows))
        start += n_tokens
    return found


def assert_same(early: Model, late: Model) -> None:
    n_kinds = [[op.kind for op in m.plan.ops].count("select") for m in (early, late)]
    assert n_kinds in ([2, 1], [3, 1])  # one more where the MLP reads what attention reads
    for found, expected, (_, rows) in zip(logits(early), logits(late), STEPS, strict=True):
        assert found.shape == expected.shape == (len(rows), early.n_vocab)
        assert found.tobytes() == expected.tobytes()
        assert np.isfinite(found).all()


# Between them: every way that rows are chosen. The others are run once.
CLOSELY = ("llama", "gemma3", "command-r", "gptneox", "qwen2moe")


@pytest.mark.parametrize(
    ("arch", "n_threads", "max_outputs"),
    [
        *((arch, 2, 1) for arch in catalog.names("architecture") if arch not in CLOSELY),
        *((arch, n, most) for arch in CLOSELY for n in (1, 2) for most in (0, 1, 3)),
    ],
)
def test_rows_may_be_chosen_behind_the_last_attention(
    arch: str, n_threads: int, max_outputs: int, tmp_path: Path
) -> None:
    path = write_tiny(
        tmp_path / "m.gguf", arch, weight_format="mix", biases=True, logit_softcap=9.0
    )
    with both(path, n_threads, max_outputs) as models:
        assert_same(*models)


@pytest.mark.model
@pytest.mark.parametrize("name", ["smollm2", "gemma3"])
def test_rows_of_a_real_model_may_be_chosen_there(
    name: str, request: pytest.FixtureRequest
) -> None:
    with both(request.getfixturevalue(f"{name}_path"), n_threads=2) as models:
        assert_same(*models)
