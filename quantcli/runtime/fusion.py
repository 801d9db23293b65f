"""Which ops of a plan the compiled kernels do on the way to another: read off the plan alone.

rms_norm, gated   read by linears only: done while activations are staged
rms_norm          read by one add: done by the add (a post-norm)
rms_norm, rope    on the way to an attention's q or k: done per head, before k is stored
add               of a linear read by nothing else: the linear adds to the residual in place
"""

from __future__ import annotations

from dataclasses import dataclass

from quantcli.plan import Buffer, Op, Plan


@dataclass(frozen=True, slots=True)
class HeadPath:
    """What happens to q or k between its linear and the attention.

    source   the buffer the linear wrote
    norm     the rms_norm over each head, or None
    rope     the rope op, or None
    """

    source: Buffer
    norm: Op | None
    rope: Op | None


class Fusion:
    """The ops of a plan that are not lowered by themselves, and what they become part of."""

    def __init__(self, plan: Plan) -> None:
        """Find every fusion of a plan."""
        self.plan = plan
        self.producers = {op.output: op for op in plan.ops}
        self.readers = {op.output: plan.readers(op.output) for op in plan.ops}
        self.staged = {op.output for op in plan.ops if self._is_staged(op)}
        self.post_norms = {op.output: op for op in plan.ops if self._is_post_norm(op)}
        self.paths: dict[Buffer, HeadPath] = {}
        self.on_path: set[Buffer] = set()
        for op in plan.ops:
            if op.kind == "attention":
                for buffer in op.inputs[:2]:
                    self.paths[buffer] = self._head_path(buffer)

    def is_fused(self, op: Op) -> bool:
        """Return whether an op is done by another."""
        out = op.output
        return out in self.staged or out in self.post_norms or out in self.on_path

    def roots(self, buffer: Buffer) -> tuple[Buffer, ...]:
        """Return the stored buffers that reading `buffer` really reads."""
        op = self.producers[buffer]
        if not self.is_fused(op):
            return (buffer,)
        return tuple(root for source in op.inputs for root in self.roots(source))

    def residual_add(self, linear: Op) -> Op | None:
        """Return the add that is all that reads a linear as its second input, if there is one."""
        readers = self.readers[linear.output]
        if len(readers) != 1 or readers[0].kind != "add":
            return None
        add = readers[0]
        return add if add.inputs[1] == linear.output != add.inputs[0] else None

    def _is_staged(self, op: Op) -> bool:
        if op.kind == "rms_norm" and op.params["group"]:
            return False
        if op.kind not in ("rms_norm", "gated"):
            return False
        readers = self.readers[op.output]
        return bool(readers) and all(reader.kind == "linear" for reader in readers)

    def _is_post_norm(self, op: Op) -> bool:
        if op.kind != "rms_norm" or op.params["group"]:
            return False
        readers = self.readers[op.output]
        return (
            len(readers) == 1
            and readers[0].kind == "add"
            and (readers[0].inputs[1] == op.output != readers[0].inputs[0])
        )

    def _head_path(self, buffer: Buffer) -> HeadPath:
        """Walk back from attention: rope, then a norm over each head, each with one reader."""
        norm = rope = None
        op = self.producers[buffer]
        if op.kind == "rope" and len(self.readers[buffer]) == 1:
            rope, buffer = op, op.inputs[0]
            self.on_path.add(op.output)
            op = self.producers[buffer]
        if op.kind == "rms_norm" and op.params["group"] and len(self.readers[buffer]) == 1:
            norm, buffer = op, op.inputs[0]
            self.on_path.add(op.output)
        in_place = norm is not None or rope is not None
        assert not in_place or len(self.readers[buffer]) == 1, (buffer, "is rotated in place")
        return HeadPath(buffer, norm, rope)
