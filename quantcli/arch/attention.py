"""The attention half of the shared block: q, k and v, their norms and rotation, and the rope."""

from __future__ import annotations

from quantcli.arch.hyper import Hyper
from quantcli.arch.layers import eps_of, here, linear
from quantcli.arch.switches import Switches
from quantcli.errors import UnsupportedModel
from quantcli.plan import Buffer, Heads, Plan, Rope

ROPE_FREQS = "rope_freqs.weight"
_LONGROPE = ("rope_factors_short.weight", "rope_factors_long.weight")


def heads_of(arch: Switches, hyper: Hyper, layer: int) -> Heads:
    """Return the shape and rule of a layer's attention."""
    return Heads(
        n_heads=hyper.n_heads[layer],
        n_kv_heads=hyper.n_kv_heads[layer],
        head_dim=hyper.head_dim,
        scale=arch.attn_scale(hyper),
        window=arch.window(hyper, layer),
        softcap=arch.attn_softcap(hyper),
        sinks=f"blk.{layer}.attn_sinks.weight" if arch.sinks else None,
        temperature=arch.temperature(hyper) if arch.temperature else 0.0,
        temperature_length=hyper.rope.original_context,
    )


def attend(plan: Plan, arch: Switches, hyper: Hyper, h: Buffer) -> Buffer:
    """Append attention over a normed input; return what goes into the output matrix."""
    layer, prefix = here(plan)
    heads = heads_of(arch, hyper, layer)
    q, k, v = _projections(plan, hyper, h, heads, prefix)
    rope = None
    if arch.rope_layers(hyper, layer):
        rope = rope_of(arch, hyper, windowed=heads.window > 0)
    q = _positioned(plan, arch, hyper, q, f"{prefix}.attn_q_norm.weight", rope)
    k = _positioned(plan, arch, hyper, k, f"{prefix}.attn_k_norm.weight", rope)
    return plan.attention(q, k, v, heads)


def _projections(
    plan: Plan, hyper: Hyper, h: Buffer, heads: Heads, prefix: str
) -> tuple[Buffer, Buffer, Buffer]:
    """Append q, k and v: three matrices, or one whose rows follow one another."""
    q_width, kv_width = heads.n_heads * heads.head_dim, heads.n_kv_heads * heads.head_dim
    if f"{prefix}.attn_qkv.weight" not in hyper.tensors:
        q = linear(plan, hyper, h, f"{prefix}.attn_q", q_width)
        k = linear(plan, hyper, h, f"{prefix}.attn_k", kv_width)
        return q, k, linear(plan, hyper, h, f"{prefix}.attn_v", kv_width)
    qkv = linear(plan, hyper, h, f"{prefix}.attn_qkv", q_width + 2 * kv_width)
    return (
        plan.slice(qkv, "attn_q", 0, q_width),
        plan.slice(qkv, "attn_k", q_width, kv_width),
        plan.slice(qkv, "attn_v", q_width + kv_width, kv_width),
    )


def _positioned(
    plan: Plan, arch: Switches, hyper: Hyper, x: Buffer, weight: str, rope: Rope | None
) -> Buffer:
    """Append what happens to q or k before attention: a norm, and rotation by position."""
    if arch.qk_norm == "row":
        x = plan.rms_norm(x, weight, eps_of(arch, hyper))
    elif arch.qk_norm == "head":
        x = plan.rms_norm(x, weight, eps_of(arch, hyper), hyper.head_dim)
    if rope:
        x = plan.rope(x, rope, hyper.head_dim)
    if arch.qk_norm == "head after rope":
        x = plan.rms_norm(x, weight, eps_of(arch, hyper), hyper.head_dim)
    return x


def rope_of(arch: Switches, hyper: Hyper, *, windowed: bool) -> Rope:
    """Return the RoPE of a layer that sees all keys, or of a windowed one.

    Raises UnsupportedModel for longrope where the architecture has none.
    """
    keys = hyper.rope
    base = keys.freq_base * arch.base_factor(hyper)
    if windowed and arch.window_rope == "own":
        base = 10000.0 if keys.freq_base_swa is None else keys.freq_base_swa
        return Rope(arch.rope_style, keys.n_rot, base, attn_factor=keys.attn_factor)
    if windowed and arch.window_rope == "unscaled":
        return Rope(arch.rope_style, keys.n_rot, base)
    if windowed and arch.window_rope == "based" and keys.freq_base_swa is not None:
        base = keys.freq_base_swa
    short, long = _factors(arch, hyper)
    return Rope(
        style=arch.rope_style,
        n_rot=keys.n_rot,
        freq_base=base,
        scaling=keys.scaling,
        factor=keys.factor,
        original_context=keys.original_context,
        ext_factor=keys.ext_factor,
        attn_factor=keys.attn_factor,
        beta_fast=keys.beta_fast,
        beta_slow=keys.beta_slow,
        log_mul=keys.log_mul if arch.yarn_log_mul else 0.0,
        freq_factors=short,
        long_factors=long,
    )


def _factors(arch: Switches, hyper: Hyper) -> tuple[str | None, str | None]:
    """Return the tensors of frequency factors, for contexts up to the original and beyond."""
    if hyper.rope.is_long and arch.long_factors == "never":
        raise UnsupportedModel(
            f"{hyper.arch}.rope.scaling.type is longrope: not supported for this architecture."
        )
    is_long = hyper.rope.is_long or arch.long_factors == "there"
    if is_long and any(name in hyper.tensors for name in _LONGROPE):
        return _LONGROPE
    has_factors = arch.freq_factors and ROPE_FREQS in hyper.tensors
    return (ROPE_FREQS if has_factors else None), None
