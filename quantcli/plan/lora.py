"""LoRA adapters in a plan: y = W x becomes y + scale B (A x), and W stays as it is.

Hu et al. 2021, arXiv 2106.09685, section 4.1. Each adapter of a matrix is a branch of small ops
beside its product; branches add up. A's products come just before W's: they are too narrow for
several threads, which share W's meanwhile. B's come just before the first op that reads y, so that
those of q, k and v, or of gate and up, wait for A's together. Where y is added to the residual
stream and read by nothing else, the branch is added after it: W's product still adds in place.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from quantcli.plan import Buffer, Op, Plan

OUTPUT = "output.weight"
_PRODUCTS = ("linear", "expert_linear")


@dataclass(frozen=True, slots=True)
class Branch:
    """One adapter of one matrix.

    target  the matrix, by its tensor's name
    a, b    names of A and B, see `shapes`
    scale   factor on B (A x)
    """

    target: str
    a: str
    b: str
    rank: int
    scale: float


def targets(plan: Plan) -> dict[str, Op]:
    """Return the ops whose matrices an adapter can change, by the matrix's name.

    An adapter of an embedding changes what is looked up, and one of `output.weight` the logits,
    also where both are one matrix.
    """
    found = {op.weights[0]: op for op in plan.ops if op.kind in _PRODUCTS}
    embeds = {op.weights[0]: op for op in plan.ops if op.kind == "embed"}
    for name in embeds:
        if name in found:
            found.setdefault(OUTPUT, found[name])
    return found | embeds


def shapes(plan: Plan, op: Op, rank: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the shapes of A and B for a matrix that an op multiplies by, or looks up in.

    A is (rank, n_in) and B (n_out, rank), experts' with their number before it. An embedding is
    transposed: a token's row of A, (n_vocab, rank), is multiplied by B, (width, rank).
    """
    shape = plan.weights[op.weights[0]]
    if op.kind == "embed":
        return (shape[0], rank), (shape[1], rank)
    return (*shape[:-2], rank, shape[-1]), (*shape[:-1], rank)


def branched(plan: Plan, branches: Iterable[Branch]) -> Plan:
    """Return a plan with branches; each must have its target among `targets`."""
    by_target: dict[str, list[Branch]] = {}
    for branch in branches:
        by_target.setdefault(branch.target, []).append(branch)
    builder = _Builder(plan, by_target)
    for op in plan.ops:
        builder.take(op)
    builder.flush()
    builder.plan.layer = None
    builder.plan.verify()
    return builder.plan


class _Builder:
    """Takes a plan's ops in order and grows another plan."""

    def __init__(self, plan: Plan, branches: dict[str, list[Branch]]) -> None:
        self.plan = plan.emptied()
        ops = targets(plan)
        self._wanted = {ops[name].output: some for name, some in branches.items()}
        self._now: dict[Buffer, Buffer] = {}  # what stands for a buffer of the source
        self._waiting: dict[Buffer, _Waiting] = {}  # by the product's output
        self._readers: dict[Buffer, list[Op]] = {}
        for op in plan.ops:
            for buffer in op.inputs:
                self._readers.setdefault(buffer, []).append(op)

    def take(self, op: Op) -> None:
        """Append an op, and before it what its inputs wait for."""
        added = [self._waiting[b] for b in op.inputs if b in self._waiting]
        residual = next((w for w in added if w.residual_add is op), None)
        if added and residual is None:
            self.flush()
        inputs = tuple(self._now[buffer] for buffer in op.inputs)
        branches = self._wanted.get(op.output, [])
        if branches and op.kind != "embed":
            lows = [self._multiply(op, inputs[0], b.a, b.rank) for b in branches]
            self._waiting[op.output] = _Waiting(op, lows, self._residual_add(op.output))
        self.plan.ops.append(replace(op, inputs=inputs))
        self._now[op.output] = op.output
        if residual is not None:
            self._complete(residual, op)
        elif branches and op.kind == "embed":
            self._embed(op)

    def flush(self) -> None:
        """Complete products, but not those that will be added to a residual."""
        for waiting in list(self._waiting.values()):
            if waiting.residual_add is None:
                self._complete(waiting, waiting.product)

    def _complete(self, waiting: _Waiting, into: Op) -> None:
        """Append B's part of a product's branches, added to what an op has written."""
        product = waiting.product
        del self._waiting[product.output]
        for branch, low in zip(self._wanted[product.output], waiting.lows, strict=True):
            self.plan.layer = product.layer
            scaled = self.plan.scale(low, branch.scale) if branch.scale != 1.0 else low
            y = self._multiply(product, scaled, branch.b, product.output.width)
            self._now[into.output] = self.plan.add(self._now[into.output], y)

    def _embed(self, op: Op) -> None:
        self.plan.layer = op.layer
        for branch in self._wanted[op.output]:
            n_vocab = self.plan.weights[op.weights[0]][0]
            scale = op.number("scale") * branch.scale
            low = self.plan.embed(branch.a, n_vocab, branch.rank, scale)
            y = self.plan.linear(low, branch.b, op.output.width)
            self._now[op.output] = self.plan.add(self._now[op.output], y)

    def _multiply(self, op: Op, x: Buffer, weight: str, n_out: int) -> Buffer:
        """Append a product with an adapter's matrix, by the experts of `op` where it has some."""
        self.plan.layer = op.layer
        if op.kind == "expert_linear":
            return self.plan.expert_linear(x, self._now[op.inputs[1]], weight, n_out)
        return self.plan.linear(x, weight, n_out)

    def _residual_add(self, product: Buffer) -> Op | None:
        """Return the add that is all that reads a product, as its second input, if there is one."""
        readers = self._readers.get(product, [])
        if len(readers) != 1 or readers[0].kind != "add":
            return None
        return readers[0] if readers[0].inputs[0] != product else None


@dataclass(frozen=True, slots=True)
class _Waiting:
    """A product whose branches have their A part alone.

    lows          what A's products have written, a buffer each
    residual_add  the one op that reads the product, if it adds it to something else
    """

    product: Op
    lows: list[Buffer]
    residual_add: Op | None
