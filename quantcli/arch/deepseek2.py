"""DeepSeek-V2-Lite and GLM-4.7-Flash: latent attention (MLA), and experts behind dense layers.

Keys and values of all heads come from one short latent vector a token, beside a part of the key
that rotates and is the same for all heads. Files of 2025 and later hold the matrices that unfold
latents to keys and to values apart, one a head: then queries are multiplied by the former, and the
cache holds latents alone. Older files hold both in one matrix: then keys and values are unfolded
and cached as such.

Source: DeepSeek-AI, arXiv:2405.04434, section 2.1; the factor on scores under YaRN is that of
huggingface.co/deepseek-ai/DeepSeek-V2-Lite, modeling_deepseek.py.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, replace

import numpy as np

from quantcli.arch.attention import rope_of
from quantcli.arch.blocks import Decoder
from quantcli.arch.hf_config import Default, HFConfig
from quantcli.arch.hf_keys import n_heads, u32
from quantcli.arch.hugging_face import DECODER, EXPERTS, HuggingFace, Keys, Piece, Take, Tensors
from quantcli.arch.hyper import MAX_WIDTH, Hyper
from quantcli.arch.layers import eps_of, here, linear
from quantcli.arch.routing import Mixture
from quantcli.arch.switches import Experts
from quantcli.errors import ShapeError, UnsupportedModel
from quantcli.plan import Buffer, Heads, Plan, Rope

_MOST_DIMS = 4096
_LAYERS_GLM, _VOCABULARY_GLM = (47, 48), 154880  # GLM-4.7-Flash, whose files may not say
_SCORES = {1: "softmax", 2: "sigmoid", 3: "softmax_of_chosen"}  # expert_gating_func


@dataclass(frozen=True, slots=True)
class Latent:
    """The widths of latent attention.

    rank      of the latent that keys and values come from
    rotated   dimensions of a key that rotate, shared by all heads
    plain     dimensions of a key that do not
    value     width of a value
    is_apart  whether keys and values have matrices of their own
    """

    rank: int
    rotated: int
    plain: int
    value: int
    is_apart: bool

    @classmethod
    def of(cls, hyper: Hyper) -> Latent:
        """Read them; raise ShapeError if they do not fit each other."""
        keys = hyper.keys
        is_apart = "attention.key_length_mla" in keys and "attention.value_length_mla" in keys
        key, value = hyper.head_dim, hyper.value_dim
        if is_apart:
            key = keys.integer("attention.key_length_mla", 2, _MOST_DIMS)
            value = keys.integer("attention.value_length_mla", 1, _MOST_DIMS)
        rotated = hyper.rope.n_rot
        if rotated >= key:
            raise ShapeError(
                f"{hyper.arch}.rope.dimension_count is {rotated}, but must be below the {key} "
                "dimensions of a key."
            )
        rank = keys.integer("attention.kv_lora_rank", 1, MAX_WIDTH)
        return cls(rank, rotated, key - rotated, value, is_apart)


def scale_of(hyper: Hyper, latent: Latent) -> float:
    """Return the factor on q . k: 1 / sqrt(width of a key), and YaRN's magnitude squared."""
    rope = hyper.rope
    stretch = math.log(rope.factor) if rope.factor > 1.0 else 0.0
    magnitude = rope.attn_factor * (1.0 + rope.log_mul * stretch)
    if not (rope.scaling == "yarn" and rope.log_mul):
        magnitude *= 1.0 + 0.1 * stretch
    return magnitude * magnitude / math.sqrt(latent.plain + latent.rotated)


def experts(hyper: Hyper, layer: int) -> Experts | None:
    """Return the experts of a layer behind the first, dense ones."""
    keys = hyper.keys
    if layer < keys.integer("leading_dense_block_count", 0, hyper.n_blocks, 0):
        return None
    found = Mixture(score=_score(hyper), has_bias=True)(hyper, layer)
    if found is None:
        return None
    routing = replace(
        found.routing,
        normalize=keys.flag("expert_weights_norm", False),
        scale=keys.number("expert_weights_scale", 0.0, 1e6, 0.0) or 1.0,
    )
    shared = keys.integer("expert_shared_count", 0, hyper.n_experts)
    return replace(found, routing=routing, shared_d_ff=shared * found.d_ff)


def _score(hyper: Hyper) -> str:
    is_glm = hyper.n_layers in _LAYERS_GLM and hyper.n_vocab == _VOCABULARY_GLM
    function = hyper.keys.integer("expert_gating_func", 0, 4, 0) or (2 if is_glm else 1)
    if function not in _SCORES:
        raise UnsupportedModel(
            f"{hyper.arch}.expert_gating_func is {function}; supported are "
            f"{', '.join(map(str, _SCORES))}."
        )
    return _SCORES[function]


@dataclass(frozen=True, slots=True)
class LatentDecoder(Decoder):
    """The shared block with latent attention."""

    def check(self, hyper: Hyper) -> None:
        """Raise for numbers that do not fit each other."""
        Latent.of(hyper)

    def attend(self, plan: Plan, hyper: Hyper, h: Buffer) -> Buffer:
        """Append latent attention over a normed input."""
        layer, prefix = here(plan)
        latent, n_heads = Latent.of(hyper), hyper.n_heads[layer]
        width = latent.plain + latent.rotated
        q = self._query(plan, hyper, h, n_heads * width)
        both = linear(plan, hyper, h, f"{prefix}.attn_kv_a_mqa", latent.rank + latent.rotated)
        c = plan.slice(both, "latent", 0, latent.rank)
        c = plan.rms_norm(c, f"{prefix}.attn_kv_a_norm.weight", eps_of(self, hyper))
        shared = (1, latent.rank, latent.rotated)
        if latent.is_apart:
            name = f"{prefix}.attn_k_b.weight"
            folded = plan.head_linear(q, name, n_heads, latent.plain, latent.rank)
            cuts = (n_heads, 0, latent.rank), (n_heads, latent.plain, latent.rotated)
            q = plan.join_heads(folded, q, n_heads, *cuts)
            k = plan.join_heads(c, both, 1, (1, 0, latent.rank), shared)
            heads, v, start = self._heads(hyper, latent, layer, 1), c, latent.rank
        else:
            each = latent.plain + latent.value
            kv = linear(plan, hyper, c, f"{prefix}.attn_kv_b", n_heads * each)
            k = plan.join_heads(kv, both, n_heads, (n_heads, 0, latent.plain), shared)
            v = plan.cut_heads(kv, n_heads, latent.plain, latent.value)
            heads, start = self._heads(hyper, latent, layer, n_heads), latent.plain
        rope = self._rope(hyper, start)
        q, k = (plan.rope(x, rope, heads.head_dim) for x in (q, k))
        return plan.attention(q, k, v, heads)

    def unfold(self, plan: Plan, hyper: Hyper, o: Buffer) -> Buffer:
        """Append what turns sums of latents into values."""
        layer, prefix = here(plan)
        latent, n_heads = Latent.of(hyper), hyper.n_heads[layer]
        if not latent.is_apart:
            return o
        name = f"{prefix}.attn_v_b.weight"
        return plan.head_linear(o, name, n_heads, latent.rank, latent.value)

    def _query(self, plan: Plan, hyper: Hyper, h: Buffer, width: int) -> Buffer:
        """Append the queries, through a latent of their own if the file has one."""
        _, prefix = here(plan)
        if f"{prefix}.attn_q_a.weight" not in hyper.tensors:
            return linear(plan, hyper, h, f"{prefix}.attn_q", width)
        rank = hyper.keys.integer("attention.q_lora_rank", 1, MAX_WIDTH)
        a = linear(plan, hyper, h, f"{prefix}.attn_q_a", rank)
        a = plan.rms_norm(a, f"{prefix}.attn_q_a_norm.weight", eps_of(self, hyper))
        return linear(plan, hyper, a, f"{prefix}.attn_q_b", width)

    def _heads(self, hyper: Hyper, latent: Latent, layer: int, n_kv_heads: int) -> Heads:
        """Return the shape of attention over latents, or over what they unfold to."""
        folded = n_kv_heads == 1 and latent.is_apart
        return Heads(
            n_heads=hyper.n_heads[layer],
            n_kv_heads=n_kv_heads,
            head_dim=(latent.rank if folded else latent.plain) + latent.rotated,
            scale=scale_of(hyper, latent),
            value_dim=latent.rank if folded else latent.value,
            temperature=hyper.keys.number("attention.temperature_scale", 0.0, 1e3, 0.0),
            temperature_length=hyper.keys.integer(
                "attention.temperature_length", 1, 1 << 30, hyper.rope.original_context
            ),
        )

    def _rope(self, hyper: Hyper, start: int) -> Rope:
        """Return the rotation of the last dimensions; under YaRN, scores have its magnitude."""
        rope = rope_of(self, hyper, windowed=False)
        return replace(rope, start=start, log_mul=1.0 if hyper.rope.log_mul else 0.0)


ARCH = LatentDecoder(name="deepseek2", rope_style="norm", experts=experts)


def _plain(config: HFConfig, n: int) -> tuple[Take, ...]:
    """Take what unfolds latents to keys: of each head's rows the first."""
    plain, value = (config.needed_integer(name) for name in ("qk_nope_head_dim", "v_head_dim"))
    return (Take(plain + value, 0, plain),)


def _value(config: HFConfig, n: int) -> tuple[Take, ...]:
    """Take what unfolds latents to values."""
    plain, value = (config.needed_integer(name) for name in ("qk_nope_head_dim", "v_head_dim"))
    return (Take(plain + value, plain, value),)


_LATENT: Tensors = {
    "model.layers.{}.self_attn.q_a_proj": "blk.{}.attn_q_a",
    "model.layers.{}.self_attn.q_a_layernorm": "blk.{}.attn_q_a_norm",
    "model.layers.{}.self_attn.q_b_proj": "blk.{}.attn_q_b",
    "model.layers.{}.self_attn.kv_a_proj_with_mqa": "blk.{}.attn_kv_a_mqa",
    "model.layers.{}.self_attn.kv_a_layernorm": "blk.{}.attn_kv_a_norm",
    "model.layers.{}.self_attn.kv_b_proj": (
        Piece("blk.{}.attn_k_b", _plain, apart=True, transposed=True),
        Piece("blk.{}.attn_v_b", _value, apart=True),
    ),
    "model.layers.{}.mlp.gate.e_score_correction_bias": "blk.{}.exp_probs_b.bias",
    "model.layers.{}.mlp.shared_experts.gate_proj": "blk.{}.ffn_gate_shexp",
    "model.layers.{}.mlp.shared_experts.up_proj": "blk.{}.ffn_up_shexp",
    "model.layers.{}.mlp.shared_experts.down_proj": "blk.{}.ffn_down_shexp",
}
_V2: dict[str, Default] = {
    "vocab_size": 32000,
    "max_position_embeddings": 2048,
    "hidden_size": 4096,
    "intermediate_size": 11008,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": n_heads,
    "rms_norm_eps": 1e-6,
    "rope_theta": 10000.0,
    "first_k_dense_replace": 0,
    "kv_lora_rank": 512,
    "q_lora_rank": 1536,
    "n_routed_experts": 64,
    "n_shared_experts": 2,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "routed_scaling_factor": 1.0,
    "v_head_dim": 128,
    "norm_topk_prob": False,
    "moe_intermediate_size": 1407,
}
_V3 = _V2 | {
    "vocab_size": 129280,
    "max_position_embeddings": 4096,
    "hidden_size": 7168,
    "intermediate_size": 18432,
    "num_hidden_layers": 61,
    "num_attention_heads": 128,
    "num_key_value_heads": 128,
    "first_k_dense_replace": 3,
    "n_routed_experts": 256,
    "n_shared_experts": 1,
    "num_experts_per_tok": 8,
    "n_group": 8,
    "topk_group": 4,
    "routed_scaling_factor": 2.5,
    "norm_topk_prob": True,
    "moe_intermediate_size": 2048,
}
_LAYER = re.compile(r"model\.layers\.(\d{1,6})\.")


def _keys(config: HFConfig) -> Keys:
    rank, plain, turned, value = (
        config.needed_integer(name)
        for name in ("kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim")
    )
    numbers = {
        "attention.head_count_kv": 1,  # the latent is the one key of all heads
        "vocab_size": config.needed_integer("vocab_size"),
        "attention.q_lora_rank": config.integer("q_lora_rank"),
        "attention.kv_lora_rank": rank,
        "attention.key_length": rank + turned,
        "attention.value_length": rank,
        "attention.key_length_mla": plain + turned,
        "attention.value_length_mla": value,
        "rope.dimension_count": turned,
        "leading_dense_block_count": _n_dense(config),
        "expert_feed_forward_length": config.integer("moe_intermediate_size", "intermediate_size"),
        "expert_shared_count": config.integer("n_shared_experts") or 0,
    }
    keys: Keys = {name: u32(name, n) for name, n in numbers.items() if n is not None}
    if (factor := config.number("routed_scaling_factor")) is not None:
        keys["expert_weights_scale"] = np.float32(factor)
    if config.flag("norm_topk_prob"):
        keys["expert_weights_norm"] = True
    if (magnitude := config.rope().full.number("mscale_all_dim")) is not None:
        keys["rope.scaling.yarn_log_multiplier"] = np.float32(0.1 * magnitude)
    return keys


def _n_dense(config: HFConfig) -> int:
    n = config.integer("first_k_dense_replace")
    if n is None:
        n = 0 if config.integer("n_routed_experts") else config.needed_integer("num_hidden_layers")
    return n


def _passes_over(config: HFConfig, name: str) -> bool:
    """Return whether a tensor is of a layer that predicts further tokens, or a tied output."""
    if name in ("lm_head.weight", "model.lm_head.weight"):
        return config.flag("tie_word_embeddings")
    layer = _LAYER.match(name)
    return layer is not None and int(layer[1]) >= config.needed_integer("num_hidden_layers")


HF = HuggingFace(
    classes={"DeepseekV2ForCausalLM": _V2, "DeepseekV3ForCausalLM": _V3},
    tensors=DECODER | EXPERTS | _LATENT,
    passes_over=_passes_over,
    keys=_keys,
)
