"""What a file must hold to be a LoRA adapter, and how a file that is none is refused."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from gguf import GGUFWriter
from lora_cases import Lora, keys, write_adapter, write_pairs
from tiny import Tiny, write_tiny

from quantcli.checkpoint import open_checkpoint
from quantcli.checkpoint.adapter import is_adapter, open_adapter
from quantcli.errors import CheckpointError, ModelError, UnsupportedModel
from quantcli.formats import F32

TINY = Tiny("llama", weight_format="f32")
PAIR: dict[str, F32] = {
    "blk.0.attn_q.weight.lora_a": np.ones((4, 128), np.float32),
    "blk.0.attn_q.weight.lora_b": np.ones((128, 4), np.float32),
}


def written(path: Path, tensors: dict[str, F32], **metadata: object) -> Path:
    """Write an adapter with other keys; None takes one out."""
    changed = keys("llama", 8.0) | {k.replace("__", "."): v for k, v in metadata.items()}
    return write_pairs(path, "llama", tensors, {k: v for k, v in changed.items() if v is not None})


def test_an_adapter_says_what_it_is(tmp_path: Path) -> None:
    path = write_adapter(tmp_path / "a.gguf", TINY, Lora(rank=6, alpha=9.0, targets=("attn_q",)))
    assert is_adapter(path)
    adapter = open_adapter(path, 0.5)
    assert (adapter.path, adapter.architecture, adapter.alpha) == (path, "llama", 9.0)
    assert list(adapter.pairs) == ["blk.0.attn_q.weight", "blk.1.attn_q.weight"]
    pair = adapter.pairs["blk.0.attn_q.weight"]
    assert (pair.rank, pair.a.shape, pair.b.shape) == (6, (6, 128), (128, 6))
    assert adapter.factor(pair) == 0.5 * 9.0 / 6
    adapter.require_finite()
    adapter.checkpoint.close()


def test_norms_beside_it_are_ignored_as_llama_cpp_does(tmp_path: Path) -> None:
    norm = {"blk.0.attn_norm.weight": np.ones(128, np.float32)}
    adapter = open_adapter(written(tmp_path / "a.gguf", PAIR | norm))
    assert adapter.ignored == tuple(norm)
    adapter.checkpoint.close()


BAD = {
    "no lora": ({"adapter__type": "ia3"}, PAIR, UnsupportedModel, "adapter.type is 'ia3'"),
    "no type": ({"adapter__type": None}, PAIR, UnsupportedModel, "adapter.type is missing"),
    "type is a list": ({"adapter__type": [1, 2]}, PAIR, UnsupportedModel, "missing or no text"),
    "alpha is text": ({"adapter__lora__alpha": "8"}, PAIR, CheckpointError, "alpha is of type str"),
    "alpha is a list": ({"adapter__lora__alpha": [8, 9]}, PAIR, CheckpointError, "of type [i32]"),
    "alpha is NaN": ({"adapter__lora__alpha": float("nan")}, PAIR, CheckpointError, "alpha is nan"),
    "activated": (
        {"adapter__alora__invocation_tokens": [1, 2]},
        PAIR,
        UnsupportedModel,
        "adapter.alora.invocation_tokens makes it an activated LoRA",
    ),
    "half a pair": ({}, dict(list(PAIR.items())[:1]), CheckpointError, "weight.lora_b' is missing"),
    "other half": ({}, dict(list(PAIR.items())[1:]), CheckpointError, "weight.lora_a' is missing"),
    "another tensor": (
        {},
        PAIR | {"output.weight": np.ones((4, 32), np.float32)},
        UnsupportedModel,
        "tensor 'output.weight' is no part of a LoRA adapter",
    ),
    "nothing": ({}, {}, CheckpointError, "holds no matrices"),
}


@pytest.mark.parametrize("name", BAD)
def test_a_bad_adapter_is_refused_by_name(name: str, tmp_path: Path) -> None:
    metadata, tensors, kind, message = BAD[name]
    path = written(tmp_path / "a.gguf", tensors, **metadata)
    with pytest.raises(kind) as caught:
        open_adapter(path)
    assert str(caught.value).startswith(f"{path}: ")
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)
    path.unlink()  # it is closed, or Windows would refuse


def test_what_is_no_adapter_is_refused_as_what_it_is(tmp_path: Path) -> None:
    model = write_tiny(tmp_path / "m.gguf", "llama")
    assert not is_adapter(model)
    with pytest.raises(UnsupportedModel, match="is a model, not a LoRA adapter"):
        open_adapter(model)
    vector = tmp_path / "v.gguf"
    writer = GGUFWriter(vector, "controlvector")
    writer.add_string("controlvector.model_hint", "llama")
    writer.add_uint32("controlvector.layer_count", 1)
    writer.add_tensor("direction.1", np.ones(128, np.float32))
    for write in ("write_header_to_file", "write_kv_data_to_file", "write_tensors_to_file"):
        getattr(writer, write)()
    writer.close()
    with pytest.raises(UnsupportedModel, match="is a control vector, not a LoRA adapter"):
        open_adapter(vector)


def test_an_adapter_in_the_place_of_a_model_says_where_it_goes(tmp_path: Path) -> None:
    path = write_adapter(tmp_path / "a.gguf", TINY, Lora())
    with pytest.raises(UnsupportedModel, match=r"is a LoRA adapter.*--lora .*a\.gguf") as caught:
        open_checkpoint(path)
    assert "cannot be quantized" in str(caught.value)
    folder = tmp_path / "peft"
    folder.mkdir()
    (folder / "adapter_config.json").write_text("{}", encoding="utf-8")
    assert is_adapter(folder)
    with pytest.raises(UnsupportedModel, match="is a LoRA adapter"):
        open_checkpoint(folder)


@pytest.mark.parametrize("content", [b"", b"GGUF", b"not a file of ours", b"ggla\1\0\0\0"])
def test_what_cannot_be_read_is_no_adapter(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "a.gguf"
    path.write_bytes(content)
    assert not is_adapter(path)
    assert not is_adapter(tmp_path / "missing.gguf")
    with pytest.raises(ModelError):
        open_adapter(path)
