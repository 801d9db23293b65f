"""What a file must hold, what it may hold, and what it must not."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from tiny import Tiny

from quantcli.arch import Hyper, check_tensors, get
from quantcli.errors import CheckpointError, ShapeError, UnsupportedModel
from quantcli.plan import Plan


def model(tiny: Tiny) -> tuple[Plan, dict[str, SimpleNamespace]]:
    """Return a tiny model's plan and the shapes of its tensors."""
    tensors = {name: SimpleNamespace(shape=shape) for name, shape in tiny.shapes().items()}
    metadata = {"general.architecture": tiny.arch} | tiny.metadata()
    return get(tiny.arch).build(Hyper.from_metadata(metadata, tensors)), tensors


def test_a_complete_file_passes() -> None:
    plan, tensors = model(Tiny("llama", rope_freqs=True, biases=True))
    assert check_tensors(plan, tensors) == ()


def test_a_missing_tensor_is_named() -> None:
    plan, tensors = model(Tiny("qwen3"))
    del tensors["blk.1.ffn_up.weight"]
    with pytest.raises(CheckpointError, match=r"tensor blk.1.ffn_up.weight is missing"):
        check_tensors(plan, tensors)


def test_many_missing_tensors_are_counted() -> None:
    plan, tensors = model(Tiny("qwen3"))
    tensors = {name: t for name, t in tensors.items() if not name.startswith("blk.1.")}
    with pytest.raises(CheckpointError, match=r"blk.1.attn_norm.weight \(and 10 more\)"):
        check_tensors(plan, tensors)


@pytest.mark.parametrize(
    ("name", "shape", "says"),
    [
        ("blk.0.attn_q.weight", (64, 128), "is 64 x 128, but .* call for 128 x 128"),
        ("blk.0.attn_norm.weight", (1, 2, 128), "is 1 x 2 x 128"),
        ("blk.0.ffn_down.weight", (192, 128), "is 192 x 128, but .* call for 128 x 192"),
        ("output_norm.weight", (), "is empty"),
        ("output.weight", (7, 128), "is 7 x 128, but .* call for 273 x 128"),
    ],
)
def test_a_wrong_shape_is_named(name: str, shape: tuple[int, ...], says: str) -> None:
    plan, tensors = model(Tiny("llama"))
    tensors[name] = SimpleNamespace(shape=shape)
    with pytest.raises(ShapeError, match=f"{name} {says}"):
        check_tensors(plan, tensors)


def test_leading_axes_of_one_make_no_difference() -> None:
    plan, tensors = model(Tiny("llama"))
    tensors["output_norm.weight"] = SimpleNamespace(shape=(1, 128))
    assert check_tensors(plan, tensors) == ()


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("blk.0.attn_sinks.weight", "attention sinks are not supported"),
        ("blk.0.ffn_gate_exps.weight", "mixtures of experts are not supported"),
        ("blk.0.ssm_conv1d.weight", "recurrent layers are not supported"),
        ("blk.0.attn_q_norm.weight", "this architecture has no such tensor"),
        ("blk.2.attn_q.weight", "this architecture has no such tensor"),
        ("blk.0.attn_q.scale", "per-tensor scales are not supported"),
        ("rope_factors_long.weight", "longrope factors are not supported"),
        ("x" * 3000, "this architecture has no such tensor"),
    ],
)
def test_a_tensor_that_would_change_the_answer_is_refused(name: str, says: str) -> None:
    plan, tensors = model(Tiny("llama"))
    tensors[name] = SimpleNamespace(shape=(1,))
    with pytest.raises(UnsupportedModel, match=says) as refusal:
        check_tensors(plan, tensors)
    assert name[:80] in str(refusal.value)
    assert len(str(refusal.value)) < 250


def test_one_matrix_for_q_k_and_v_serves_for_three() -> None:
    plan, tensors = model(Tiny("llama", fused_qkv=True))
    assert "blk.0.attn_qkv.weight" in plan.weights
    assert "blk.0.attn_q.weight" not in plan.weights
    tensors["blk.0.attn_q.weight"] = SimpleNamespace(shape=(128, 128))
    with pytest.raises(UnsupportedModel, match=r"unexpected tensor 'blk.0.attn_q.weight'"):
        check_tensors(plan, tensors)


def test_layers_that_predict_further_tokens_are_ignored() -> None:
    plan, tensors = model(Tiny("llama"))
    unused = ("blk.2.nextn.eh_proj.weight", "blk.2.attn_q.weight")
    tensors |= {name: SimpleNamespace(shape=(5, 5)) for name in unused}
    assert check_tensors(plan, tensors) == unused
    tensors["blk.3.attn_q.weight"] = SimpleNamespace(shape=(5, 5))
    with pytest.raises(UnsupportedModel, match=r"unexpected tensor 'blk.3.attn_q.weight'"):
        check_tensors(plan, tensors)


def test_frequency_factors_are_refused_where_they_mean_nothing() -> None:
    plan, tensors = model(Tiny("qwen2"))
    tensors["rope_freqs.weight"] = SimpleNamespace(shape=(16,))
    with pytest.raises(UnsupportedModel, match="RoPE frequency factors"):
        check_tensors(plan, tensors)


@pytest.mark.parametrize(
    "name", ["blk.0.rope_freqs.weight", "blk.1.attn_rot_embd", "v.blk.0.attn_q.weight", "mm.0.bias"]
)
def test_harmless_tensors_are_returned(name: str) -> None:
    plan, tensors = model(Tiny("llama"))
    tensors[name] = SimpleNamespace(shape=(5, 5))
    assert check_tensors(plan, tensors) == (name,)
