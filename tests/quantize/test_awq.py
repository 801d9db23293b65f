"""Scales and their folding: the model computes the same, and rounds better where they are kept."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from tiny import Tiny, write_model

from quantcli import formats
from quantcli.arch import Hyper, get
from quantcli.checkpoint import Checkpoint, open_checkpoint
from quantcli.formats import F32
from quantcli.plan import Heads, Op, Plan
from quantcli.qtensor import QTensor
from quantcli.quantize import MatrixJob, MatrixResult, Needs, Quantizer, Statistics
from quantcli.quantize.awq import Awq, Site, apply, made_scales, site_of
from quantcli.quantize.gptq import Gptq
from quantcli.quantize.groups import groups_of, layers_of
from quantcli.quantize.layers import CalibratedLayer, Walk
from quantcli.quantize.plain import QUANTIZER as PLAIN
from quantcli.runtime.reference import ReferenceExecutor
from quantcli.runtime.stretch import all_rows

pytestmark = pytest.mark.jit

TOKENS = [3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8, 9, 7, 9, 3, 2, 3, 8]


@contextmanager
def opened(path: Path, **options: object) -> Iterator[tuple[Checkpoint, Plan]]:
    """Write a tiny model and open it."""
    write_model(path, Tiny(**options))  # type: ignore[arg-type]
    with open_checkpoint(path) as checkpoint:
        hyper = Hyper.from_metadata(checkpoint.metadata, checkpoint.tensors)
        yield checkpoint, get(hyper.arch).build(hyper)


def all_weights(checkpoint: Checkpoint, plan: Plan) -> dict[str, F32]:
    """Return every weight in f32."""
    return {n: checkpoint.tensor(n).dequantize().reshape(s) for n, s in plan.weights.items()}


def logits(plan: Plan, weights: dict[str, F32]) -> F32:
    """Return all rows' logits by the NumPy reference."""
    n = len(TOKENS)
    executor = ReferenceExecutor(plan, weights.__getitem__, context=64)
    return executor.forward(TOKENS, range(n), [0] * n, range(n))


class Weights:
    """As much of a layer as folding needs."""

    def __init__(self, weights: dict[str, F32]) -> None:
        self.weights = weights


def random_scales(site: Site, n: int, random: np.random.Generator) -> F32:
    """Return scales that differ 16-fold, alike for query heads that share values."""
    scales = np.exp(random.uniform(-1.4, 1.4, n)).astype(np.float32)
    heads = site.producer.heads
    if heads is None:
        return scales
    each = scales.reshape(heads.n_kv_heads, -1, heads.head_dim)
    return np.ascontiguousarray(np.broadcast_to(each[:, :1], each.shape)).reshape(-1)


@pytest.mark.parametrize(
    "case",
    [
        {"arch": "llama", "biases": True},
        {"arch": "qwen2", "biases": True, "n_heads": 8},
        {"arch": "qwen3"},
        {"arch": "gemma3", "n_layers": 3},
    ],
    ids=lambda case: case["arch"],
)
def test_folded_scales_leave_the_logits_as_they_are(
    case: dict[str, object], tmp_path: Path
) -> None:
    random = np.random.default_rng(0)
    with opened(tmp_path / "m.gguf", weight_format="f32", **case) as (checkpoint, plan):
        weights = all_weights(checkpoint, plan)
        before = logits(plan, weights)
        n_sites = 0
        for index, ops in layers_of(all_rows(plan)):
            for group in groups_of(ops) if index is not None else []:
                site, why = site_of(ops, group.names)
                assert site is not None, why
                scales = random_scales(site, group.input.width, random)
                apply(Weights(weights), site, scales)  # type: ignore[arg-type]
                n_sites += 1
        assert n_sites == 4 * len([1 for op in plan.ops if op.heads])
        after = logits(plan, weights)
    # Each of about ten products a layer rounds its factors once more.
    np.testing.assert_allclose(after, before, atol=2e-5 * np.abs(before).max())


def test_a_place_is_read_off_the_plan_or_refused_with_the_reason() -> None:
    plan = Plan()
    x = plan.embed("embd", 8, 8)
    plan.layer = 0
    h = plan.rms_norm(x, "norm", 1e-5)
    q, k, v = (plan.linear(h, name, 8) for name in "qkv")
    v = plan.rms_norm(v, "v_norm", 1e-5, 4)
    o = plan.linear(plan.attention(q, k, v, Heads(2, 2, 4, 0.5)), "o", 8)
    x = plan.add(x, o)
    summed = plan.linear(plan.add(x, o), "summed", 8)
    n = plan.rms_norm(x, "norm", 1e-5)
    up = plan.linear(n, "up", 8)
    down = plan.linear(plan.gated(plan.scale(n, 0.5), up, "silu"), "down", 8)
    plan.add(plan.add(x, down), summed)
    ops = [op for op in plan.ops if op.layer == 0]

    def found(*names: str) -> tuple[Site | None, str]:
        return site_of(ops, names)

    site, why = found("q", "k", "v")
    assert site is None
    assert "norm is used more than once" in why
    site, why = found("o")
    assert site is None
    assert "attention reads is not made by a matrix" in why
    site, why = found("summed")
    assert site is None
    assert "made by add" in why
    site, why = found("up")
    assert site is None
    assert "read by more than matrices" in why
    site, why = found("down")
    assert site is not None
    assert (site.maker, site.bias) == ("up", None)


def layer_with_outliers(
    checkpoint: Checkpoint, plan: Plan, walk: Walk
) -> tuple[CalibratedLayer, dict[str, F32]]:
    """Return the first layer, a few of whose normed inputs are large, and its weights."""
    layer = next(iter(walk))
    for name in ("blk.0.attn_norm.weight", "blk.0.ffn_norm.weight"):
        layer.weights[name][::17] *= np.float32(20)
    layer.changed()
    return layer, {name: layer.weights[name].copy() for name in plan.weights if "blk.0" in name}


@pytest.mark.parametrize("quantizer", [PLAIN, Gptq(n_threads=1, n_rounds=1)], ids=["plain", "gptq"])
def test_scales_are_kept_where_the_loss_falls(tmp_path: Path, quantizer: object) -> None:
    with opened(tmp_path / "m.gguf", arch="llama", weight_format="f32") as (checkpoint, plan):
        chunks = np.random.default_rng(1).integers(0, 40, (4, 50)).tolist()
        with Walk(checkpoint, plan, chunks, needs="hessian", n_threads=1) as walk:
            layer, before = layer_with_outliers(checkpoint, plan, walk)
            q4 = {name: formats.get("q4_0") for name in plan.weights}
            weights = all_weights(checkpoint, plan) | before
            same = logits(plan, weights)
            notes = Awq(quantizer=quantizer).fold(layer, q4)  # type: ignore[arg-type]
            assert notes == ()
            after = {name: layer.weights[name] for name in before}
            assert any((after[name] != before[name]).any() for name in before)
            now = logits(plan, weights | after)
            np.testing.assert_allclose(now, same, atol=2e-5 * np.abs(same).max())
            # the statistics that follow are those of the scaled inputs
            norm = "blk.0.attn_norm.weight"
            found = layer.statistics("blk.0.attn_q.weight").importance
            ratio = np.square(after[norm] / before[norm])
            layer.weights[norm] = before[norm]
            layer.changed()
            unscaled = layer.statistics("blk.0.attn_q.weight").importance
            np.testing.assert_allclose(found, unscaled * ratio, rtol=1e-4)


@pytest.mark.parametrize("quantizer", [PLAIN, Gptq(n_threads=1, n_rounds=1)], ids=["plain", "gptq"])
def test_no_matrix_loses_by_the_scales_of_its_site(tmp_path: Path, quantizer: Quantizer) -> None:
    def lost(weight: F32, statistics: Statistics, by: Quantizer) -> float:
        work = MatrixJob("w", weight.copy(), formats.get("q4_0"), formats.get("f32"), statistics)
        error = (
            weight - QTensor("w", weight.shape, work.format, by.quantize(work).data).dequantize()
        )
        assert statistics.hessian is not None
        return float(np.trace(np.float64(error) @ statistics.hessian @ error.T))

    with opened(tmp_path / "m.gguf", arch="llama", weight_format="f32") as (checkpoint, plan):
        chunks = np.random.default_rng(1).integers(0, 40, (4, 50)).tolist()
        with Walk(checkpoint, plan, chunks, needs="hessian", n_threads=1) as walk:
            layer, before = layer_with_outliers(checkpoint, plan, walk)
            groups = [group for group in layer.groups if "attn_q" in group[0] or "gate" in group[0]]
            exact = {name: layer.preview(g[0]) for g in groups for name in g}
            Awq(quantizer=quantizer).fold(layer, {n: formats.get("q4_0") for n in plan.weights})
            for name, known in exact.items():
                most = lost(before[name], known, PLAIN)
                now = lost(layer.weights[name], layer.preview(name), quantizer)
                assert now <= most * (1 + 1e-4), name  # both are sums of f32 products


class Best:
    """A quantizer that loses least where nothing is scaled."""

    name = "best"
    needs: Needs = "nothing"

    def quantize(self, job: MatrixJob) -> MatrixResult:
        """Return the plain search's codes, of weights rounded away the more they were scaled."""
        spread = np.abs(job.weight).max(axis=0)
        noise = np.float32(spread.max() / spread.min() / 100)
        job = replace(job, weight=job.weight * (1 - min(noise, np.float32(0.9))))
        return PLAIN.quantize(job)


def test_nothing_is_scaled_where_nothing_is_gained(tmp_path: Path) -> None:
    with opened(tmp_path / "m.gguf", arch="llama", weight_format="f32") as (checkpoint, plan):
        chunks = np.random.default_rng(1).integers(0, 40, (6, 60)).tolist()
        with Walk(checkpoint, plan, chunks, needs="hessian", n_threads=1) as walk:
            layer = next(iter(walk))
            for name in plan.weights:
                if name.startswith("blk.0") and len(plan.weights[name]) == 2:
                    layer.weights[name] = np.sign(layer.weights[name])
            layer.changed()
            before = {n: layer.weights[n].copy() for n in plan.weights if n.startswith("blk.0")}
            Awq(quantizer=Best()).fold(layer, {n: formats.get("q8_0") for n in plan.weights})
            for name, weight in before.items():
                np.testing.assert_array_equal(layer.weights[name], weight, err_msg=name)


def test_matrices_that_stay_floats_are_left_alone(tmp_path: Path) -> None:
    with (
        opened(tmp_path / "m.gguf", arch="llama", weight_format="f32") as (checkpoint, plan),
        Walk(checkpoint, plan, [TOKENS], needs="hessian", n_threads=1) as walk,
    ):
        layer = next(iter(walk))
        notes = Awq().fold(layer, {name: formats.get("bf16") for name in plan.weights})
        assert notes == ()
        assert not dict(layer.weights)  # nothing was even read


def test_the_output_matrix_is_left_alone(tmp_path: Path) -> None:
    with (
        opened(tmp_path / "m.gguf", arch="llama", weight_format="f32", tied=True) as (c, plan),
        Walk(c, plan, [TOKENS], needs="hessian", n_threads=1) as walk,
    ):
        layer = list(walk)[-1]
        assert layer.groups == (("token_embd.weight",),)
        assert Awq().fold(layer, {name: formats.get("q4_0") for name in plan.weights}) == ()
        assert not dict(layer.weights)


def test_query_heads_that_share_values_share_scales() -> None:
    heads = Heads(n_heads=4, n_kv_heads=2, head_dim=3, scale=1.0)
    plan = Plan()
    x = plan.embed("embd", 8, 6)
    q, k, v = plan.linear(x, "q", 12), plan.linear(x, "k", 6), plan.linear(x, "v", 6)
    out = plan.attention(q, k, v, heads)
    op = next(op for op in plan.ops if op.output == out)
    site = Site((Op("linear", (out,), out, ("o",)),), op, "v")
    scales = np.array([1, 2, 3, 1, 2, 3, 4, 5, 6, 4, 5, 6], np.float32)
    np.testing.assert_array_equal(made_scales(site, scales), [1, 2, 3, 4, 5, 6])
