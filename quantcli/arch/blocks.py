"""The decoder block that most architectures share, with a switch for each way they differ.

x = embed(tokens); per layer x += o(attention(norm(x))), x += down(act(gate) * up) of norm(x);
logits = output(norm(x)). Behind the last attention, which stores keys and values of all rows, only
rows whose logits are wanted go on. An architecture is a `Decoder` with its switches set.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from quantcli.arch.hyper import EMBEDDING, Hyper
from quantcli.plan import Buffer, Heads, Plan, Rope

ROPE_FREQS = "rope_freqs.weight"


def one(hyper: Hyper) -> float:
    """Return 1: embeddings as they are."""
    return 1.0


def by_head_dim(hyper: Hyper) -> float:
    """Return 1 / sqrt(head_dim), the usual factor on q . k."""
    return 1.0 / math.sqrt(hyper.head_dim)


def no_window(hyper: Hyper, layer: int) -> int:
    """Return 0: every layer sees all keys."""
    return 0


@dataclass(frozen=True, slots=True)
class Decoder:
    """An architecture made of the shared block.

    rope_style     as in `plan.Rope`; "norm" files hold q and k rows permuted for it
    freq_factors   whether `rope_freqs.weight` is part of the architecture
    act            activation of the gate
    qk_norm        RMS norm on each head of q and k, before RoPE
    post_norms     RMS norm after attention and after the MLP, before each residual sum
    embed_scale    factor on embeddings
    attn_scale     factor on q . k
    window         keys that a layer sees, 0 for all; windowed layers have a RoPE of their own,
                   with `freq_base_swa` and no scaling
    """

    name: str
    rope_style: str
    freq_factors: bool = False
    act: str = "silu"
    qk_norm: bool = False
    post_norms: bool = False
    embed_scale: Callable[[Hyper], float] = one
    attn_scale: Callable[[Hyper], float] = by_head_dim
    window: Callable[[Hyper, int], int] = no_window

    def build(self, hyper: Hyper) -> Plan:
        """Return the plan. Biases and an output matrix of its own are read if the file has them.

        Raises ShapeError if the hyper-parameters do not fit each other.
        """
        plan = Plan()
        x = plan.embed(EMBEDDING, hyper.n_vocab, hyper.d_model, self.embed_scale(hyper))
        for layer in range(hyper.n_layers):
            plan.layer = layer
            x = attention(plan, self, hyper, x, is_last=layer == hyper.n_layers - 1)
            x = gated_mlp(plan, self, hyper, x)
        plan.layer = None
        x = plan.rms_norm(x, "output_norm.weight", hyper.eps)
        tied = "output.weight" not in hyper.tensors
        x = _linear(plan, hyper, x, EMBEDDING if tied else "output.weight", hyper.n_vocab)
        if hyper.logit_softcap:
            plan.softcap(x, hyper.logit_softcap)
        plan.verify()
        return plan


def attention(plan: Plan, arch: Decoder, hyper: Hyper, x: Buffer, *, is_last: bool) -> Buffer:
    """Append the attention half of a layer; return the residual stream after it."""
    layer, prefix = _here(plan)
    heads = Heads(
        n_heads=hyper.n_heads[layer],
        n_kv_heads=hyper.n_kv_heads[layer],
        head_dim=hyper.head_dim,
        scale=arch.attn_scale(hyper),
        window=arch.window(hyper, layer),
        softcap=hyper.attn_softcap,
    )
    q_width, kv_width = heads.n_heads * heads.head_dim, heads.n_kv_heads * heads.head_dim
    h = plan.rms_norm(x, f"{prefix}.attn_norm.weight", hyper.eps)
    q = _linear(plan, hyper, h, f"{prefix}.attn_q.weight", q_width)
    k = _linear(plan, hyper, h, f"{prefix}.attn_k.weight", kv_width)
    v = _linear(plan, hyper, h, f"{prefix}.attn_v.weight", kv_width)
    if arch.qk_norm:
        q = plan.rms_norm(q, f"{prefix}.attn_q_norm.weight", hyper.eps, heads.head_dim)
        k = plan.rms_norm(k, f"{prefix}.attn_k_norm.weight", hyper.eps, heads.head_dim)
    rope = rope_of(arch, hyper, windowed=heads.window > 0)
    q = plan.rope(q, rope, heads.head_dim)
    k = plan.rope(k, rope, heads.head_dim)
    o = plan.attention(q, k, v, heads)
    if is_last:
        o, x = plan.select(o), plan.select(x)
    o = _linear(plan, hyper, o, f"{prefix}.attn_output.weight", hyper.d_model)
    if arch.post_norms:
        o = plan.rms_norm(o, f"{prefix}.post_attention_norm.weight", hyper.eps)
    return plan.add(x, o)


def gated_mlp(plan: Plan, arch: Decoder, hyper: Hyper, x: Buffer) -> Buffer:
    """Append the MLP half of a layer; return the residual stream after it."""
    layer, prefix = _here(plan)
    h = plan.rms_norm(x, f"{prefix}.ffn_norm.weight", hyper.eps)
    gate = _linear(plan, hyper, h, f"{prefix}.ffn_gate.weight", hyper.d_ff[layer])
    up = _linear(plan, hyper, h, f"{prefix}.ffn_up.weight", hyper.d_ff[layer])
    d = plan.gated(gate, up, arch.act)
    d = _linear(plan, hyper, d, f"{prefix}.ffn_down.weight", hyper.d_model)
    if arch.post_norms:
        d = plan.rms_norm(d, f"{prefix}.post_ffw_norm.weight", hyper.eps)
    return plan.add(x, d)


def rope_of(arch: Decoder, hyper: Hyper, *, windowed: bool) -> Rope:
    """Return the RoPE of a layer that sees all keys, or of a windowed one."""
    keys = hyper.rope
    if windowed:
        return Rope(arch.rope_style, keys.n_rot, keys.freq_base_swa, attn_factor=keys.attn_factor)
    has_factors = arch.freq_factors and ROPE_FREQS in hyper.tensors
    return Rope(
        style=arch.rope_style,
        n_rot=keys.n_rot,
        freq_base=keys.freq_base,
        scaling=keys.scaling,
        factor=keys.factor,
        original_context=keys.original_context,
        ext_factor=keys.ext_factor,
        attn_factor=keys.attn_factor,
        beta_fast=keys.beta_fast,
        beta_slow=keys.beta_slow,
        freq_factors=ROPE_FREQS if has_factors else None,
    )


def _linear(plan: Plan, hyper: Hyper, x: Buffer, weight: str, n_out: int) -> Buffer:
    bias = weight.removesuffix("weight") + "bias"
    return plan.linear(x, weight, n_out, bias if bias in hyper.tensors else None)


def _here(plan: Plan) -> tuple[int, str]:
    assert plan.layer is not None
    return plan.layer, f"blk.{plan.layer}"
