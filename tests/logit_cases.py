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


_ORIGINAL = "rope.scaling.original_context_length"
_LONGROPE = ("rope.scaling.attn_factor", 1.2)  # Phi-3's files say no more of it
_FACTORS = (
    ("attention.scale", 0.25),
    ("embedding_scale", 3.0),
    ("residual_scale", 0.4),
    ("logit_scale", 0.25),
)

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
    "llama_fused": _case("llama", seed=21, fused_qkv=True, n_kv_heads=1),
    "llama_experts": _case("llama", seed=22, n_experts=4),
    "gemma": _case("gemma", seed=23, n_kv_heads=1),
    "gemma2": _case("gemma2", seed=24, n_layers=3, attn_softcap=5.0, logit_softcap=3.0),
    "gemma2_27b": _case("gemma2", seed=25, n_layers=46, d_model=64, d_ff=64),
    "phi3": _case("phi3", seed=26, n_rot=24, tied=True),
    "phi3_long": _case("phi3", seed=27, long_factors=True, extra=(_LONGROPE, (_ORIGINAL, 64))),
    "phi3_short": _case("phi3", seed=28, long_factors=True, extra=(_LONGROPE, (_ORIGINAL, 512))),
    "granite_long": _case(
        "granite", seed=62, long_factors=True, rope_scaling="longrope", rope_factor=2.0
    ),
    "smollm3": _case("smollm3", seed=129, n_layers=4, tied=True),
    "olmo2": _case("olmo2", seed=30),
    "olmo3": _case(
        "olmo2", seed=31, n_layers=4, rope_scaling="yarn", extra=(("attention.sliding_window", 16),)
    ),
    "qwen2moe": _case("qwen2moe", seed=32, biases=True),
    "qwen3moe": _case("qwen3moe", seed=33, n_experts=8, n_used=3, tied=True),
    "granite": _case("granite", seed=34, extra=_FACTORS),
    "granite_no_rope": _case(
        "granite", seed=35, extra=(*_FACTORS, ("rope.scaling.finetuned", False))
    ),
    "granitemoe": _case("granitemoe", seed=36, extra=_FACTORS),
    "minicpm": _case("minicpm", seed=37, extra=_FACTORS[1:]),
    "gpt_oss": _case("gpt-oss", seed=38, n_layers=3, rope_scaling="yarn", n_experts=8, n_used=4),
    "mistral3": _case(
        "mistral3",
        seed=39,
        rope_scaling="yarn",
        extra=(
            ("rope.scaling.yarn_log_multiplier", 0.7),
            ("attention.temperature_scale", 0.4),
        ),
    ),
    "ernie4_5": _case("ernie4_5", seed=40, tied=True),
    "ernie4_5_moe": _case("ernie4_5-moe", seed=41, n_layers=3),
    "exaone4": _case("exaone4", seed=42, rope_freqs=True),
    "exaone4_32b": _case(
        "exaone4",
        seed=43,
        n_layers=64,
        d_model=64,
        d_ff=64,
        n_heads=2,
        n_kv_heads=1,
        extra=(("attention.sliding_window", 16),),
    ),
    "command_r": _case("command-r", seed=44, n_kv_heads=4),
    "cohere2": _case("cohere2", seed=45, n_layers=4),
    "glm4": _case("glm4", seed=46, n_rot=16, biases=True),
    "hunyuan": _case("hunyuan-dense", seed=47),
    "seed_oss": _case("seed_oss", seed=48, biases=True),
    "starcoder2": _case("starcoder2", seed=49, tied=True),
    "stablelm": _case("stablelm", seed=50, n_rot=8, biases=True),
    "phi2": _case("phi2", seed=51, n_rot=16, n_kv_heads=4),
    "gptneox": _case("gptneox", seed=52, n_rot=8, n_kv_heads=4),
    "gptneox_serial": _case(
        "gptneox", seed=53, n_rot=8, n_kv_heads=4, extra=(("use_parallel_residual", False),)
    ),
    "nemotron": _case("nemotron", seed=54, n_rot=16),
    "arcee": _case("arcee", seed=55, rope_freqs=True),
    "deepseek2": _case("deepseek2", seed=56, n_layers=3),
    "deepseek2_yarn": _case(
        "deepseek2",
        seed=57,
        rope_scaling="yarn",
        extra=(("rope.scaling.yarn_log_multiplier", 0.0707),),
    ),
    "deepseek2_yarn_plain": _case("deepseek2", seed=58, rope_scaling="yarn"),
    "deepseek2_old": _case(
        "deepseek2", seed=59, is_apart=False, extra=(("expert_gating_func", 1),)
    ),
    "deepseek2_lite": _case("deepseek2", seed=62, n_layers=26, q_latent=False, d_model=64),
}


def prompt(n_vocab: int, n_tokens: int = N_TOKENS) -> list[int]:
    """Return token ids that repeat no short pattern."""
    return [(5 * i * i + 3 * i + 11) % n_vocab for i in range(n_tokens)]
