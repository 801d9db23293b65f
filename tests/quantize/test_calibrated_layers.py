"""Tokens through the layers: statistics against the NumPy reference, with and without folds."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from tiny import Tiny, write_model

from quantcli import formats
from quantcli.arch import Hyper, get
from quantcli.checkpoint import Checkpoint, open_checkpoint
from quantcli.formats import F32
from quantcli.plan import Buffer, Plan
from quantcli.qtensor import QTensor
from quantcli.quantize import State, Statistics, correction
from quantcli.quantize.groups import groups_of, layers_of
from quantcli.quantize.layers import Walk
from quantcli.runtime import reference, reference_experts
from quantcli.runtime.stretch import all_rows

pytestmark = pytest.mark.jit

CHUNKS = [[3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5], [8, 9, 7, 9, 3, 2, 3]]
CASES = [
    {"arch": "llama", "weight_format": "f32"},
    {"arch": "qwen2", "weight_format": "f32", "biases": True},
    {"arch": "gemma3", "weight_format": "f32", "tied": True, "n_layers": 3},
]


@contextmanager
def opened(path: Path, **options: object) -> Iterator[tuple[Checkpoint, Plan]]:
    """Write a tiny model and open it."""
    write_model(path, Tiny(**options))  # type: ignore[arg-type]
    with open_checkpoint(path) as checkpoint:
        hyper = Hyper.from_metadata(checkpoint.metadata, checkpoint.tensors)
        yield checkpoint, get(hyper.arch).build(hyper)


def inputs_by_reference(plan: Plan, weights: dict[str, F32]) -> dict[str, F32]:
    """Return the rows that each matrix reads, computed by the NumPy ops."""
    executor = reference.ReferenceExecutor(plan, weights.__getitem__, context=64, kv_type="f16")
    found: dict[str, list[F32]] = {}
    for sequence, chunk in enumerate(CHUNKS):
        n = len(chunk)
        step = reference._Step(
            executor,
            np.array(chunk),
            np.arange(n),
            np.full(n, sequence),
            np.arange(n),
        )
        for index, op in enumerate(plan.ops):
            step.index = index
            inputs = [step.values[buffer] for buffer in op.inputs]
            if op.kind == "linear":
                found.setdefault(op.weights[0], []).append(inputs[0])
            step.values[op.output] = reference._OPS[op.kind](step, op, *inputs)
    return {name: np.concatenate(rows) for name, rows in found.items()}


def all_weights(checkpoint: Checkpoint, plan: Plan) -> dict[str, F32]:
    """Return every weight in f32."""
    return {n: checkpoint.tensor(n).dequantize().reshape(s) for n, s in plan.weights.items()}


def close(found: Statistics, rows: F32, name: str) -> None:
    """Fail unless statistics are those of some rows, but for rounding of f32 activations."""
    want = np.float64(rows).T @ np.float64(rows) / len(rows)
    assert found.n_tokens == len(rows), name
    np.testing.assert_allclose(found.importance, np.diag(want), rtol=2e-3, err_msg=name)
    if found.hessian is not None:
        scale = np.abs(want).max()
        assert np.abs(found.hessian - want).max() < 2e-3 * scale, name


@pytest.mark.parametrize("held_nbytes", [1 << 30, 0])
@pytest.mark.parametrize("case", CASES, ids=lambda case: str(case["arch"]))
def test_statistics_are_those_of_the_inputs(
    case: dict[str, object], held_nbytes: int, tmp_path: Path
) -> None:
    with opened(tmp_path / "m.gguf", **case) as (checkpoint, plan):
        want = inputs_by_reference(plan, all_weights(checkpoint, plan))
        seen = []
        with Walk(
            checkpoint, plan, CHUNKS, needs="hessian", n_threads=2, held_nbytes=held_nbytes
        ) as walk:
            for layer in walk:
                for group in layer.groups:
                    for name in group:
                        close(layer.statistics(name), want[name], name)
                        seen.append(name)
    assert seen == [op.weights[0] for op in plan.ops if op.kind == "linear"]


def test_what_is_put_changes_what_follows_and_nothing_before(tmp_path: Path) -> None:
    q8 = formats.get("q4_0")
    assert q8.encode is not None
    with opened(tmp_path / "m.gguf", arch="llama", weight_format="f32") as (checkpoint, plan):
        weights = all_weights(checkpoint, plan)
        with Walk(checkpoint, plan, CHUNKS, needs="importance", n_threads=2) as walk:
            for layer in walk:
                for group in layer.groups:
                    want = inputs_by_reference(plan, weights)
                    close(layer.statistics(group[0]), want[group[0]], group[0])
                    for name in group:
                        w = layer.weights[name]
                        data = q8.encode(w.reshape(-1, 32)).view(np.uint8).reshape(-1)
                        tensor = QTensor(name, w.shape, q8, data)
                        layer.put(name, tensor)
                        weights[name] = tensor.dequantize()


def test_matrices_make_up_for_the_errors_before_them(tmp_path: Path) -> None:
    q4 = formats.get("q4_0")
    assert q4.encode is not None
    chunks = np.random.default_rng(0).integers(0, 40, (8, 60)).tolist()

    def left(corrects: bool) -> list[float]:
        """Return the output errors of the second layer's first matrices, in f32."""
        found = []
        with (
            opened(tmp_path / "m.gguf", arch="llama", weight_format="f32") as (checkpoint, plan),
            Walk(checkpoint, plan, chunks, needs="hessian", corrects=corrects) as walk,
            Walk(checkpoint, plan, chunks, needs="importance") as original,
        ):
            for layer, exact in zip(walk, original, strict=True):
                for group in layer.groups:
                    layer.statistics(group[0])
                    for name in group:
                        w = layer.weights[name]
                        if layer.index == 1:
                            inputs = layer._flows[0], exact._flows[0]
                            at = layer.group(name)
                            pairs = zip(*(f.read(at.start, at.input) for f in inputs), strict=True)
                            was = exact.weights[name]
                            found.append(
                                sum(np.square(y @ w.T - x @ was.T).sum() for y, x in pairs)
                            )
                        data = q4.encode(w.reshape(-1, 32)).view(np.uint8).reshape(-1)
                        layer.put(name, QTensor(name, w.shape, q4, data))
        return found

    with_correction, without = left(True), left(False)
    assert len(with_correction) == 7
    # The first group sees the same inputs either way but for the first layer's own correction.
    for corrected, plain in zip(with_correction, without, strict=True):
        assert corrected < 0.95 * plain


def test_a_quantized_embedding_is_what_the_quantized_model_begins_with(tmp_path: Path) -> None:
    q4 = formats.get("q4_0")
    assert q4.encode is not None
    with opened(tmp_path / "m.gguf", arch="gemma3", weight_format="f32") as (checkpoint, plan):
        weights = all_weights(checkpoint, plan)
        table = weights["token_embd.weight"]
        data = q4.encode(table.reshape(-1, 32)).view(np.uint8).reshape(-1)
        tensor = QTensor("token_embd.weight", table.shape, q4, data)
        with Walk(checkpoint, plan, CHUNKS, needs="hessian", n_threads=1) as walk:
            walk.embed(tensor)
            layer = next(iter(walk))
            name = layer.groups[0][0]
            weights["token_embd.weight"] = tensor.dequantize()
            close(layer.preview(name), inputs_by_reference(plan, weights)[name], name)
            layer.statistics(name)
            assert (layer.weights[name] != weights[name]).any(), "what it lost is made up for"


def test_the_first_layer_has_nothing_to_make_up_for(tmp_path: Path) -> None:
    with opened(tmp_path / "m.gguf", arch="llama", weight_format="f32") as (checkpoint, plan):
        before = all_weights(checkpoint, plan)
        with Walk(checkpoint, plan, CHUNKS, needs="hessian", n_threads=1) as walk:
            layer = next(iter(walk))
            for group in layer.groups:
                layer.statistics(group[0])
                for name in group:
                    np.testing.assert_array_equal(layer.weights[name], before[name])


def test_a_fold_and_a_correction_go_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Scaling a layer's input and its columns changes nothing but the basis of the correction."""
    monkeypatch.setattr(correction, "DAMPING", 0.0)  # alone depends on the basis
    q4 = formats.get("q4_0")
    assert q4.encode is not None
    chunks = np.random.default_rng(0).integers(0, 40, (6, 60)).tolist()
    moved = []
    scales = np.exp(np.random.default_rng(0).uniform(-1, 1, 128)).astype(np.float32)
    for s in (np.ones(128, np.float32), scales):
        with (
            opened(tmp_path / "m.gguf", arch="llama", weight_format="f32") as (checkpoint, plan),
            Walk(checkpoint, plan, chunks, needs="hessian", n_threads=1) as walk,
        ):
            layers = iter(walk)
            for group in (first := next(layers)).groups:
                for name in group:
                    w = first.weights[name]
                    data = q4.encode(w.reshape(-1, 32)).view(np.uint8).reshape(-1)
                    first.put(name, QTensor(name, w.shape, q4, data))
            layer = next(layers)
            names = layer.groups[0]
            layer.weights["blk.1.attn_norm.weight"] /= s
            for name in names:
                layer.weights[name] *= s
            layer.changed({names[0]: s})
            layer.statistics(names[0])
            moved.append(np.concatenate([layer.weights[name] for name in names]) / s)
            before = all_weights(checkpoint, plan)
    change = moved[0] - np.concatenate([before[name] for name in names])
    assert np.abs(change).max() > 1e-3
    np.testing.assert_allclose(moved[1], moved[0], atol=2e-2 * np.abs(change).max())


def test_weights_changed_by_a_fold_count_from_the_layers_start(tmp_path: Path) -> None:
    with opened(tmp_path / "m.gguf", arch="llama", weight_format="f32") as (checkpoint, plan):
        weights = all_weights(checkpoint, plan)
        with Walk(checkpoint, plan, CHUNKS, needs="importance", n_threads=2) as walk:
            layer = next(iter(walk))
            down = layer.groups[3][0]
            layer.statistics(down)
            for name in ("blk.0.attn_norm.weight", "blk.0.ffn_gate.weight"):
                layer.weights[name] *= np.float32(0.5)
                weights[name] = layer.weights[name]
            layer.changed()
            want = inputs_by_reference(plan, weights)
            close(layer.statistics(down), want[down], down)
            first = layer.groups[0][0]
            close(layer.statistics(first), want[first], first)


def test_a_walk_goes_on_from_its_state_with_the_same_bytes(tmp_path: Path) -> None:
    with opened(tmp_path / "m.gguf", arch="gemma3", weight_format="f32", tied=True) as (
        checkpoint,
        plan,
    ):

        def run(walk: Walk) -> list[bytes]:
            found = []
            for layer in walk:
                found += [layer.statistics(g[0]).importance.tobytes() for g in layer.groups]
            return found

        def walk() -> Walk:
            return Walk(checkpoint, plan, CHUNKS, needs="importance", n_threads=2)

        with walk() as whole:
            entering: list[State] = []
            layers = iter(whole)
            first = next(layers)
            before = [first.statistics(g[0]).importance.tobytes() for g in first.groups]
            second = next(layers)
            entering.append({name: a.copy() for name, a in whole.state().items()})
            after = [second.statistics(g[0]).importance.tobytes() for g in second.groups]
            for layer in layers:
                after += [layer.statistics(g[0]).importance.tobytes() for g in layer.groups]
        with walk() as resumed:
            resumed.restore(entering[0], 1)
            assert run(resumed) == after
        with walk() as again:
            assert run(again) == before + after


@pytest.mark.parametrize("held_nbytes", [1 << 30, 0])
@pytest.mark.parametrize("arch", ["qwen3moe", "qwen2moe"])  # the second has shared experts as well
def test_experts_have_the_statistics_of_what_goes_to_them(
    arch: str, held_nbytes: int, tmp_path: Path
) -> None:
    with opened(tmp_path / "m.gguf", arch=arch, weight_format="f32") as (checkpoint, plan):
        want = inputs_of_experts(plan, all_weights(checkpoint, plan))
        stacks = [op.weights[0] for op in plan.ops if op.kind == "expert_linear"]
        assert sorted(want) == sorted(stacks)
        seen = []
        with Walk(
            checkpoint, plan, CHUNKS, needs="hessian", n_threads=2, held_nbytes=held_nbytes
        ) as walk:
            for layer in walk:
                for group in layer.groups:
                    found = layer.statistics(group[0])
                    if found.counts is None:
                        continue
                    assert found.hessian is None
                    seen += group
                    for name in group:
                        squares, counts = want[name]
                        assert found.counts == counts, name
                        np.testing.assert_allclose(found.importance, squares, rtol=4e-3, atol=1e-6)
        assert seen == stacks


def inputs_of_experts(
    plan: Plan, weights: dict[str, F32]
) -> dict[str, tuple[F32, tuple[int, ...]]]:
    """Return mean squares f32 (n_experts, n_in) and counts of what each expert reads, by NumPy."""
    executor = reference.ReferenceExecutor(plan, weights.__getitem__, context=64, kv_type="f16")
    rows: dict[str, list[F32]] = {}
    experts: dict[str, list[np.ndarray]] = {}
    n_experts = {}
    for sequence, chunk in enumerate(CHUNKS):
        n = len(chunk)
        step = reference._Step(
            executor, np.array(chunk), np.arange(n), np.full(n, sequence), np.arange(n)
        )
        for index, op in enumerate(plan.ops):
            step.index = index
            inputs = [step.values[buffer] for buffer in op.inputs]
            if op.kind == "expert_linear":
                routing = next(o.routing for o in plan.ops if o.output == op.inputs[1])
                assert routing is not None
                ids = reference_experts.experts_of(inputs[1], routing)
                x = inputs[0]
                if len(x) != len(ids):
                    x = np.repeat(x, routing.n_used, axis=0)
                rows.setdefault(op.weights[0], []).append(x)
                experts.setdefault(op.weights[0], []).append(ids)
                n_experts[op.weights[0]] = routing.n_experts
            step.values[op.output] = reference._OPS[op.kind](step, op, *inputs)
    found = {}
    for name, parts in rows.items():
        x, ids = np.concatenate(parts), np.concatenate(experts[name])
        counts = np.bincount(ids, minlength=n_experts[name])
        means = np.ones((n_experts[name], x.shape[1]), np.float32)
        for expert in np.flatnonzero(counts).tolist():
            means[expert] = np.square(x[ids == expert]).mean(axis=0)
        found[name] = (means, tuple(counts.tolist()))
    return found


def test_progress_counts_tokens(tmp_path: Path) -> None:
    said: list[tuple[str, int, int]] = []
    with (
        opened(tmp_path / "m.gguf", arch="llama", weight_format="f32") as (checkpoint, plan),
        Walk(
            checkpoint,
            plan,
            CHUNKS,
            needs="importance",
            n_threads=1,
            progress=lambda *what: said.append(what),
        ) as walk,
    ):
        layer = next(iter(walk))
        layer.statistics(layer.groups[1][0])
    assert said == [("calibrating", 11, 18), ("calibrating", 18, 18)]


def test_groups_and_layers_are_read_off_the_plan() -> None:
    plan = Plan()
    x = plan.embed("e", 8, 4)
    plan.layer = 0
    h = plan.rms_norm(x, "n0", 1e-5)
    a, b = plan.linear(h, "a", 4), plan.linear(h, "b", 4)
    y = plan.linear(plan.gated(a, b, "silu"), "c", 4)
    plan.layer = None
    plan.linear(plan.select(plan.add(x, y)), "out", 8)
    layers = layers_of(all_rows(plan))
    assert [index for index, _ in layers] == [0, None]
    assert [g.names for _, ops in layers for g in groups_of(ops)] == [("a", "b"), ("c",), ("out",)]
    assert groups_of(layers[0][1])[0].input == Buffer(h.name, 4)
