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
from dataclasses import dataclass, replace

from quantcli.arch.attention import rope_of
from quantcli.arch.blocks import Decoder
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
