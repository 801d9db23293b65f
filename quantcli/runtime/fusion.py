"""Which ops of a plan the compiled kernels do on the way to another: read off the plan alone.

norms, gated, activate, scale   read by products only: done while activations are staged
rms_norm, scale, mix   read by one add: done together with it
rms_norm, rope    on the way to an attention's q or k: done per head, before k is stored
add               of a product read by nothing else: the product adds to the other in place
"""

from __future__ import annotations

from dataclasses import dataclass

from quantcli.plan import Buffer, Op, Plan

PRODUCTS = ("linear", "expert_linear", "head_linear")
_STAGED = ("rms_norm", "layer_norm", "gated", "activate", "scale")


@dataclass(frozen=True, slots=True)
class HeadPath:
    """What happens to q or k between its linear and the attention.

    source     the buffer the linear wrote
    norm       the rms_norm over each head, or None
    rope       the rope op, or None
    norm_last  whether what is rotated is normed, not the other way round
    """

    source: Buffer
    norm: Op | None
    rope: Op | None
    norm_last: bool


class Fusion:
    """The ops of a plan that are not lowered by themselves, and what they become part of."""

    def __init__(self, plan: Plan) -> None:
        """Find every fusion of a plan."""
        self.plan = plan
        self.producers = {op.output: op for op in plan.ops}
        self.readers = {op.output: plan.readers(op.output) for op in plan.ops}
        self.staged = {op.output for op in plan.ops if self._is_staged(op)}
        self.into_add = {op.output: op for op in plan.ops if self._is_into_add(op)}
        self.paths: dict[Buffer, HeadPath] = {}
        self.on_path: set[Buffer] = set()
        for op in plan.ops:
            if op.kind == "attention":
                for buffer in op.inputs[:2]:
                    self.paths[buffer] = self._head_path(buffer)

    def is_fused(self, op: Op) -> bool:
        """Return whether an op is done by another."""
        out = op.output
        return out in self.staged or out in self.into_add or out in self.on_path

    def roots(self, buffer: Buffer) -> tuple[Buffer, ...]:
        """Return the stored buffers that reading `buffer` really reads."""
        op = self.producers[buffer]
        if not self.is_fused(op):
            return (buffer,)
        return tuple(root for source in op.inputs for root in self.roots(source))

    def residual_add(self, product: Op) -> Op | None:
        """Return the add that is all that reads a product as its second input, if there is one."""
        readers = self.readers[product.output]
        if len(readers) != 1 or readers[0].kind != "add":
            return None
        add = readers[0]
        return add if add.inputs[1] == product.output != add.inputs[0] else None

    def _is_staged(self, op: Op) -> bool:
        if op.kind == "rms_norm" and op.params["group"]:
            return False
        if op.kind not in _STAGED:
            return False
        readers = self.readers[op.output]
        return bool(readers) and all(
            reader.kind in PRODUCTS[:2] and op.output == reader.inputs[0] for reader in readers
        )

    def _is_into_add(self, op: Op) -> bool:
        """Return whether an op's one reader adds it to something else, and can do it as well."""
        if op.kind not in ("rms_norm", "scale", "mix") or op.params.get("group"):
            return False
        readers = self.readers[op.output]
        return (
            len(readers) == 1
            and readers[0].kind == "add"
            and (readers[0].inputs[1] == op.output != readers[0].inputs[0])
        )

    def _head_path(self, buffer: Buffer) -> HeadPath:
        """Walk back from attention: a norm over each head, rope, or one and then the other."""
        steps: list[Op] = []
        op = self.producers[buffer]
        while len(steps) < 2 and self._is_of_heads(op, steps):
            steps.append(op)
            self.on_path.add(op.output)
            op = self.producers[op.inputs[0]]
        norm = next((step for step in steps if step.kind == "rms_norm"), None)
        rope = next((step for step in steps if step.kind == "rope"), None)
        assert not steps or len(self.readers[op.output]) == 1, (op.output, "is rotated in place")
        norm_last = norm is not None and rope is not None and steps[0] is norm
        return HeadPath(op.output, norm, rope, norm_last)

    def _is_of_heads(self, op: Op, steps: list[Op]) -> bool:
        """Return whether an op is rope, or a norm over heads, and not the second of its kind."""
        is_norm = op.kind == "rms_norm" and bool(op.params["group"])
        is_new = all(step.kind != op.kind for step in steps)
        return (is_norm or op.kind == "rope") and is_new and len(self.readers[op.output]) == 1
