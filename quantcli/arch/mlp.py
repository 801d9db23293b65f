"""The MLP half of the shared block: gated or not, or experts with one that all rows share."""

from __future__ import annotations

from quantcli.arch.hyper import Hyper
from quantcli.arch.layers import here, linear
from quantcli.arch.switches import Experts, Switches
from quantcli.plan import Buffer, Plan


def feed_forward(plan: Plan, arch: Switches, hyper: Hyper, h: Buffer) -> Buffer:
    """Append the MLP or the experts of a layer over a normed input."""
    layer, prefix = here(plan)
    experts = arch.experts(hyper, layer)
    if experts is None:
        return _mlp(plan, arch, hyper, h, "", hyper.d_ff[layer])
    y = _experts(plan, arch, hyper, h, experts)
    if not experts.shared_d_ff:
        return y
    shared = _mlp(plan, arch, hyper, h, "_shexp", experts.shared_d_ff)
    if experts.shared_gate:
        gate = linear(plan, hyper, h, f"{prefix}.ffn_gate_inp_shexp", 1)
        shared = plan.sigmoid_gate(shared, gate)
    return plan.add(y, shared)


def _mlp(plan: Plan, arch: Switches, hyper: Hyper, h: Buffer, suffix: str, d_ff: int) -> Buffer:
    """Append an MLP whose tensors end in `suffix`."""
    _, prefix = here(plan)
    up_name = f"{prefix}.ffn_up{suffix}"
    if arch.gate == "up":
        both = linear(plan, hyper, h, up_name, 2 * d_ff)
        gate = plan.slice(both, "ffn_gate", 0, d_ff)
        up = plan.slice(both, "ffn_up", d_ff, d_ff)
    else:
        gate = None
        if arch.gate == "own":
            gate = linear(plan, hyper, h, f"{prefix}.ffn_gate{suffix}", d_ff)
        up = linear(plan, hyper, h, up_name, d_ff)
    d = plan.gated(gate, up, arch.act) if gate else plan.activate(up, arch.act)
    return linear(plan, hyper, d, f"{prefix}.ffn_down{suffix}", hyper.d_model)


def _experts(plan: Plan, arch: Switches, hyper: Hyper, h: Buffer, experts: Experts) -> Buffer:
    """Append the choice of experts, their MLPs and the sum of what they say."""
    _, prefix = here(plan)
    logits = linear(plan, hyper, h, f"{prefix}.ffn_gate_inp", experts.routing.n_experts)
    routes = plan.route(logits, experts.routing)

    def product(x: Buffer, name: str, n_out: int) -> Buffer:
        weight, bias = f"{prefix}.{name}_exps.weight", f"{prefix}.{name}_exps.bias"
        return plan.expert_linear(x, routes, weight, n_out, bias if bias in hyper.tensors else None)

    if f"{prefix}.ffn_gate_up_exps.weight" in hyper.tensors:
        both = product(h, "ffn_gate_up", 2 * experts.d_ff)
        gate = plan.slice(both, "ffn_gate", 0, experts.d_ff)
        up = plan.slice(both, "ffn_up", experts.d_ff, experts.d_ff)
    else:
        gate = product(h, "ffn_gate", experts.d_ff)
        up = product(h, "ffn_up", experts.d_ff)
    d = plan.gated(gate, up, arch.act)
    return plan.mix(product(d, "ffn_down", hyper.d_model), routes)
