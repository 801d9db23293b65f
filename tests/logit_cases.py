"""Tiny models whose logits are compared with goldens from another implementation.

Each is F32, so that what differs is the meaning of a rule and not rounding. Prompts are longer
than the sliding window and than the context before YaRN's scaling.
"""

from __future__ import annotations

from tiny import Tiny

N_TOKENS = 150
ROWS = (0, 17, 75, 149)  # whose logits are kept


def _case(arch: str, **options: object) -> Tiny:
    return Tiny(arch, weight_format="f32", **options)  # type: ignore[arg-type]


CASES = {
    "llama": _case("llama"),
    "llama_tied_mqa": _case("llama", seed=1, tied=True, n_kv_heads=1),
    "llama_biases": _case("llama", seed=2, biases=True, n_kv_heads=4),
    "llama_rope_freqs": _case("llama", seed=3, rope_freqs=True, freq_base=500000.0),
    "llama_linear": _case("llama", seed=4, rope_scaling="linear"),
    "llama_yarn": _case("llama", seed=5, rope_scaling="yarn"),
    "llama_yarn_rope_freqs": _case("llama", seed=6, rope_scaling="yarn", rope_freqs=True),
    "llama_spm": _case("llama", seed=7, tokenizer="spm", tied=True),
    "qwen2": _case("qwen2", seed=8, biases=True, freq_base=1e6),
    "qwen2_yarn": _case("qwen2", seed=9, biases=True, rope_scaling="yarn", freq_base=1e6),
    "qwen3": _case("qwen3", seed=10, tied=True),
    "qwen3_yarn": _case("qwen3", seed=11, rope_scaling="yarn", rope_factor=2.5, head_dim=64),
    "gemma3": _case("gemma3", seed=12, tied=True, n_layers=7, freq_base=1e6),
    "gemma3_pattern": _case("gemma3", seed=13, tied=True, n_layers=4, window_pattern=2),
    "gemma3_layers": _case("gemma3", seed=14, n_layers=3, window_pattern=(False, True, True)),
    "gemma3_linear": _case(
        "gemma3", seed=15, n_layers=4, window_pattern=2, rope_scaling="linear", rope_factor=8.0
    ),
    "gemma3_yarn": _case("gemma3", seed=16, n_layers=2, window_pattern=2, rope_scaling="yarn"),
    "gemma3_no_window": _case("gemma3", seed=17, window=0, freq_base=1e6),
    "gemma3_softcap": _case("gemma3", seed=18, tied=True, logit_softcap=3.0),
    "gemma3_partial_rope": _case("gemma3", seed=19, n_rot=16, window_pattern=2),
    "gemma3_27b": _case("gemma3", seed=20, n_layers=62, d_model=64, d_ff=64, head_dim=32),
}


def prompt(n_vocab: int, n_tokens: int = N_TOKENS) -> list[int]:
    """Return token ids that repeat no short pattern."""
    return [(5 * i * i + 3 * i + 11) % n_vocab for i in range(n_tokens)]
