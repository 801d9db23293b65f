"""The NumPy executor: each op against a formula, and the rules of its cache."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
from reference_model import load, logits
from tiny import write_tiny

from quantcli.errors import ResourceError
from quantcli.formats import F32
from quantcli.plan import SIGNATURES, Buffer, Heads, Plan, Rope
from quantcli.runtime.reference import ReferenceExecutor, round_activations

RANDOM = np.random.RandomState(5)


def values(*shape: int) -> F32:
    """Return random values."""
    return RANDOM.standard_normal(shape).astype(np.float32)


class OneOp:
    """A plan around a single op: embeddings go in, its output comes out as logits."""

    def __init__(self, width: int, n_tokens: int = 6) -> None:
        self.plan = Plan()
        self.weights = {"token_embd.weight": values(n_tokens, width)}
        self.x = self.plan.embed("token_embd.weight", n_tokens, width)

    def run(self, last: Buffer, *, positions: list[int] | None = None) -> F32:
        """Return what a buffer holds for tokens 0, 1, 2 ..."""
        self.plan.select(last)
        n = len(self.weights["token_embd.weight"])
        executor = ReferenceExecutor(self.plan, self.weights.__getitem__, context=100)
        return executor.forward(range(n), positions or range(n), [0] * n, range(n))


def test_every_kind_of_op_runs() -> None:
    from quantcli.runtime.reference import _OPS

    assert set(_OPS) == set(SIGNATURES)


def test_embed_scales() -> None:
    one = OneOp(8)
    x = one.plan.embed("token_embd.weight", 6, 8, scale=3.0)
    assert np.array_equal(one.run(x), one.weights["token_embd.weight"] * 3)


@pytest.mark.parametrize("group", [0, 4])
def test_rms_norm(group: int) -> None:
    one = OneOp(8)
    weight = one.weights["w"] = values(group or 8)
    y = one.run(one.plan.rms_norm(one.x, "w", 0.1, group))
    for row, x in zip(y, one.weights["token_embd.weight"], strict=True):
        for start in range(0, 8, group or 8):
            part = x[start : start + (group or 8)].astype(float)
            expected = part / math.sqrt(float(np.dot(part, part)) / len(part) + 0.1) * weight
            assert row[start : start + len(part)] == pytest.approx(expected, rel=1e-6)


def test_linear_adds_its_bias() -> None:
    one = OneOp(8)
    one.weights |= {"w.weight": values(5, 8), "w.bias": values(5)}
    y = one.run(one.plan.linear(one.x, "w.weight", 5, "w.bias"))
    expected = one.weights["token_embd.weight"] @ one.weights["w.weight"].T + one.weights["w.bias"]
    assert y == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize("style", ["norm", "neox"])
def test_rope_is_a_complex_rotation_of_the_pairs(style: str) -> None:
    one = OneOp(16)
    rope = Rope(style, n_rot=6, freq_base=100.0)
    positions = [0, 1, 2, 30, 31, 32]
    y = one.run(one.plan.rope(one.x, rope, 8), positions=[0, 1, 2, 3, 4, 5]).reshape(6, 2, 8)
    x = one.weights["token_embd.weight"].reshape(6, 2, 8)
    pairs = [(0, 1), (2, 3), (4, 5)] if style == "norm" else [(0, 3), (1, 4), (2, 5)]
    for position in range(len(positions)):
        for i, (a, b) in enumerate(pairs):
            turn = np.exp(1j * position * 100.0 ** (-2 * i / 6))
            expected = (x[position, :, a] + 1j * x[position, :, b]) * turn
            assert y[position, :, a] + 1j * y[position, :, b] == pytest.approx(expected, abs=1e-6)
    assert np.array_equal(y[:, :, 6:], x[:, :, 6:])  # the rest of a head stays


def attention_by_definition(q: F32, k: F32, v: F32, heads: Heads, sinks: F32 | None) -> F32:
    """Return attention computed one query and one head at a time, in f64."""
    n = len(q)
    q, k, v = (x.reshape(n, -1, heads.head_dim).astype(np.float64) for x in (q, k, v))
    out = np.zeros_like(q)
    for row in range(n):
        for head in range(heads.n_heads):
            of = head // (heads.n_heads // heads.n_kv_heads)
            first = max(0, row + 1 - heads.window) if heads.window else 0
            scores = k[first : row + 1, of] @ q[row, head] * heads.scale
            if heads.softcap:
                scores = heads.softcap * np.tanh(scores / heads.softcap)
            total = np.exp(scores).sum() + (0.0 if sinks is None else math.exp(sinks[head]))
            out[row, head] = np.exp(scores) @ v[first : row + 1, of] / total
    return out.reshape(n, -1)


@pytest.mark.parametrize("n_kv_heads", [1, 2, 4])
@pytest.mark.parametrize("window", [0, 1, 3, 50])
@pytest.mark.parametrize(("softcap", "has_sinks"), [(0.0, False), (2.0, False), (0.0, True)])
def test_attention(n_kv_heads: int, window: int, softcap: float, has_sinks: bool) -> None:
    one = OneOp(32)
    sinks = "sinks" if has_sinks else None
    heads = Heads(4, n_kv_heads, 8, 0.7, window, softcap, sinks)
    kv = n_kv_heads * 8
    one.weights |= {"k": values(kv, 32), "v": values(kv, 32), "sinks": values(4)}
    k, v = (one.plan.linear(one.x, name, kv) for name in "kv")
    y = one.run(one.plan.attention(one.x, k, v, heads))
    q = one.weights["token_embd.weight"]
    k_values, v_values = (q @ one.weights[name].T for name in "kv")
    extra = one.weights["sinks"] if has_sinks else None
    assert y == pytest.approx(
        attention_by_definition(q, k_values, v_values, heads, extra), abs=1e-5
    )


@pytest.mark.parametrize(("act", "of_one"), [("silu", 0.7310585786), ("gelu_tanh", 0.8411919906)])
def test_activations(act: str, of_one: float) -> None:
    one = OneOp(4)
    gate = one.weights["token_embd.weight"]
    gate[0] = [1.0, 0.0, -200.0, 200.0]
    y = one.run(one.plan.gated(one.x, one.x, act))
    assert y[0] == pytest.approx([of_one, 0.0, 0.0, 40000.0], rel=1e-6)
    if act == "silu":
        assert y == pytest.approx(gate * gate / (1 + np.exp(-gate.astype(float))), rel=1e-5)


def test_add_scale_and_softcap() -> None:
    one = OneOp(4)
    x = one.weights["token_embd.weight"]
    doubled = one.plan.add(one.x, one.x)
    y = one.run(one.plan.softcap(one.plan.scale(doubled, 3.0), 1.5))
    assert y == pytest.approx(1.5 * np.tanh(6 * x / 1.5), abs=1e-6)


def test_no_logits_are_computed_where_none_are_wanted(tmp_path: Path) -> None:
    executor = load(write_tiny(tmp_path / "m.gguf", "qwen3"), activation="q8")
    assert executor.forward([1, 2, 3], [0, 1, 2], [0, 0, 0], []).shape == (0, 273)
    assert executor.forward([4], [3], [0], [0]).shape == (1, 273)


def test_outputs_choose_rows_in_any_order(tmp_path: Path) -> None:
    path = write_tiny(tmp_path / "m.gguf", "llama", weight_format="f32")
    every = logits(load(path), [5, 6, 7, 8])
    some = logits(load(path), [5, 6, 7, 8], [3, 0, 3])
    assert some == pytest.approx(every[[3, 0, 3]], abs=1e-4)


def test_sequences_do_not_see_each_other(tmp_path: Path) -> None:
    path = write_tiny(tmp_path / "m.gguf", "gemma3")
    together = load(path).forward(
        [10, 20, 11, 21, 22], [0, 0, 1, 1, 2], [3, 8, 3, 8, 8], [0, 1, 2, 3, 4]
    )
    assert together[[0, 2]] == pytest.approx(logits(load(path), [10, 11]), abs=1e-4)
    assert together[[1, 3, 4]] == pytest.approx(logits(load(path), [20, 21, 22]), abs=1e-4)


def test_a_truncated_sequence_goes_on_from_there(tmp_path: Path) -> None:
    executor = load(write_tiny(tmp_path / "m.gguf", "llama"))
    first = executor.forward([1, 2, 3, 4], [0, 1, 2, 3], [0] * 4, [3])
    executor.truncate(0, 2)
    executor.forward([9, 9], [2, 3], [0, 0], [1])
    executor.truncate(0, 2)
    again = executor.forward([3, 4], [2, 3], [0, 0], [1])
    assert again == pytest.approx(first, abs=1e-4)


def test_a_freed_sequence_is_forgotten(tmp_path: Path) -> None:
    executor = load(write_tiny(tmp_path / "m.gguf", "llama"))
    executor.forward([1, 2], [0, 1], [0, 0], [])
    executor.free(0)
    with pytest.raises(AssertionError):
        executor.forward([3], [2], [0], [0])


def test_a_position_beyond_the_context_is_refused(tmp_path: Path) -> None:
    executor = load(write_tiny(tmp_path / "m.gguf", "llama"), context=4)
    with pytest.raises(ResourceError, match="position 4 does not fit a context of 4"):
        executor.forward([1], [4], [0], [0])


def test_activations_round_to_int8_in_blocks_of_32() -> None:
    x = np.zeros((2, 64), np.float32)
    x[0, :32] = np.linspace(-127, 127, 32)
    x[0, 32] = 1e-30
    x[1, 5] = -0.5
    y = round_activations(x)
    assert y[0, :32] == pytest.approx(np.rint(x[0, :32]), rel=1e-6)
    assert y[0, 32] == pytest.approx(1e-30)
    assert np.array_equal(y[1], x[1])
    assert round_activations(np.zeros((0, 64), np.float32)).shape == (0, 64)


def test_rounded_activations_are_within_half_a_step() -> None:
    x = values(50, 96)
    amax = np.abs(x.reshape(50, 3, 32)).max(axis=-1).repeat(32, axis=-1)
    assert (np.abs(round_activations(x) - x) <= amax / 127 * 0.5 * (1 + 1e-5)).all()


def test_only_the_input_of_quantized_matrices_is_rounded(tmp_path: Path) -> None:
    tokens = [7, 8, 9, 10]
    for fmt, rounds in (("f16", False), ("bf16", False), ("q8_0", True), ("q4_k", True)):
        path = write_tiny(tmp_path / f"{fmt}.gguf", "qwen3", weight_format=fmt)
        plain, rounded = logits(load(path), tokens), logits(load(path, activation="q8"), tokens)
        assert np.array_equal(plain, rounded) is not rounds
        assert rounded == pytest.approx(plain, abs=0.5)


@pytest.mark.parametrize(("kv_type", "relative"), [("f16", 2.0**-11), ("q8_0", 1 / 200)])
@pytest.mark.parametrize("head_dim", [32, 24])
def test_keys_and_values_are_rounded(kv_type: str, relative: float, head_dim: int) -> None:
    plan = Plan()
    x = plan.embed("e", 4, head_dim)
    plan.select(plan.attention(x, x, x, Heads(1, 1, head_dim, 1.0, window=1)))
    e = values(4, head_dim)
    executor = ReferenceExecutor(plan, {"e": e}.__getitem__, context=4, kv_type=kv_type)
    out = executor.forward(range(4), range(4), [0] * 4, range(4))  # v of the row itself
    assert not np.array_equal(out, e)
    assert (np.abs(out - e) <= relative * np.abs(e).max(axis=1, keepdims=True)).all()
