"""A plan by layers, and a layer's matrices by the input that they share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from quantcli.plan import Buffer, Op


@dataclass(frozen=True, slots=True)
class Group:
    """Matrices that read one input.

    names      in plan order
    input      the buffer they read
    start      the first of their ops, counted from the layer's first
    n_experts  of stacks of experts, which see the rows that go to them; else 0
    """

    names: tuple[str, ...]
    input: Buffer
    start: int
    n_experts: int = 0


def groups_of(ops: Sequence[Op]) -> list[Group]:
    """Return a layer's matrices by the input they share, in plan order."""
    found: dict[tuple[str, Buffer], Group] = {}
    n_experts = 0
    for i, op in enumerate(ops):
        if op.routing is not None:
            n_experts = op.routing.n_experts
        if op.kind in ("linear", "expert_linear"):
            key = (op.kind, op.inputs[0])
            known = found.get(key)
            names = (*(known.names if known else ()), op.weights[0])
            start = known.start if known else i
            found[key] = Group(names, op.inputs[0], start, n_experts * (op.kind != "linear"))
    return list(found.values())


def layers_of(ops: Sequence[Op]) -> list[tuple[int | None, list[Op]]]:
    """Return ops by layer; those before the first are its own, those behind the last of None."""
    last = max((i for i, op in enumerate(ops) if op.layer is not None), default=-1)
    layers: list[tuple[int | None, list[Op]]] = []
    for i, op in enumerate(ops):
        index = op.layer if op.layer is not None or i > last else 0
        if not layers or layers[-1][0] != index:
            layers.append((index, []))
        layers[-1][1].append(op)
    return layers
