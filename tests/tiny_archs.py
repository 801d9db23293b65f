"""What a file of each architecture holds: written down a second time, apart from `quantcli.arch`.

Facts are those of GGUF's converters: tensor names, shapes in NumPy order, and keys.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tiny import Tiny

Shape = tuple[int, ...]

# What the layers of an architecture have, in words:
#   pre       attn_norm and ffn_norm; attn_pre: attn_norm alone; mid: ffn_norm under another name
#   post      norms behind each half
#   layer     layer norms; norm_bias: with biases
#   qk, row   norms on q and k, on each head or on whole rows
#   qkv, up   q, k and v in one matrix; gate and up in one
#   plain     no gate
#   biases    on every matrix
#   sinks     an extra logit a head
#   latent    q, k and v come from latents
#   tied      no output matrix, ever
WORDS = {
    "arcee": "pre plain",
    "cohere2": "attn_pre layer tied",
    "command-r": "attn_pre layer tied",
    "deepseek2": "pre latent",
    "ernie4_5": "pre",
    "ernie4_5-moe": "pre",
    "exaone4": "qk post",
    "gemma": "pre tied",
    "gemma2": "pre post tied",
    "gemma3": "pre qk post",
    "glm4": "pre post up",
    "gpt-oss": "mid sinks biases",
    "gptneox": "pre layer norm_bias qkv plain biases",
    "granite": "pre",
    "granitemoe": "pre",
    "hunyuan-dense": "pre qk",
    "llama": "pre",
    "minicpm": "pre",
    "mistral3": "pre",
    "nemotron": "pre layer norm_bias plain",
    "olmo2": "row post",
    "phi2": "attn_pre layer norm_bias qkv plain biases",
    "phi3": "pre qkv up",
    "qwen2": "pre",
    "qwen2moe": "pre",
    "qwen3": "pre qk",
    "qwen3moe": "pre qk",
    "seed_oss": "mid",
    "smollm3": "pre",
    "stablelm": "pre layer norm_bias",
    "starcoder2": "pre layer norm_bias plain biases",
}
# Architectures that always have experts, and the words of their experts:
#   shared  one that all rows go to; gate: with a gate; probs: a bias for choosing
EXPERTS = {
    "deepseek2": "shared probs",
    "ernie4_5-moe": "shared probs",
    "gpt-oss": "",
    "granitemoe": "shared",
    "qwen2moe": "shared gate",
    "qwen3moe": "",
}
OWN_WIDTH = set(EXPERTS) - {"granitemoe"}  # whose experts' width has a key of its own
# Keys that files of an architecture always have.
KEYS: dict[str, dict[str, object]] = {
    "deepseek2": {
        "leading_dense_block_count": 1,
        "expert_shared_count": 1,
        "expert_weights_norm": True,
        "expert_weights_scale": 1.5,
        "expert_gating_func": 2,
        "attention.q_lora_rank": 64,
        "attention.kv_lora_rank": 64,
        "rope.dimension_count": 32,
    },
    "cohere2": {"attention.sliding_window": 16, "logit_scale": 0.5},
    "command-r": {"logit_scale": 0.5},
    "ernie4_5-moe": {"interleave_moe_layer_step": 1, "leading_dense_block_count": 1},
    "gpt-oss": {"attention.sliding_window": 16},
    "gptneox": {"use_parallel_residual": True},
    "granite": {"logit_scale": 2.0},
    "granitemoe": {"logit_scale": 2.0},
}
# Layers without experts in a model that has them.
N_DENSE = {"deepseek2": 1, "ernie4_5-moe": 1}
# Latent attention: ranks of q and of k and v; dimensions of a key that do not rotate, and that do.
RANK, PLAIN, ROTATED = 64, 64, 32


def words(tiny: Tiny) -> set[str]:
    """Return what the layers of a model have."""
    return set(WORDS[tiny.arch].split()) | ({"qkv"} if tiny.fused_qkv else set())


def has_experts(tiny: Tiny, layer: int) -> bool:
    """Return whether a layer has experts."""
    return tiny.n_experts > 0 and layer >= N_DENSE.get(tiny.arch, 0)


def layer_shapes(tiny: Tiny, layer: int) -> dict[str, Shape]:
    """Return the shapes of a layer's tensors, without its prefix, in the order of the file."""
    has = words(tiny)
    matrices = _attention(tiny, has) | _mlp(tiny, has, layer)
    shapes: dict[str, Shape] = {}
    d_model = tiny.sizes()[0]
    if has & {"pre", "attn_pre", "mid"}:
        shapes["attn_norm.weight"] = (d_model,)
    attention, mlp = list(_attention(tiny, has)), list(_mlp(tiny, has, layer))
    shapes |= {f"{name}.weight": matrices[name] for name in attention}
    if "pre" in has:
        shapes["ffn_norm.weight"] = (d_model,)
    if "mid" in has:
        shapes["post_attention_norm.weight"] = (d_model,)
    shapes |= {f"{name}.weight": matrices[name] for name in mlp}
    shapes |= _head_norms(tiny, has)
    if "post" in has:
        shapes |= {"post_attention_norm.weight": (d_model,), "post_ffw_norm.weight": (d_model,)}
    if "sinks" in has:
        shapes["attn_sinks.weight"] = (tiny.sizes()[1],)
    if "norm_bias" in has:
        norms = [name for name in shapes if name.endswith("_norm.weight")]
        shapes |= {name.replace("weight", "bias"): (d_model,) for name in norms}
    for name in matrices:
        if _is_biased(tiny, has, name):
            shapes[f"{name}.bias"] = matrices[name][:-1]
    if has_experts(tiny, layer) and "probs" in _expert_words(tiny):
        shapes["exp_probs_b.bias"] = (tiny.n_experts,)
    return shapes


def _attention(tiny: Tiny, has: set[str]) -> dict[str, Shape]:
    d_model, n_heads, _ = tiny.sizes()
    q, kv = n_heads * tiny.head_dim, tiny.n_kv_heads * tiny.head_dim
    if "latent" in has:
        return _latent_attention(tiny, d_model, n_heads)
    if "qkv" in has:
        return {"attn_qkv": (q + 2 * kv, d_model), "attn_output": (d_model, q)}
    return {
        "attn_q": (q, d_model),
        "attn_k": (kv, d_model),
        "attn_v": (kv, d_model),
        "attn_output": (d_model, q),
    }


def _latent_attention(tiny: Tiny, d_model: int, n_heads: int) -> dict[str, Shape]:
    key, value = PLAIN + ROTATED, tiny.head_dim
    shapes: dict[str, Shape] = {"attn_q": (n_heads * key, d_model)}
    if tiny.q_latent:
        shapes = {"attn_q_a": (RANK, d_model), "attn_q_b": (n_heads * key, RANK)}
    shapes["attn_kv_a_mqa"] = (RANK + ROTATED, d_model)
    if tiny.is_apart:
        shapes |= {"attn_k_b": (n_heads, RANK, PLAIN), "attn_v_b": (n_heads, value, RANK)}
    else:
        shapes["attn_kv_b"] = (n_heads * (PLAIN + value), RANK)
    return shapes | {"attn_output": (d_model, n_heads * value)}


def _expert_words(tiny: Tiny) -> list[str]:
    return EXPERTS.get(tiny.arch, "").split()


def _mlp(tiny: Tiny, has: set[str], layer: int) -> dict[str, Shape]:
    d_model, _, d_ff = tiny.sizes()
    if not has_experts(tiny, layer):
        if "up" in has:
            return {"ffn_up": (2 * d_ff, d_model), "ffn_down": (d_model, d_ff)}
        gate = {} if "plain" in has else {"ffn_gate": (d_ff, d_model)}
        return gate | {"ffn_up": (d_ff, d_model), "ffn_down": (d_model, d_ff)}
    n, d_ff = tiny.n_experts, tiny.expert_width()
    shapes: dict[str, Shape] = {
        "ffn_gate_inp": (n, d_model),
        "ffn_gate_exps": (n, d_ff, d_model),
        "ffn_up_exps": (n, d_ff, d_model),
        "ffn_down_exps": (n, d_model, d_ff),
    }
    if "shared" in _expert_words(tiny):
        shapes |= {
            "ffn_gate_shexp": (d_ff, d_model),
            "ffn_up_shexp": (d_ff, d_model),
            "ffn_down_shexp": (d_model, d_ff),
        }
    if "gate" in _expert_words(tiny):
        shapes["ffn_gate_inp_shexp"] = (d_model,)
    return shapes


def _head_norms(tiny: Tiny, has: set[str]) -> dict[str, Shape]:
    if "row" in has:
        widths = (tiny.sizes()[1] * tiny.head_dim, tiny.n_kv_heads * tiny.head_dim)
    elif "qk" in has:
        widths = (tiny.head_dim, tiny.head_dim)
    elif "latent" in has:
        norms = {"attn_kv_a_norm.weight": (RANK,)}
        return norms | ({"attn_q_a_norm.weight": (RANK,)} if tiny.q_latent else {})
    else:
        return {}
    return {"attn_q_norm.weight": widths[:1], "attn_k_norm.weight": widths[1:]}


def _is_biased(tiny: Tiny, has: set[str], name: str) -> bool:
    """Return whether a matrix has a bias: all where they are required, else what files may have."""
    if "biases" in has:
        return True
    if not tiny.biases:
        return False
    if tiny.arch == "llama" and not tiny.n_experts:
        return True
    return name in ("attn_q", "attn_k", "attn_v", "attn_qkv")


def arch_keys(tiny: Tiny) -> dict[str, object]:
    """Return the keys that an architecture adds to those that all have, without its prefix."""
    keys = dict(KEYS.get(tiny.arch, {}))
    eps = "epsilon" if "layer" in words(tiny) else "rms_epsilon"
    keys[f"attention.layer_norm_{eps}"] = 1e-5
    if "latent" in words(tiny):
        keys |= _latent_keys(tiny)
    if tiny.n_experts:
        keys |= {"expert_count": tiny.n_experts, "expert_used_count": tiny.n_used}
        if tiny.arch in OWN_WIDTH:
            keys["expert_feed_forward_length"] = tiny.expert_width()
        if "shared" in _expert_words(tiny):
            keys["expert_shared_feed_forward_length"] = tiny.expert_width()
    return keys


def _latent_keys(tiny: Tiny) -> dict[str, object]:
    """Return the widths of heads: of what is cached, and of what that unfolds to."""
    key, value = PLAIN + ROTATED, tiny.head_dim
    if not tiny.is_apart:
        n_heads = tiny.sizes()[1]
        widths = {"attention.key_length": key, "attention.value_length": value}
        return widths | {"attention.head_count_kv": n_heads}
    return {
        "attention.key_length": RANK + ROTATED,
        "attention.value_length": RANK,
        "attention.key_length_mla": key,
        "attention.value_length_mla": value,
        "attention.head_count_kv": 1,
    }
