"""The switches by which architectures of one shared block differ.

Functions take `Hyper`, and a layer where layers differ, and return numbers that depend on a file.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from quantcli.arch.hyper import Hyper
from quantcli.plan import Routing


def one(hyper: Hyper) -> float:
    """Return 1: values as they are."""
    return 1.0


def by_head_dim(hyper: Hyper) -> float:
    """Return 1 / sqrt(head_dim), the usual factor on q . k."""
    return 1.0 / math.sqrt(hyper.head_dim)


def no_window(hyper: Hyper, layer: int) -> int:
    """Return 0: every layer sees all keys."""
    return 0


def every_layer(hyper: Hyper, layer: int) -> bool:
    """Return True."""
    return True


def attn_softcap_key(hyper: Hyper) -> float:
    """Return the soft cap on scores that the file names, 0 for none."""
    return hyper.attn_softcap


def logit_softcap_key(hyper: Hyper) -> float:
    """Return the soft cap on logits that the file names, 0 for none."""
    return hyper.logit_softcap


def the_sum(hyper: Hyper, layer: int) -> str:
    """Return "sum": the MLP reads the residual stream that attention has added to."""
    return "sum"


@dataclass(frozen=True, slots=True)
class Experts:
    """The experts of one layer.

    d_ff         width of each
    routing      how rows choose them
    shared_d_ff  width of an expert that every row goes to as well; 0: there is none
    shared_gate  whether the shared one has a gate of one value a row
    """

    d_ff: int
    routing: Routing
    shared_d_ff: int = 0
    shared_gate: bool = False


def no_experts(hyper: Hyper, layer: int) -> Experts | None:
    """Return None: the layer has an ordinary MLP."""
    return None


@dataclass(frozen=True, slots=True)
class Switches:
    """An architecture made of the shared block.

    rope_style     as in `plan.Rope`; "norm" files hold q and k rows permuted for it
    freq_factors   whether `rope_freqs.weight` is part of the architecture
    long_factors   when longrope's two tensors of factors are: "never", if a "key" says so, or if
                   they are "there"
    yarn_log_mul   whether the key that divides YaRN's magnitude is
    base_factor    factor on the base that q and k rotate with
    rope_layers    whether a layer rotates q and k
    window_rope    how windowed layers rotate: "own" base without scaling, "based" on their own
                   base but scaled as the others, "unscaled" or the "same"
    norm           "rms" or "layer"
    norm_bias      whether layer norms have a bias
    pre_norms      norms before attention and before the MLP
    post_norms     norms after each of them, before its residual sum
    ffn_norm       name of the norm before the MLP
    mlp_reads      the "sum" with what attention says; or beside attention, the "same" norm or the
                   "stream" before it, through a norm of its own
    qk_norm        RMS norm of q and k: "no", on each "head" before RoPE or "head after rope", or
                   on the whole "row"
    sinks          whether attention has an extra logit for each head
    gate           an MLP's gate: a matrix of its "own", the first half of the "up" matrix, or "no"
    act            activation of the gate, or of `up` without one
    embed_scale    factor on embeddings
    attn_scale     factor on q . k
    residual_scale factor on what is added to the residual stream
    logit_scale    factor on logits
    attn_softcap, logit_softcap   soft caps, 0 for none
    temperature    factor of the growth of q with its position, as in `plan.Heads`
    window         keys that a layer sees, 0 for all
    experts        a layer's experts, or None
    """

    name: str
    rope_style: str
    freq_factors: bool = False
    long_factors: str = "never"
    yarn_log_mul: bool = False
    base_factor: Callable[[Hyper], float] = one
    rope_layers: Callable[[Hyper, int], bool] = every_layer
    window_rope: str = "same"
    norm: str = "rms"
    norm_bias: bool = False
    pre_norms: bool = True
    post_norms: bool = False
    ffn_norm: str = "ffn_norm"
    mlp_reads: Callable[[Hyper, int], str] = the_sum
    qk_norm: str = "no"
    sinks: bool = False
    gate: str = "own"
    act: str = "silu"
    embed_scale: Callable[[Hyper], float] = one
    attn_scale: Callable[[Hyper], float] = by_head_dim
    residual_scale: Callable[[Hyper], float] = one
    logit_scale: Callable[[Hyper], float] = one
    attn_softcap: Callable[[Hyper], float] = attn_softcap_key
    logit_softcap: Callable[[Hyper], float] = logit_softcap_key
    temperature: Callable[[Hyper], float] | None = None
    window: Callable[[Hyper, int], int] = no_window
    experts: Callable[[Hyper, int], Experts | None] = no_experts
