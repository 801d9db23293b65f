"""How architectures lie in Hugging Face folders: names both ways, numbers, what is refused."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from quantcli import arch, catalog
from quantcli.arch.hf_config import HFConfig, completed
from quantcli.arch.hf_keys import decoder_keys, llama3_factors
from quantcli.arch.hugging_face import DECODER, EXPERTS, HuggingFace, Place, is_f32
from quantcli.errors import CheckpointError, UnsupportedModel

DECLARED = {
    name: found
    for name in catalog.names("architecture")
    if (found := arch.in_folders(name)) is not None
}
PLAIN = HuggingFace(classes={})


def test_every_architecture_says_how_it_lies_in_folders() -> None:
    assert list(DECLARED) == list(catalog.names("architecture"))


@pytest.mark.parametrize("name", DECLARED)
def test_names_lead_there_and_back(name: str) -> None:
    declared = DECLARED[name]
    for theirs, ours in declared.tensors.items():
        if theirs.count("{}") > 1:  # experts are stacked: they have no name of their own
            continue
        first = ours if isinstance(ours, str) else ours[0].name
        is_whole = first.endswith((".weight", ".bias"))
        full = theirs.format(17) + ("" if is_whole else ".weight")
        places = declared.places(full)
        assert len(places) == (1 if isinstance(ours, str) else len(ours))
        for place in places:
            assert place.expert is None
            back = declared.source(place.name)
            assert back is not None
            assert place.name in [other.name for other in declared.places(back)]


@pytest.mark.parametrize("name", DECLARED)
def test_a_class_belongs_to_one_architecture(name: str) -> None:
    for class_name in DECLARED[name].classes:
        assert arch.of_class(class_name) == name


def test_an_unknown_class_is_refused_with_those_there_are() -> None:
    with pytest.raises(UnsupportedModel, match=r"class 'BertModel' .* a GGUF file .* of .*llama, "):
        arch.of_class("BertModel")


@pytest.mark.parametrize(
    ("name", "place"),
    [
        ("model.layers.3.self_attn.q_proj.bias", Place("blk.3.attn_q.bias")),
        ("layers.3.self_attn.q_proj.weight", Place("blk.3.attn_q.weight")),
        ("language_model.model.embed_tokens.weight", Place("token_embd.weight")),
        ("model.language_model.layers.0.mlp.up_proj.weight", Place("blk.0.ffn_up.weight")),
        ("model.layers.0.self_attn.rotary_emb.inv_freq", None),
        ("gpt_neox.layers.0.attention.masked_bias", None),
        ("vision_tower.blocks.0.weight", None),
    ],
)
def test_a_tensor_has_its_place(name: str, place: Place | None) -> None:
    assert PLAIN.places(name) == (() if place is None else (place,))


def test_experts_are_stacked() -> None:
    mixed = replace(PLAIN, tensors=DECODER | EXPERTS)
    places = mixed.places("model.layers.2.mlp.experts.11.down_proj.weight")
    assert places == (Place("blk.2.ffn_down_exps.weight", expert=11),)
    assert mixed.places("model.layers.2.mlp.gate.weight") == (Place("blk.2.ffn_gate_inp.weight"),)
    assert mixed.source("blk.2.ffn_down_exps.weight") is None


@pytest.mark.parametrize(
    "name",
    ["model.layers.0.mlp.experts.1.up_proj.weight", "model.layers.0.self_attn.q_proj", "x", ""],
)
def test_a_tensor_without_a_place_is_refused(name: str) -> None:
    with pytest.raises(UnsupportedModel, match="has no place in this architecture"):
        PLAIN.places(name)


def test_norms_biases_and_routers_are_f32() -> None:
    assert is_f32("blk.0.attn_norm.weight", (64,))
    assert is_f32("blk.0.attn_q.bias", (64,))
    assert is_f32("blk.0.ffn_gate_inp.weight", (8, 64))
    assert not is_f32("blk.0.attn_q.weight", (64, 64))


def test_defaults_fill_what_is_missing_and_functions_what_is_null() -> None:
    defaults = {"a": 1, "b": 2, "c": lambda config: config.needed_integer("a") * 10}
    config = completed({"b": None, "c": None, "text_config": {"a": 7}}, defaults)
    assert (config.value("a"), config.value("b"), config.value("c")) == (7, None, 70)


def test_rope_is_read_from_either_form() -> None:
    old = {"rope_theta": 5e5, "rope_scaling": {"type": "linear", "factor": 2}}
    new = {"rope_parameters": {"rope_type": "linear", "rope_theta": 5e5, "factor": 2}}
    keys = [decoder_keys(HFConfig(table)) for table in (old, new)]
    assert keys[0] == keys[1] == {
        "rope.scaling.type": "linear",
        "rope.scaling.factor": np.float32(2),
        "rope.freq_base": np.float32(5e5),
    }  # fmt: skip
    split = {
        "rope_parameters": {
            "full_attention": {"rope_theta": 1e6, "rope_type": "default"},
            "sliding_attention": {"rope_theta": 1e4},
        }
    }
    assert decoder_keys(HFConfig(split)) == {
        "rope.freq_base": np.float32(1e6),
        "rope.freq_base_swa": np.float32(1e4),
    }


def test_yarn_brings_its_own_keys() -> None:
    yarn = {
        "type": "yarn",
        "factor": 4.0,
        "original_max_position_embeddings": 32768,
        "attention_factor": 0.9,
        "beta_fast": 16,
        "beta_slow": 2,
        "extrapolation_factor": 0.5,
    }
    keys = decoder_keys(HFConfig({"rope_scaling": yarn}))
    assert keys["rope.scaling.original_context_length"] == 32768
    assert keys["rope.scaling.yarn_attn_factor"] == np.float32(0.9)
    assert keys["rope.scaling.yarn_beta_fast"] == 16
    assert keys["rope.scaling.yarn_beta_slow"] == 2
    assert keys["rope.scaling.yarn_ext_factor"] == np.float32(0.5)


def test_llama3_slows_long_waves_and_leaves_short_ones() -> None:
    rope = {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    }
    config = HFConfig({"head_dim": 128, "rope_theta": 5e5, "rope_scaling": rope})
    factors = llama3_factors(config)["rope_freqs.weight"]
    assert factors.shape == (64,)
    assert (factors[0], factors[-1]) == (1, 8)
    assert (np.diff(factors) >= 0).all()
    wave = 2 * np.pi * 5e5 ** (np.arange(0, 128, 2) / 128)
    smooth = np.clip((8192 / wave - 1) / 3, 0, 1)
    assert np.allclose(factors, 1 / ((1 - smooth) / 8 + smooth), rtol=2e-6)
    assert llama3_factors(HFConfig({})) == {}


def test_numbers_that_gguf_cannot_hold_are_refused() -> None:
    for table, match in (
        ({"hidden_size": -1}, "embedding_length would be -1"),
        ({"rope_theta": float("inf")}, "a number that f32 can hold"),
        ({"rope_theta": float("nan")}, "a number that f32 can hold"),
        ({"rms_norm_eps": True}, "rms_norm_eps is true"),
    ):
        with pytest.raises(CheckpointError, match=match):
            decoder_keys(HFConfig(table))
