"""Hyper-parameters: what metadata is read, and that everything else is refused by name."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny import Tiny

from quantcli import catalog
from quantcli.arch import Hyper, check_tensors, get
from quantcli.errors import CheckpointError, ModelError, ShapeError, UnsupportedModel

NAN = float("nan")
INF = float("inf")
MISSING = object()


def files(tiny: Tiny) -> tuple[dict[str, Any], dict[str, SimpleNamespace]]:
    """Return a tiny model's metadata and its tensors' shapes."""
    metadata = {"general.architecture": tiny.arch} | tiny.metadata()
    metadata |= tiny.vocabulary().metadata()
    return metadata, {name: SimpleNamespace(shape=s) for name, s in tiny.shapes().items()}


def read(arch: str = "llama", **changes: object) -> Hyper:
    """Read a tiny model with some keys changed; in their names `__` stands for a dot."""
    metadata, tensors = files(Tiny(arch))
    for name, value in changes.items():
        key = f"{arch}.{name.replace('__', '.')}"
        if value is MISSING:
            metadata.pop(key, None)
        else:
            metadata[key] = value
    return Hyper.from_metadata(metadata, tensors)


def test_reads_what_the_file_says() -> None:
    hyper = read()
    assert hyper.n_layers == 2
    assert hyper.d_model == 128
    assert hyper.n_heads == (4, 4)
    assert hyper.n_kv_heads == (2, 2)
    assert hyper.head_dim == 32
    assert hyper.d_ff == (192, 192)
    assert hyper.n_vocab == len(Tiny("llama").vocabulary().tokens)
    assert hyper.rope.scaling == "none"


# key, bad value, what the message must say
REFUSED = [
    ("block_count", 0, "whole number from 1 to 512"),
    ("block_count", 10**6, "block_count is 1000000"),
    ("block_count", 2.0, "block_count is 2, but must be a whole number"),
    ("block_count", True, "block_count is true"),
    ("block_count", "two", "block_count is 'two'"),
    ("block_count", np.array([2, 2]), "block_count is an array of 2"),
    ("embedding_length", 0, "embedding_length is 0"),
    ("embedding_length", -128, "embedding_length is -128"),
    ("context_length", 0, "context_length is 0"),
    ("context_length", 2**31, "from 1 to 2147483647"),
    ("feed_forward_length", 0, "feed_forward_length is 0"),
    ("feed_forward_length", np.array([192, 0]), r"feed_forward_length\[1\] is 0"),
    ("feed_forward_length", np.array([192]), "single value or one for each of 2 layers"),
    ("attention__head_count", 0, "head_count is 0"),
    ("attention__head_count", np.array([4, 4, 4]), "an array of 3"),
    ("attention__head_count", [4, "4"], r"head_count\[1\] is '4'"),
    ("attention__head_count_kv", 0, "head_count_kv is 0"),
    ("attention__head_count_kv", 3, "head_count_kv is 3, but must divide the head count of 4"),
    ("attention__head_count_kv", 8, "head_count_kv is 8, but must divide"),
    ("attention__key_length", 1, "key_length is 1"),
    ("attention__key_length", 10**9, "key_length is 1000000000"),
    ("attention__value_length", 16, "value_length is 16, but only models whose heads"),
    ("attention__key_length_swa", 64, "key_length_swa is 64"),
    ("attention__layer_norm_rms_epsilon", 0.0, "above 0 and up to 1"),
    ("attention__layer_norm_rms_epsilon", -1e-5, "epsilon is -1e-05"),
    ("attention__layer_norm_rms_epsilon", NAN, "epsilon is nan"),
    ("attention__layer_norm_rms_epsilon", "1e-5", "epsilon is '1e-5'"),
    ("attention__sliding_window", -1, "sliding_window is -1"),
    ("attention__sliding_window_pattern", np.array([True]), "sliding_window_pattern is an array"),
    ("attention__sliding_window_pattern", [0, 7], "true or false for each layer"),
    ("attention__causal", False, "encoder"),
    ("attention__causal", 1, "causal is 1, but must be true or false"),
    ("rope__dimension_count", 31, "dimension_count is 31, but must be even"),
    ("rope__dimension_count", 34, "dimension_count is 34, but must be a whole number from 2 to 32"),
    ("rope__dimension_count", 0, "dimension_count is 0"),
    ("rope__dimension_count_swa", 16, "dimension_count_swa is 16"),
    ("rope__freq_base", 0.0, "freq_base is 0"),
    ("rope__freq_base", -10000.0, "freq_base is -10000"),
    ("rope__freq_base", NAN, "freq_base is nan"),
    ("rope__freq_base", INF, "freq_base is inf"),
    ("rope__freq_base", np.array([1e4, 1e4]), "freq_base is an array of 2"),
    ("rope__freq_base_swa", 0.0, "freq_base_swa is 0"),
    ("rope__scaling__type", "dynamic", "one of none, linear, yarn, longrope"),
    ("rope__scaling__type", 3, "scaling.type is 3"),
    ("rope__scaling__type", np.array([0.5, 1.5]), "scaling.type is an array of 2"),
    ("rope__scaling__factor", 0.0, "factor is 0"),
    ("rope__scaling__factor", NAN, "factor is nan"),
    ("rope__scaling__original_context_length", 0, "original_context_length is 0"),
    ("rope__scaling__yarn_beta_fast", 0.0, "yarn_beta_fast is 0"),
    ("rope__scaling__attn_factor", -1.0, "attn_factor is -1"),
    ("final_logit_softcapping", -30.0, "final_logit_softcapping is -30"),
    ("expert_count", 5000, "expert_count is 5000"),
    ("nextn_predict_layers", 2, "nextn_predict_layers is 2"),
]


@pytest.mark.parametrize(("key", "value", "says"), REFUSED)
def test_refuses_a_bad_value_in_one_sentence(key: str, value: object, says: str) -> None:
    with pytest.raises(ModelError, match=says) as refusal:
        get("llama").build(read(**{key: value}))
    message = str(refusal.value)
    assert f"llama.{key.replace('__', '.')}" in message
    assert "\n" not in message
    assert len(message) < 200
    assert message.endswith(".")


@pytest.mark.parametrize(
    "key",
    [
        "block_count",
        "embedding_length",
        "context_length",
        "feed_forward_length",
        "attention__head_count",
        "attention__layer_norm_rms_epsilon",
    ],
)
def test_names_a_missing_key(key: str) -> None:
    with pytest.raises(CheckpointError, match=f"llama.{key.replace('__', '.')} is missing"):
        get("llama").build(read(**{key: MISSING}))


def test_an_integer_serves_where_a_number_is_meant() -> None:
    assert read(rope__freq_base=500000).rope.freq_base == 500000.0


def test_defaults_of_keys_that_files_leave_out() -> None:
    hyper = read(
        attention__head_count_kv=MISSING,
        attention__key_length=MISSING,
        attention__value_length=MISSING,
        rope__freq_base=MISSING,
    )
    assert hyper.n_kv_heads == hyper.n_heads
    assert hyper.head_dim == hyper.d_model // 4
    assert hyper.rope.n_rot == hyper.head_dim
    assert hyper.rope.freq_base == 10000.0
    assert hyper.rope.freq_base_swa is None
    assert hyper.rope.original_context == hyper.context
    assert hyper.window_pattern is None


def test_head_width_needs_a_head_count_that_divides_when_no_key_gives_it() -> None:
    with pytest.raises(ShapeError, match="head_count is 3, but must divide embedding_length 128"):
        read(
            attention__head_count=3,
            attention__head_count_kv=1,
            attention__key_length=MISSING,
            attention__value_length=MISSING,
        )


def test_arrays_give_each_layer_its_own_value() -> None:
    hyper = read(
        attention__head_count=np.array([4, 2], np.int32),
        attention__head_count_kv=[2, 1],
        feed_forward_length=np.array([192, 64]),
    )
    assert hyper.n_heads == (4, 2)
    assert hyper.n_kv_heads == (2, 1)
    assert hyper.d_ff == (192, 64)


@pytest.mark.parametrize(
    ("changes", "scaling", "factor"),
    [
        ({}, "none", 1.0),
        ({"rope__scaling__factor": 4.0}, "linear", 4.0),
        ({"rope__scale_linear": 2.0}, "linear", 2.0),
        ({"rope__scaling__type": "linear", "rope__scaling__factor": 8.0}, "linear", 8.0),
        ({"rope__scaling__type": "linear"}, "none", 1.0),
        ({"rope__scaling__type": "none", "rope__scaling__factor": 8.0}, "none", 1.0),
        ({"rope__scaling__type": "yarn", "rope__scaling__factor": 4.0}, "yarn", 4.0),
    ],
)
def test_rope_scaling(changes: dict[str, object], scaling: str, factor: float) -> None:
    rope = read(**changes).rope
    assert (rope.scaling, rope.factor) == (scaling, factor)
    assert rope.ext_factor == (1.0 if scaling == "yarn" else 0.0)


def test_yarn_keys_are_read() -> None:
    rope = read(
        rope__scaling__type="yarn",
        rope__scaling__factor=4.0,
        rope__scaling__original_context_length=64,
        rope__scaling__yarn_ext_factor=0.5,
        rope__scaling__yarn_beta_fast=16.0,
        rope__scaling__yarn_beta_slow=2.0,
        rope__scaling__attn_factor=0.9,
    ).rope
    assert rope.original_context == 64
    assert (rope.ext_factor, rope.beta_fast, rope.beta_slow, rope.attn_factor) == (
        0.5,
        16.0,
        2.0,
        0.9,
    )


@pytest.mark.parametrize("name", ["mamba", "gpt2", "clip", "", "x" * 5000])
def test_an_unknown_architecture_is_refused_with_those_supported(name: str) -> None:
    metadata, tensors = files(Tiny("llama"))
    metadata["general.architecture"] = name
    with pytest.raises(UnsupportedModel, match="not supported; quantcli runs") as refusal:
        Hyper.from_metadata(metadata, tensors)
    assert all(known in str(refusal.value) for known in catalog.names("architecture"))
    assert name[:37] in str(refusal.value)
    assert len(str(refusal.value)) < 500


@pytest.mark.parametrize(
    ("value", "says"),
    [(None, "is missing"), (7, "is 7"), (np.array([1]), "is an array of 1"), (True, "is true")],
)
def test_an_architecture_that_is_no_name_is_refused(value: object, says: str) -> None:
    metadata, tensors = files(Tiny("llama"))
    metadata["general.architecture"] = value
    with pytest.raises(CheckpointError, match=f"general.architecture {says}"):
        Hyper.from_metadata(metadata, tensors)


def test_the_vocabulary_may_not_be_larger_than_the_embedding() -> None:
    metadata, tensors = files(Tiny("llama"))
    metadata["tokenizer.ggml.tokens"] = [*metadata["tokenizer.ggml.tokens"], "one more"]
    with pytest.raises(ShapeError, match="one for each of the 274 tokens"):
        Hyper.from_metadata(metadata, tensors)


def test_an_embedding_padded_with_unused_rows_is_accepted() -> None:
    metadata, tensors = files(Tiny("llama"))
    tensors["token_embd.weight"] = SimpleNamespace(shape=(320, 128))
    assert Hyper.from_metadata(metadata, tensors).n_vocab == 320


def test_an_embedding_that_is_missing_or_no_matrix_is_refused() -> None:
    metadata, tensors = files(Tiny("llama"))
    tensors["token_embd.weight"] = SimpleNamespace(shape=(128,))
    with pytest.raises(ShapeError, match="must be a matrix"):
        Hyper.from_metadata(metadata, tensors)
    del tensors["token_embd.weight"]
    with pytest.raises(CheckpointError, match=r"token_embd.weight is missing"):
        Hyper.from_metadata(metadata, tensors)


OF_ONE = [  # architecture, key, bad value, what the message must say
    ("granite", "logit_scale", 0.0, "logit_scale is 0, but must be a number above 0"),
    ("granite", "logit_scale", MISSING, "logit_scale is missing"),
    ("granite", "residual_scale", -1.0, "residual_scale is -1"),
    ("granite", "embedding_scale", NAN, "embedding_scale is nan"),
    ("granite", "attention__scale", "1", "attention.scale is '1'"),
    ("granite", "rope__scaling__finetuned", 1, "finetuned is 1, but must be true or false"),
    ("minicpm", "residual_scale", INF, "residual_scale is inf"),
    ("command-r", "attention__layer_norm_epsilon", MISSING, "layer_norm_epsilon is missing"),
    ("cohere2", "attention__sliding_window", MISSING, "sliding_window is missing"),
    ("gpt-oss", "attention__sliding_window", -1, "sliding_window is -1"),
    ("gpt-oss", "expert_feed_forward_length", MISSING, "expert_feed_forward_length is missing"),
    ("gptneox", "use_parallel_residual", MISSING, "use_parallel_residual is missing"),
    ("gptneox", "use_parallel_residual", 1, "use_parallel_residual is 1"),
    ("mistral3", "attention__temperature_scale", -0.1, "temperature_scale is -0.1"),
    ("qwen3moe", "expert_used_count", 5, "expert_used_count is 5, but must be a whole number"),
    ("qwen3moe", "expert_used_count", 0, "expert_used_count is 0"),
    ("qwen3moe", "expert_used_count", [2, 9], r"expert_used_count\[1\] is 9"),
    ("qwen3moe", "expert_group_count", 2, "choosing groups of experts is not supported"),
    ("qwen2moe", "expert_shared_feed_forward_length", -1, "feed_forward_length is -1"),
    ("ernie4_5-moe", "interleave_moe_layer_step", 0, "interleave_moe_layer_step is 0"),
    ("ernie4_5-moe", "leading_dense_block_count", 3, "leading_dense_block_count is 3"),
    ("hunyuan-dense", "rope__scaling__alpha", -1.0, "alpha is -1"),
    ("glm4", "rope__dimension_sections", [8, 8, 0, 0], "the text half of a vision model"),
    ("glm4", "rope__dimension_sections", 3, "an array of up to 64 whole numbers"),
    ("qwen3", "expert_count", 8, "qwen3 models with experts are not supported"),
    ("qwen2", "rope__scaling__type", "longrope", "longrope: not supported"),
    ("deepseek2", "attention__kv_lora_rank", MISSING, "kv_lora_rank is missing"),
    ("deepseek2", "attention__kv_lora_rank", 0, "kv_lora_rank is 0"),
    ("deepseek2", "attention__q_lora_rank", MISSING, "q_lora_rank is missing"),
    ("deepseek2", "attention__key_length_mla", 32, "dimension_count is 32, but must be below"),
    ("deepseek2", "expert_gating_func", 4, "expert_gating_func is 4; supported are 1, 2, 3"),
    ("deepseek2", "expert_shared_count", MISSING, "expert_shared_count is missing"),
    ("deepseek2", "expert_weights_norm", 2, "expert_weights_norm is 2"),
]


@pytest.mark.parametrize(("arch", "key", "value", "says"), OF_ONE)
def test_keys_of_one_architecture_are_refused_by_name(
    arch: str, key: str, value: object, says: str
) -> None:
    with pytest.raises(ModelError, match=says) as refusal:
        get(arch).build(read(arch, **{key: value}))
    assert arch in str(refusal.value)
    assert len(str(refusal.value)) < 200


KEYS = sorted(
    {key for key, _, _ in REFUSED}
    | {key for _, key, _, _ in OF_ONE}
    | {"attn_logit_softcapping", "rope__scale_linear"}
)
NUMBERS = st.integers(-(2**63), 2**64 - 1) | st.integers(0, 600) | st.floats(width=32)
VALUES = (
    NUMBERS
    | st.booleans()
    | st.sampled_from(["yarn", "linear", "none", "longrope", ""])
    | st.lists(NUMBERS, max_size=3)
    | st.lists(st.integers(0, 8), min_size=2, max_size=2).map(np.array)
    | st.lists(st.booleans(), min_size=2, max_size=2).map(np.array)
)


@settings(deadline=None)
@given(
    arch=st.sampled_from(catalog.names("architecture")),
    changes=st.dictionaries(st.sampled_from(KEYS), VALUES, max_size=4),
)
def test_whatever_the_metadata_says_ends_in_a_plan_or_a_refusal(
    arch: str, changes: dict[str, object]
) -> None:
    _, tensors = files(Tiny(arch))
    message = ""
    try:
        plan = get(arch).build(read(arch, **changes))
        check_tensors(plan, tensors)
    except ModelError as refusal:
        message = str(refusal)
    assert len(message) < 500
    assert "\n" not in message
