"""Folders that are not what they should be: each ends in one sentence that says what to do."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hf_cases import BYTE_LEVEL, Case
from hf_folders import (
    dump,
    spm_pieces,
    weights_of,
    write_folder,
    write_safetensors,
    write_weights,
)

from quantcli.checkpoint import open_checkpoint
from quantcli.errors import CheckpointError, ModelError, ShapeError, UnsupportedModel
from quantcli.huggingface.folder import open_model

PIECES = Case("LlamaForCausalLM", vocabulary="spm", n_layers=2, tied=True)
BYTES = Case("Qwen2ForCausalLM", n_layers=1, tied=True, biases=True)
N_ROWS = len(spm_pieces())


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_folder(tmp_path / "m", PIECES)


def edit(path: Path, change: Callable[[dict[str, Any]], object]) -> None:
    """Change a JSON file in place."""
    table = json.loads(path.read_text(encoding="utf-8"))
    change(table)
    dump(path, table)


def refused(folder: Path, kind: type[ModelError], match: str) -> None:
    """Check that a folder is refused in one line that names it."""
    with pytest.raises(kind, match=match) as caught:
        open_checkpoint(folder).close()
    message = str(caught.value)
    assert message.startswith(str(folder))
    assert "\n" not in message
    assert len(message) < 500 + len(str(folder))


def test_a_good_folder_opens(folder: Path) -> None:
    with open_checkpoint(folder) as checkpoint:
        assert checkpoint.architecture == "llama"
        assert checkpoint.paths == (folder / "model.safetensors",)
        assert checkpoint.tensors["token_embd.weight"].shape == (N_ROWS, 64)
        with pytest.raises(CheckpointError, match="has no tensor"):
            checkpoint.tensor("blk.7.attn_q.weight")


def test_a_folder_of_gguf_files_still_says_which(tmp_path: Path) -> None:
    (tmp_path / "a.gguf").write_bytes(b"")
    with pytest.raises(CheckpointError, match=r"is a directory; give a model file, such as .*a\.g"):
        open_checkpoint(tmp_path)


def test_a_folder_of_pickles_is_told_what_is_missing(folder: Path) -> None:
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    refused(folder, CheckpointError, r"a model's folder without weights in \.safetensors files")


def test_a_missing_configuration_is_named(folder: Path) -> None:
    (folder / "config.json").unlink()
    refused(folder, CheckpointError, r"has no config\.json")


@pytest.mark.parametrize(
    ("changes", "kind", "match"),
    [
        (
            {"architectures": ["T5ForConditionalGeneration"]},
            UnsupportedModel,
            "models of class 'T5",
        ),
        ({"architectures": None}, CheckpointError, "'architectures' is null; it must be a list"),
        ({"architectures": []}, CheckpointError, "a list of 0"),
        ({"architectures": [7]}, CheckpointError, "a list of 1"),
        ({"hidden_size": "64"}, CheckpointError, "hidden_size is '64'; it must be a whole number"),
        ({"hidden_size": 2**40}, CheckpointError, "embedding_length would be 1099511627776"),
        ({"hidden_size": 128}, ShapeError, "token_embd.weight is 334 x 64"),
        ({"num_hidden_layers": 3}, CheckpointError, r"has no tensor model\.layers\.2\.input_l"),
        ({"num_hidden_layers": 1}, UnsupportedModel, "unexpected tensor 'blk.1"),
        ({"num_hidden_layers": True}, CheckpointError, "num_hidden_layers is true"),
        (
            {"num_attention_heads": 0},
            CheckpointError,
            "num_attention_heads is 0; it must be a whol",
        ),
        ({"num_attention_heads": 3}, CheckpointError, "3 heads of even width need a multiple of 6"),
        ({"num_key_value_heads": 7}, CheckpointError, "7 heads of even width"),
        ({"rms_norm_eps": "1e-5"}, CheckpointError, "rms_norm_eps is '1e-5'; it must be a number"),
        ({"rms_norm_eps": 1e300}, CheckpointError, "that f32 can hold"),
        ({"rope_scaling": 5}, CheckpointError, "rope_parameters|rope_scaling is 5"),
        ({"rope_scaling": {"type": "longrope"}}, UnsupportedModel, "RoPE of kind 'longrope'"),
        ({"rope_scaling": {"type": ["x"]}}, CheckpointError, "rope_type is an array of 1"),
        (
            {"rope_scaling": {"type": "yarn", "factor": 2}},
            CheckpointError,
            "original_max_position_embeddings is missing",
        ),
        (
            {"rope_scaling": {"rope_type": "llama3", "factor": 0}},
            CheckpointError,
            "factor of RoPE is 0; it must be above 0",
        ),
        (
            {"head_dim": 2**31, "rope_scaling": {"rope_type": "llama3", "factor": 8}},
            CheckpointError,
            "heads are 2147483648 wide; at most 4096",
        ),
        ({"rope_parameters": {"full_attention": 3}}, CheckpointError, "an object of objects"),
        ({"vocab_size": None}, CheckpointError, "vocab_size is null|vocab_size"),
        ({"vocab_size": 400}, ShapeError, "vocab_size is 400; it must be from 1 to 334"),
        ({"vocab_size": 2**31}, ShapeError, "vocab_size is 2147483648"),
        ({"num_local_experts": 8}, CheckpointError, "expert_used_count is missing"),
        (
            {"quantization_config": {"quant_method": "fp8"}},
            UnsupportedModel,
            "quant_method is 'fp8'; quantcli reads gptq, awq",
        ),
    ],
)
def test_a_bad_configuration_is_refused_by_its_key(
    folder: Path, changes: dict[str, Any], kind: type[ModelError], match: str
) -> None:
    edit(folder / "config.json", lambda table: table.update(changes))
    refused(folder, kind, match)


@pytest.mark.parametrize("text", ["", "{", "[]", '{"a":' * 5000, '"x"', "\0"])
def test_a_configuration_that_is_no_json_is_refused(folder: Path, text: str) -> None:
    (folder / "config.json").write_text(text, encoding="utf-8")
    refused(folder, CheckpointError, "config.json: (is not valid JSON|holds|is nested)")


def rewrite(folder: Path, change: Callable[[dict[str, np.ndarray]], object]) -> None:
    """Write the weights again with a change."""
    weights = weights_of(PIECES, N_ROWS)
    change(weights)
    write_weights(folder, weights, "BF16")


def test_a_missing_tensor_is_named_as_the_folder_would_name_it(folder: Path) -> None:
    rewrite(folder, lambda weights: weights.pop("model.layers.1.self_attn.q_proj.weight"))
    refused(folder, CheckpointError, r"has no tensor model\.layers\.1\.self_attn\.q_proj\.weight")


def test_an_unknown_tensor_is_named(folder: Path) -> None:
    name = "model.layers.0.self_attn.qkv_proj.weight"
    rewrite(folder, lambda weights: weights.update({name: np.zeros((4, 64), np.float32)}))
    refused(folder, UnsupportedModel, "tensor 'model.layers.0.self_attn.qkv_proj.weight' has no")


def test_a_tensor_of_another_shape_is_refused(folder: Path) -> None:
    name = "model.layers.0.mlp.down_proj.weight"
    rewrite(folder, lambda weights: weights.update({name: np.zeros((64, 95), np.float32)}))
    refused(folder, ShapeError, "blk.0.ffn_down.weight is 64 x 95")


def test_an_empty_tensor_is_refused(folder: Path) -> None:
    name = "model.layers.0.mlp.down_proj.weight"
    rewrite(folder, lambda weights: weights.update({name: np.zeros((0, 96), np.float32)}))
    refused(folder, CheckpointError, r"has shape \[0, 96\]; no weights can have that")


def test_one_tensor_under_two_names_is_refused(folder: Path) -> None:
    name = "language_model.model.norm.weight"
    rewrite(folder, lambda weights: weights.update({name: np.zeros(64, np.float32)}))
    refused(folder, CheckpointError, "are the same one")


def test_what_old_checkpoints_and_other_towers_carry_is_passed_over(folder: Path) -> None:
    more = {
        "model.layers.0.self_attn.rotary_emb.inv_freq": np.ones(8, np.float32),
        "vision_tower.encoder.weight": np.ones((2, 2), np.float32),
        "model.vision_tower.encoder.weight": np.ones((2, 2), np.float32),
        "multi_modal_projector.linear.weight": np.ones((2, 2), np.float32),
    }
    rewrite(folder, lambda weights: weights.update(more))
    with open_checkpoint(folder) as checkpoint:
        assert not [name for name in checkpoint.tensors if "vision" in name or "inv" in name]


def test_weights_of_a_type_that_is_no_float_are_refused_by_name(folder: Path) -> None:
    weights = {
        name: ("F32", v.shape, v.tobytes()) for name, v in weights_of(PIECES, N_ROWS).items()
    }
    name = "model.layers.0.mlp.up_proj.weight"
    shape = weights[name][1]
    weights[name] = ("F8_E4M3", shape, bytes(shape[0] * shape[1]))
    write_safetensors(folder / "model.safetensors", weights)
    refused(folder, UnsupportedModel, "'model.layers.0.mlp.up_proj.weight' is of dtype F8_E4M3")


def test_a_file_cut_short_after_opening_is_told(folder: Path) -> None:
    with open_model(folder) as checkpoint:
        path = folder / "model.safetensors"
        data = path.read_bytes()
        with path.open("r+b") as file:
            file.truncate(len(data) // 2)
        last = max(checkpoint.files.tensors.values(), key=lambda tensor: tensor.offset)
        name = next(n for n, theirs in checkpoint.hf_names.items() if theirs == last.name)
        with pytest.raises(CheckpointError, match="it was cut short since"):
            checkpoint.tensor(name)


def test_a_tokenizer_must_be_there(folder: Path) -> None:
    (folder / "tokenizer.model").unlink()
    refused(folder, CheckpointError, r"neither tokenizer\.model nor a tokenizer\.json")


def test_a_broken_tokenizer_model_is_refused(folder: Path) -> None:
    (folder / "tokenizer.model").write_bytes(b"\0\1\2")
    refused(folder, CheckpointError, r"tokenizer\.model is no SentencePiece model")


@pytest.mark.parametrize(
    ("change", "match"),
    [
        (lambda t: t.update(model={"type": "Unigram", "vocab": []}), "of type 'Unigram'; only BPE"),
        (lambda t: t.update(model=[]), r"neither tokenizer\.model nor"),
        (lambda t: t["model"].pop("vocab"), r"tokenizer\.json cannot be read"),
        (lambda t: t["model"].update(merges=[]), "has no merges"),
        (lambda t: t["model"].update(merges=["a b c"]), "cannot be read"),
        (lambda t: t.update(pre_tokenizer={"type": "Nonsense"}), "cannot be read"),
        (lambda t: t.update(added_tokens=[{"id": 9999, "content": "x"}]), "cannot be read"),
        (lambda t: t["model"]["vocab"].update({"zz": 9000}), "goes up to token 9000, but config"),
    ],
)
def test_a_bad_pipeline_is_refused(
    tmp_path: Path, change: Callable[[dict[str, Any]], object], match: str
) -> None:
    folder = write_folder(tmp_path / "m", BYTES)
    edit(folder / "tokenizer.json", change)
    refused(folder, ModelError, match)


def test_an_unknown_way_to_split_words_can_be_named(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "m", BYTES)
    odd = {"type": "Split", "pattern": {"Regex": "x+"}, "behavior": "Isolated", "invert": False}
    steps = {"type": "Sequence", "pretokenizers": [odd, BYTE_LEVEL | {"use_regex": False}]}
    edit(folder / "tokenizer.json", lambda table: table.update(pre_tokenizer=steps))
    no_name = r"no name for \(hash [0-9a-f]{16}\.\.\.\); .* with --pre NAME"
    refused(folder, UnsupportedModel, no_name)
    with open_model(folder, pre="smollm") as checkpoint:
        assert checkpoint.metadata["tokenizer.ggml.pre"] == "smollm"


@pytest.mark.parametrize(
    "listed",
    [{"0": 5}, {"x": {"content": "a"}}, [1], {"-1": {"content": "a"}}, {"1": {}}, {"1": None}],
)
def test_a_bad_list_of_added_tokens_is_refused(folder: Path, listed: object) -> None:
    edit(folder / "tokenizer_config.json", lambda t: t.update(added_tokens_decoder=listed))
    refused(folder, CheckpointError, "added_tokens_decoder")


def test_advice_that_is_malformed_is_passed_over(folder: Path) -> None:
    (folder / "generation_config.json").write_text('{"temperature": "hot"', encoding="utf-8")
    for card in (
        "---\nlicense: [a\n---\n",
        "---\n- 1\n---",
        "\xff",
        "---\ntags: {a: [*b, *b]}\n---",
    ):
        (folder / "README.md").write_bytes(card.encode("latin-1"))
        with open_checkpoint(folder) as checkpoint:
            assert checkpoint.metadata["general.name"] == "M"


def test_a_card_may_say_anything(folder: Path) -> None:
    card = "---\nname: 5\nlicense: [mit, [x]]\ntags: [1, {a: b}, c]\nversion: 2024-01-01\n"
    card += "base_model: [{name: {x: 1}, version: 3}, 7, org/A-7B]\n---\n"
    (folder / "README.md").write_text(card, encoding="utf-8")
    with open_checkpoint(folder) as checkpoint:
        metadata = checkpoint.metadata
        assert metadata["general.name"] == "5"
        assert list(metadata["general.tags"]) == ["1", "c"]  # type: ignore[arg-type]
        assert metadata["general.version"] == "2024-01-01"


def test_a_folder_reached_by_another_name_has_its_own(folder: Path, tmp_path: Path) -> None:
    link = tmp_path / "link"
    link.symlink_to(folder, target_is_directory=True)
    with open_checkpoint(link) as checkpoint:
        assert checkpoint.architecture == "llama"


def test_random_damage_to_small_files_never_ends_in_a_traceback(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "m", replace(BYTES, n_layers=1))
    order = random.Random(4)
    names = ("config.json", "tokenizer.json", "tokenizer_config.json")
    good = {name: (folder / name).read_bytes() for name in names}
    for _ in range(60):
        name = order.choice(names)
        data = bytearray(good[name])
        for _ in range(order.randint(1, 4)):
            data[order.randrange(len(data))] = order.choice(b'0129{}[],:"-.eFI\xff\x00 tn')
        (folder / name).write_bytes(data)
        with suppress(ModelError):
            open_model(folder, pre="gpt-2").close()
        (folder / name).write_bytes(good[name])


def test_every_value_of_every_key_may_be_of_any_type(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "m", BYTES)
    for name in ("config.json", "tokenizer_config.json"):
        good = (folder / name).read_bytes()
        for key in json.loads(good):
            for value in (None, -1, 1e30, "x", [], {}, [{}], {"content": 5}, True):
                edit(folder / name, lambda table, k=key, v=value: table.update({k: v}))
                with suppress(ModelError):
                    open_model(folder, pre="gpt-2").close()
                (folder / name).write_bytes(good)


def test_a_piece_that_is_not_utf_8_is_told(folder: Path) -> None:
    path = folder / "tokenizer.model"
    path.write_bytes(path.read_bytes().replace(b"<turn>", b"<t\xffrn>"))
    refused(folder, CheckpointError, r"tokenizer\.model holds text that is not UTF-8")
