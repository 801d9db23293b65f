"""Plans: which ops an architecture is made of, and how they hang together."""

from __future__ import annotations

import math
from types import SimpleNamespace

import pytest
from tiny import Tiny

from quantcli.arch import Hyper, get
from quantcli.errors import UnknownName
from quantcli.plan import OUTPUTS, TOKENS, Op, Plan


def plan_of(tiny: Tiny) -> Plan:
    """Return a tiny model's plan."""
    tensors = {name: SimpleNamespace(shape=shape) for name, shape in tiny.shapes().items()}
    metadata = {"general.architecture": tiny.arch} | tiny.metadata()
    return get(tiny.arch).build(Hyper.from_metadata(metadata, tensors))


def kinds(plan: Plan, layer: int | None) -> list[str]:
    """Return the kinds of a layer's ops, in order."""
    return [op.kind for op in plan.ops if op.layer == layer]


def one(plan: Plan, kind: str, layer: int | None = 0) -> Op:
    """Return a layer's first op of a kind."""
    return next(op for op in plan.ops if op.kind == kind and op.layer == layer)


PLAIN = (
    "rms_norm linear linear linear rope rope attention linear add "
    "rms_norm linear linear gated linear add"
)
QK_NORM = PLAIN.replace("rope rope", "rms_norm rope rms_norm rope")
SANDWICH = (
    QK_NORM.replace("attention linear add", "attention linear rms_norm add").removesuffix("add")
    + "rms_norm add"
)


@pytest.mark.parametrize(
    ("arch", "layer"),
    [("llama", PLAIN), ("qwen2", PLAIN), ("qwen3", QK_NORM), ("gemma3", SANDWICH)],
)
def test_a_layer_is_these_ops(arch: str, layer: str) -> None:
    plan = plan_of(Tiny(arch, n_layers=3))
    assert kinds(plan, 0) == kinds(plan, 1) == layer.split()
    last = layer.replace("attention", "attention select select")
    assert kinds(plan, 2) == last.split()
    assert kinds(plan, None) == ["embed", "rms_norm", "linear"]


@pytest.mark.parametrize(
    ("arch", "style", "act", "scale"),
    [
        ("llama", "norm", "silu", 1.0),
        ("qwen2", "neox", "silu", 1.0),
        ("qwen3", "neox", "silu", 1.0),
        ("gemma3", "neox", "gelu_tanh", math.sqrt(128)),
    ],
)
def test_an_architecture_has_its_rope_activation_and_embedding_scale(
    arch: str, style: str, act: str, scale: float
) -> None:
    plan = plan_of(Tiny(arch))
    rope = one(plan, "rope").rope
    assert rope is not None
    assert rope.style == style
    assert one(plan, "gated").params["act"] == act
    assert one(plan, "embed", None).params["scale"] == pytest.approx(scale)


def test_only_rows_whose_logits_are_wanted_go_on_behind_the_last_attention() -> None:
    plan = plan_of(Tiny("llama"))
    axes = [op.output.axis for op in plan.ops]
    first = axes.index(OUTPUTS)
    assert plan.ops[first].inputs == (one(plan, "attention", 1).output,)
    assert set(axes[:first]) == {TOKENS}
    assert set(axes[first:]) == {OUTPUTS}


def test_q_k_and_v_share_their_input() -> None:
    plan = plan_of(Tiny("llama"))
    norm = one(plan, "rms_norm")
    assert [op.weights[0] for op in plan.readers(norm.output)] == [
        f"blk.0.attn_{part}.weight" for part in "qkv"
    ]


def test_the_residual_stream_is_the_first_input_of_each_sum() -> None:
    plan = plan_of(Tiny("gemma3"))
    stream = plan.ops[0].output
    for op in plan.ops:
        if op.kind == "select" and op.inputs == (stream,):
            stream = op.output
        if op.kind == "add":
            assert op.inputs[0] == stream
            stream = op.output
    assert one(plan, "rms_norm", None).inputs == (stream,)


def test_a_tied_model_reads_its_embedding_twice() -> None:
    plan = plan_of(Tiny("llama", tied=True))
    assert plan.ops[-1].weights == ("token_embd.weight",)
    assert "output.weight" not in plan.weights
    assert plan_of(Tiny("llama")).ops[-1].weights == ("output.weight",)


@pytest.mark.parametrize("arch", ["llama", "qwen2"])
def test_biases_are_read_where_the_file_has_them(arch: str) -> None:
    tiny = Tiny(arch, biases=True)
    plan = plan_of(tiny)
    biases = {name for name in plan.weights if name.endswith(".bias")}
    assert biases == {name for name in tiny.shapes() if name.endswith(".bias")}
    assert not any(name.endswith(".bias") for name in plan_of(Tiny(arch)).weights)


@pytest.mark.parametrize("arch", ["llama", "qwen2", "qwen3", "gemma3"])
def test_a_plan_reads_exactly_what_a_file_of_its_architecture_holds(arch: str) -> None:
    tiny = Tiny(arch, biases=arch in ("llama", "qwen2"), rope_freqs=arch == "llama")
    assert plan_of(tiny).weights == tiny.shapes()


def test_softcaps_of_the_keys() -> None:
    plan = plan_of(Tiny("gemma3", attn_softcap=50.0, logit_softcap=30.0))
    heads = one(plan, "attention").heads
    assert heads is not None
    assert heads.softcap == 50.0
    assert plan.ops[-1].kind == "softcap"
    assert plan.ops[-1].params == {"cap": 30.0}


def windows(tiny: Tiny) -> list[int]:
    """Return each layer's window."""
    return [op.heads.window for op in plan_of(tiny).ops if op.heads is not None]


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        (None, [16] * 5 + [0] + [16]),
        (2, [16, 0, 16, 0, 16, 0, 16]),
        (1, [0] * 7),
        (0, [16] * 7),
        ((True, False, False, True, True, False, True), [16, 0, 0, 16, 16, 0, 16]),
    ],
)
def test_gemma3_windows(pattern: int | tuple[bool, ...] | None, expected: list[int]) -> None:
    assert windows(Tiny("gemma3", n_layers=7, window_pattern=pattern)) == expected
    assert windows(Tiny("gemma3", n_layers=7, window_pattern=pattern, window=0)) == [0] * 7


def test_gemma3_scales_only_the_rope_of_layers_that_see_everything() -> None:
    tiny = Tiny(
        "gemma3", window_pattern=2, rope_scaling="linear", rope_factor=8.0, freq_base=1000000.0
    )
    ropes = [op.rope for op in plan_of(tiny).ops if op.rope is not None]
    assert [(r.freq_base, r.scaling, r.factor) for r in ropes] == [
        (10000.0, "none", 1.0),
        (10000.0, "none", 1.0),
        (1000000.0, "linear", 8.0),
        (1000000.0, "linear", 8.0),
    ]


def test_gemma3_27b_alone_scales_scores_by_the_width_of_the_model() -> None:
    small = one(plan_of(Tiny("gemma3")), "attention").heads
    large = one(plan_of(Tiny("gemma3", n_layers=62, d_model=64)), "attention").heads
    assert small is not None
    assert large is not None
    assert small.scale == pytest.approx(1 / math.sqrt(32))
    assert large.scale == pytest.approx(1 / math.sqrt(64 / 4))


def test_other_architectures_apply_no_window_whatever_the_file_says() -> None:
    tiny = Tiny("llama")
    tensors = {name: SimpleNamespace(shape=shape) for name, shape in tiny.shapes().items()}
    metadata = {"general.architecture": "llama", "llama.attention.sliding_window": 16}
    plan = get("llama").build(Hyper.from_metadata(metadata | tiny.metadata(), tensors))
    assert {op.heads.window for op in plan.ops if op.heads is not None} == {0}


def test_layers_may_differ_in_heads_and_width() -> None:
    tiny = Tiny("llama")
    metadata = {"general.architecture": "llama"} | tiny.metadata()
    metadata["llama.attention.head_count"] = [4, 2]
    metadata["llama.attention.head_count_kv"] = [2, 1]
    metadata["llama.feed_forward_length"] = [192, 64]
    tensors = {name: SimpleNamespace(shape=shape) for name, shape in tiny.shapes().items()}
    plan = get("llama").build(Hyper.from_metadata(metadata, tensors))
    assert plan.weights["blk.0.attn_k.weight"] == (64, 128)
    assert plan.weights["blk.1.attn_k.weight"] == (32, 128)
    assert plan.weights["blk.1.ffn_down.weight"] == (128, 64)


def test_an_unknown_architecture_is_unknown() -> None:
    with pytest.raises(UnknownName, match="Did you mean qwen3"):
        get("qwen4")
