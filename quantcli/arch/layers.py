"""What the halves of a layer are made of: norms and matrices with the biases a file holds."""

from __future__ import annotations

from quantcli.arch.hyper import Hyper
from quantcli.arch.switches import Switches
from quantcli.plan import Buffer, Plan

_EPS = {"rms": "attention.layer_norm_rms_epsilon", "layer": "attention.layer_norm_epsilon"}


def eps_of(arch: Switches, hyper: Hyper) -> float:
    """Return what norms add to the mean square; CheckpointError if the file does not say."""
    return hyper.keys.number(_EPS[arch.norm], 0.0, 1.0, above=True)


def norm(plan: Plan, arch: Switches, hyper: Hyper, x: Buffer, name: str) -> Buffer:
    """Append the architecture's norm with the weight `name`.weight."""
    eps = eps_of(arch, hyper)
    if arch.norm == "rms":
        return plan.rms_norm(x, f"{name}.weight", eps)
    return plan.layer_norm(x, f"{name}.weight", eps, f"{name}.bias" if arch.norm_bias else None)


def linear(plan: Plan, hyper: Hyper, x: Buffer, name: str, n_out: int) -> Buffer:
    """Append a product with `name`.weight, and its bias if the file has one."""
    bias = f"{name}.bias"
    return plan.linear(x, f"{name}.weight", n_out, bias if bias in hyper.tensors else None)


def join(plan: Plan, arch: Switches, hyper: Hyper, x: Buffer, y: Buffer, post_norm: str) -> Buffer:
    """Append the residual sum x + y, with the norm and the factor that y may get before."""
    if arch.post_norms:
        y = norm(plan, arch, hyper, y, post_norm)
    factor = arch.residual_scale(hyper)
    if factor != 1.0:
        y = plan.scale(y, factor)
    return plan.add(x, y)


def here(plan: Plan) -> tuple[int, str]:
    """Return the layer that the plan is at, and the prefix of its tensors."""
    assert plan.layer is not None
    return plan.layer, f"blk.{plan.layer}"
