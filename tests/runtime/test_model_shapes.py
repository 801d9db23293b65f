"""Models of every shape of head, width and rope on the compiled runtime, against NumPy."""

from __future__ import annotations

from pathlib import Path

import pytest
from loaded_model import feed, loaded
from logit_cases import prompt
from logit_errors import relative_rms
from reference_model import load, logits
from tiny import Tiny, write_model

pytestmark = pytest.mark.jit


def _shape(arch: str, **options: object) -> Tiny:
    return Tiny(arch, weight_format="f32", **options)  # type: ignore[arg-type]


# F32 weights: what differs is the meaning of a shape, and rounding of keys and values alone.
SHAPES = {
    "head_16": _shape("llama", head_dim=16, n_heads=8),
    "head_48": _shape("qwen2", head_dim=48),
    "head_80": _shape("llama", head_dim=80, n_heads=3, n_kv_heads=3),
    "head_128": _shape("qwen3", head_dim=128, n_heads=2),
    "head_256": _shape("gemma3", head_dim=256, n_heads=2, n_kv_heads=1, window_pattern=2),
    "multi_query_of_9": _shape("qwen2", n_heads=9, n_kv_heads=1),
    "groups_of_3": _shape("llama", n_heads=6, n_kv_heads=2),
    "groups_of_5": _shape("gemma3", n_heads=10, n_kv_heads=2, window_pattern=2),
    "every_head_its_own": _shape("qwen3", n_heads=4, n_kv_heads=4),
    "one_head": _shape("llama", n_heads=1, n_kv_heads=1, head_dim=64),
    "rotates_6_of_32_in_pairs": _shape("llama", n_rot=6),
    "rotates_6_of_64_in_halves": _shape("qwen2", n_rot=6, head_dim=64),
    "rotates_40_of_64_in_pairs": _shape("llama", n_rot=40, head_dim=64),
    "rotates_40_of_64_in_halves": _shape("qwen3", n_rot=40, head_dim=64),
    "softcaps": _shape("gemma3", attn_softcap=1.5, logit_softcap=2.0, window_pattern=2),
    "window_of_1": _shape("gemma3", window=1, window_pattern=2),
    "odd_widths": _shape("llama", d_model=100, d_ff=77, biases=True),
    "tied_odd_widths": _shape("gemma3", d_model=72, d_ff=200, tied=True),
    "one_layer": _shape("llama", n_layers=1),
}


@pytest.mark.parametrize("kv_type", ["f16", "q8_0"])
@pytest.mark.parametrize("name", SHAPES)
def test_a_shape_is_computed_as_the_reference_computes_it(
    name: str, kv_type: str, tmp_path: Path
) -> None:
    tiny = SHAPES[name]
    if kv_type == "q8_0" and tiny.head_dim % 32:
        pytest.skip("an 8-bit cache has blocks of 32")
    path = write_model(tmp_path / "m.gguf", tiny)
    with loaded(path, kv_type=kv_type, context=160) as model:
        tokens = prompt(model.n_vocab, 100)
        found = feed(model, tokens, chunk=64)
    rounded, exact = logits(load(path, kv_type=kv_type), tokens), logits(load(path), tokens)
    # Of the roundings of keys and values few fall the other way: see logit_errors.
    assert relative_rms(found, rounded) < 0.5 * relative_rms(rounded, exact)
