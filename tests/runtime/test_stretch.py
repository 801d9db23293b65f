"""Some ops of a plan by themselves: against the NumPy reference, whole and cut."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from tiny import Tiny, write_model

from quantcli.arch import Hyper, get
from quantcli.checkpoint import open_checkpoint
from quantcli.errors import Cancelled
from quantcli.formats import F32
from quantcli.plan import Buffer, Op
from quantcli.qtensor import QTensor
from quantcli.runtime.executor import Executor
from quantcli.runtime.reference import ReferenceExecutor
from quantcli.runtime.stretch import Stretch, all_rows, inputs_of

pytestmark = pytest.mark.jit

TOKENS = [3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8, 9, 7, 9, 3, 2, 3, 8]


@pytest.fixture(scope="module")
def executor() -> Iterator[Executor]:
    executor = Executor(2)
    yield executor
    executor.close()


class Opened:
    """A tiny model's ops and weights, and its logits by the reference."""

    def __init__(self, path: Path, **options: object) -> None:
        write_model(path, Tiny(**options))  # type: ignore[arg-type]
        with open_checkpoint(path) as checkpoint:
            hyper = Hyper.from_metadata(checkpoint.metadata, checkpoint.tensors)
            self.plan = get(hyper.arch).build(hyper)
            self.weights: dict[str, QTensor | F32] = {
                name: checkpoint.tensor(name) for name in self.plan.weights
            }
        self.ops = all_rows(self.plan)
        embed = self.ops[0]
        table = self.weights[embed.weights[0]]
        assert isinstance(table, QTensor)
        self.x = table.dequantize()[TOKENS] * np.float32(embed.number("scale"))
        reference = ReferenceExecutor(
            self.plan, self.weights.__getitem__, context=64, kv_type="f16"
        )
        n = len(TOKENS)
        self.logits = reference.forward(TOKENS, range(n), [0] * n, range(n))

    def run(self, executor: Executor, cuts: list[int]) -> F32:
        """Run the ops behind the embedding in stretches that begin at these ops."""
        values: dict[Buffer, F32] = {self.ops[0].output: self.x}
        bounds = [1, *cuts, len(self.ops)]
        for start, stop in pairwise(bounds):
            later = inputs_of(self.ops[stop:]) or [self.ops[-1].output]
            stretch = Stretch(
                self.ops[start:stop], later, self.weights, executor, max_rows=len(TOKENS) + 5
            )
            given = {buffer: values[buffer] for buffer in stretch.inputs}
            values = {b: v.copy() for b, v in stretch.run(given, len(TOKENS)).items()}
        return values[self.ops[-1].output]


CASES = [
    {"arch": "llama", "weight_format": "mix", "biases": True, "rope_freqs": True},
    {"arch": "qwen3", "weight_format": "mix_256", "tied": True},
    {"arch": "gemma3", "weight_format": "q8_0", "tied": True, "logit_softcap": 5.0},
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: str(case["arch"]))
def test_stretches_cut_at_inputs_of_matrices_compute_the_model(
    case: dict[str, object], tmp_path: Path, executor: Executor
) -> None:
    opened = Opened(tmp_path / "m.gguf", **case)
    kinds = [op.kind for op in opened.ops]
    # Where calibration cuts: before the first matrix that reads an input.
    inputs = [i for i in range(2, len(kinds)) if kinds[i] == "linear" != kinds[i - 1]]
    whole = opened.run(executor, [])
    # Both are f32; they differ by the order of additions, and by f16 keys at a rounding's edge.
    assert np.abs(whole - opened.logits).max() < 2e-3 * np.abs(opened.logits).max()
    for cuts in (inputs, inputs[1::2]):
        np.testing.assert_allclose(opened.run(executor, cuts), whole, rtol=1e-5, atol=1e-5)


def test_what_is_looked_at_is_the_input_of_the_matrices(tmp_path: Path, executor: Executor) -> None:
    opened = Opened(tmp_path / "m.gguf", arch="llama", weight_format="f32")
    norm = opened.ops[1]
    assert norm.kind == "rms_norm"
    stretch = Stretch(
        opened.ops[1:5], [norm.output, opened.ops[0].output], opened.weights, executor, max_rows=32
    )
    kept = stretch.run({opened.ops[0].output: opened.x}, len(TOKENS))
    weight = opened.weights[norm.weights[0]].dequantize()  # type: ignore[union-attr]
    scale = 1 / np.sqrt(np.mean(np.float64(opened.x) ** 2, axis=1, keepdims=True) + 1e-5)
    np.testing.assert_allclose(kept[norm.output], opened.x * scale * weight, rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(kept[opened.ops[0].output], opened.x)


def test_a_run_gives_the_same_bytes_whatever_ran_before(tmp_path: Path, executor: Executor) -> None:
    opened = Opened(tmp_path / "m.gguf", arch="llama", weight_format="q8_0")
    last = opened.ops[-1].output
    stretch = Stretch(opened.ops[1:], [last], opened.weights, executor, max_rows=32)
    first = stretch.run({opened.ops[0].output: opened.x}, len(TOKENS))[last].copy()
    stretch.run({opened.ops[0].output: opened.x[:4] * 100}, 4)
    again = stretch.run({opened.ops[0].output: opened.x}, len(TOKENS))[last]
    assert first.tobytes() == again.tobytes()


def test_no_op_at_all_gives_back_what_was_given(tmp_path: Path, executor: Executor) -> None:
    buffer = Buffer("x", 7)
    stretch = Stretch([], [buffer], {}, executor, max_rows=4)
    x = np.arange(21, dtype=np.float32).reshape(3, 7)
    np.testing.assert_array_equal(stretch.run({buffer: x}, 3)[buffer], x)


def test_a_cancelled_run_says_so(tmp_path: Path) -> None:
    opened = Opened(tmp_path / "m.gguf", arch="llama", weight_format="f32")
    executor = Executor(1)
    stretch = Stretch(opened.ops[1:], [], opened.weights, executor, max_rows=32)
    executor.cancel()
    with pytest.raises(Cancelled):
        stretch.run({opened.ops[0].output: opened.x}, len(TOKENS))
    executor.close()


def test_inputs_are_what_nobody_writes() -> None:
    a, b, c, d = (Buffer(name, 4) for name in "abcd")
    ops = [Op("add", (a, b), c), Op("add", (c, a), d)]
    assert inputs_of(ops) == [a, b]
