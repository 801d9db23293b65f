"""Where a model's experts are, and how its keys say that they are chosen."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from quantcli.arch.hyper import MAX_WIDTH, Hyper
from quantcli.arch.switches import Experts
from quantcli.errors import ShapeError, UnsupportedModel
from quantcli.plan import Routing

_D_FF, _SHARED_D_FF = "expert_feed_forward_length", "expert_shared_feed_forward_length"


@dataclass(frozen=True, slots=True)
class Mixture:
    """How an architecture routes; called with a model's numbers it returns a layer's experts.

    score, normalize  as in `plan.Routing`
    d_ff         width of experts whose file does not say, or None: it must
    shared_d_ff  width of the shared expert, likewise; 0: there is none
    shared_gate  as in `switches.Experts`
    has_bias     whether scores may have a bias for choosing
    is_expert    whether a layer has experts
    """

    score: str = "softmax"
    normalize: bool = True
    d_ff: Callable[[Hyper, int], int] | None = None
    shared_d_ff: Callable[[Hyper, int], int] | None = None
    shared_gate: bool = False
    has_bias: bool = False
    is_expert: Callable[[Hyper, int], bool] = lambda hyper, layer: True

    def __call__(self, hyper: Hyper, layer: int) -> Experts | None:
        """Return a layer's experts, None for one without.

        Raises ShapeError or UnsupportedModel for numbers that do not fit each other.
        """
        if not hyper.n_experts or not self.is_expert(hyper, layer):
            return None
        default = self.d_ff(hyper, layer) if self.d_ff else None
        shared = self.shared_d_ff(hyper, layer) if self.shared_d_ff else 0
        return Experts(
            d_ff=_width(hyper, layer, _D_FF, default),
            routing=self.routing(hyper, layer),
            shared_d_ff=hyper.keys.integer(_SHARED_D_FF, 0, MAX_WIDTH, shared),
            shared_gate=self.shared_gate,
        )

    def routing(self, hyper: Hyper, layer: int) -> Routing:
        """Return how a layer's rows choose their experts."""
        refuse_groups(hyper)
        bias = f"blk.{layer}.exp_probs_b.bias"
        return Routing(
            n_experts=hyper.n_experts,
            n_used=n_used(hyper, layer),
            score=self.score,
            bias=bias if self.has_bias and bias in hyper.tensors else None,
            normalize=self.normalize,
        )


def n_used(hyper: Hyper, layer: int) -> int:
    """Return how many experts a row of a layer goes to."""
    n_blocks = hyper.n_blocks
    used = hyper.keys.per_layer("expert_used_count", n_blocks, 1, hyper.n_experts)
    return used[layer]


def all_of_d_ff(hyper: Hyper, layer: int) -> int:
    """Return the width of an ordinary MLP of the layer."""
    return hyper.d_ff[layer]


def part_of_d_ff(hyper: Hyper, layer: int) -> int:
    """Return the width of an ordinary MLP, divided among the experts a row goes to."""
    width, n = hyper.d_ff[layer], n_used(hyper, layer)
    if width < n:
        raise ShapeError(
            f"{hyper.arch}.feed_forward_length is {width}, but {n} experts share it; "
            f"{hyper.arch}.{_D_FF} would give their width."
        )
    return width // n


def refuse_groups(hyper: Hyper) -> None:
    """Raise UnsupportedModel for a model whose rows choose groups of experts first."""
    if (n := hyper.keys.integer("expert_group_count", 0, hyper.n_experts, 0)) > 1:
        raise UnsupportedModel(
            f"{hyper.arch}.expert_group_count is {n}: choosing groups of experts is not supported."
        )


def _width(hyper: Hyper, layer: int, name: str, default: int | None) -> int:
    if default is not None and name not in hyper.keys:
        return default
    return hyper.keys.per_layer(name, hyper.n_blocks, 1, MAX_WIDTH)[layer]
