"""Turn a plan into op arrays of addresses for the compiled executor.

The plan is cut at its first `select`: the trunk runs once a step, the head once for each slice of
rows whose logits are wanted. They share no region, so that every slice finds the trunk's as it was.
Everything an address points at is owned by the Lowered plan or what it holds.
"""

from __future__ import annotations

import numpy as np

from quantcli.kernels import elementwise, join
from quantcli.kernels.jit import OpKernel
from quantcli.plan import ENTRIES, OUTPUTS, TOKENS, Buffer, Op, Plan
from quantcli.runtime.lower_attention import AttentionLowerer
from quantcli.runtime.lower_products import ProductLowerer
from quantcli.runtime.lowering import Sources
from quantcli.runtime.regions import Region

__all__ = ["Lowering", "Sources"]

_GATES = {
    "silu": elementwise.gated_silu,
    "gelu_tanh": elementwise.gated_gelu_tanh,
    "swiglu_oai": elementwise.gated_swiglu_oai,
}
_ALONE = {
    "gelu_tanh": elementwise.gelu_tanh_alone,
    "relu_squared": elementwise.relu_squared_alone,
}


class Lowering(AttentionLowerer, ProductLowerer):
    """Lowers one plan: `trunk` and `head` grow as its ops are read in order."""

    def __init__(self, plan: Plan, sources: Sources) -> None:
        """Lower every op of a plan."""
        super().__init__(plan, sources)
        self.given: dict[Buffer, Region] = {}
        self.kept: dict[Buffer, Region] = {}
        for op in plan.ops:
            self._lower(op)
        self.staging.allocate()

    @property
    def logits(self) -> Region:
        """Where the head leaves its logits."""
        return self.regions[self.plan.logits]

    def _lower(self, op: Op) -> None:
        if op.kind == "select":
            self.ops = self.head
        axis = OUTPUTS if self.ops is self.head else TOKENS
        assert op.output.axis in (axis, ENTRIES[axis]), op
        if self.fusion.is_fused(op):
            return
        if op.output not in self.done:
            getattr(self, f"_lower_{op.kind}")(op)
        self.use(op)

    # ---- one method for each kind of op; products and attention are in their own modules

    def _lower_given(self, op: Op) -> None:
        """Make room for a buffer that whoever runs the ops fills, see `runtime.stretch`."""
        self.given[op.output] = self.place(op.output)

    def _lower_keep(self, op: Op) -> None:
        """Remember where a buffer lies that is looked at after the last op."""
        self.kept[op.inputs[0]] = self.regions[op.inputs[0]]

    def _lower_add(self, op: Op) -> None:
        x = op.inputs[0]
        done_too = self.fusion.into_add.get(op.inputs[1])
        if done_too is None:
            self._lower_rows(op, elementwise.add, x, op.inputs[1])
        elif done_too.kind == "mix":
            self._lower_mix(done_too, op)
        elif done_too.kind == "scale":
            a = self._lower_rows(op, elementwise.add_scaled, x, done_too.inputs[0])
            a["value"] = done_too.number("factor")
        else:
            a = self._lower_rows(op, elementwise.add_norm, x, done_too.inputs[0])
            a["norm"], a["value"] = self.vector(done_too.weights[0]), done_too.number("eps")

    def _lower_rms_norm(self, op: Op) -> None:
        assert not op.params["group"], "a norm over heads is read by attention only"
        a = self._lower_rows(op, elementwise.rms_norm, op.inputs[0])
        a["norm"], a["value"] = self.vector(op.weights[0]), op.number("eps")

    def _lower_layer_norm(self, op: Op) -> None:
        a = self._lower_rows(op, elementwise.layer_norm, op.inputs[0])
        a["norm"], a["value"] = self.vector(op.weights[0]), op.number("eps")
        if len(op.weights) > 1:
            a["bias"] = self.vector(op.weights[1])

    def _lower_gated(self, op: Op) -> None:
        self._lower_rows(op, _GATES[str(op.params["act"])], *op.inputs)

    def _lower_activate(self, op: Op) -> None:
        self._lower_rows(op, _ALONE[str(op.params["act"])], op.inputs[0])

    def _lower_sigmoid_gate(self, op: Op) -> None:
        self._lower_rows(op, elementwise.sigmoid_gate, *op.inputs)

    def _lower_scale(self, op: Op) -> None:
        self._lower_rows(op, elementwise.scale, op.inputs[0])["value"] = op.number("factor")

    def _lower_softcap(self, op: Op) -> None:
        self._lower_rows(op, elementwise.softcap, op.inputs[0])["value"] = op.number("cap")

    def _lower_select(self, op: Op) -> None:
        a = self._lower_rows(op, elementwise.select, op.inputs[0])
        a["rows"] = self.sources.step.outputs.ctypes.data

    def _lower_slice(self, op: Op) -> None:
        """Point into the source where the part needs no padding of its own, else copy it."""
        source, start = self.regions[op.inputs[0]], int(op.number("start"))
        if source.can_part(op.output.width):
            part = source.part(start, op.output.width)
            self.regions[op.output] = self.placed[op.output] = part
            return
        a = self._lower_rows(op, elementwise.cut, op.inputs[0], is_in_place=False)
        a["x"] += 4 * start

    def _lower_join_heads(self, op: Op) -> None:
        """Put heads together, or take them apart: `cut_heads` is a join of one part."""
        sources, out = [self.regions[buffer] for buffer in op.inputs], self.place(op.output)
        a = self.call(join.join, join.ARGS, {source.name for source in sources}, {out.name})
        a["n_rows"], a["n_heads"] = self.rows_word(op.output.axis), int(op.number("n_heads"))
        for name, buffer, source in zip("ab", op.inputs, sources, strict=False):
            n, start = int(op.number(f"{name}_heads")), int(op.number(f"{name}_start"))
            a[name], a[f"{name}_stride"] = source.address + 4 * start, source.stride
            a[f"{name}_head_nbytes"] = 4 * buffer.width // n if n > 1 else 0
            a[f"{name}_width"] = int(op.number(f"{name}_width"))
        a["out"], a["out_stride"] = out.address, out.stride

    _lower_cut_heads = _lower_join_heads

    def _lower_rows(
        self,
        op: Op,
        kernel: OpKernel,
        x: Buffer,
        y: Buffer | None = None,
        *,
        is_in_place: bool = True,
    ) -> np.void:
        """Lower a row-wise op; it writes over its first input where nothing else reads that."""
        source, other = self.regions[x], self.regions[y] if y else None
        same = is_in_place and op.output.axis == x.axis and self.uses[x] == 1
        out = self.place(op.output, like=x if same else None)
        reads = {source.name} | ({other.name} if other else set())
        a = self.call(kernel, elementwise.ARGS, reads, {out.name})
        a["n_rows"] = self.rows_word(op.output.axis)
        a["x"], a["x_stride"] = source.address, source.stride
        if other:
            a["y"], a["y_stride"] = other.address, other.stride
        a["out"], a["out_stride"] = out.address, out.stride
        a["width"], a["n_true"] = out.padded_width, op.output.width
        return a
