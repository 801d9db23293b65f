"""Lowering of embedding lookup, products with matrices and experts, and what they are staged by."""

from __future__ import annotations

import numpy as np

from quantcli.kernels import activations, embed, experts, matmul
from quantcli.kernels.matmul.rows import ARGS as MATMUL_ARGS
from quantcli.plan import Buffer, Op
from quantcli.runtime.executor import N_COUNTERS
from quantcli.runtime.fusion import PRODUCTS
from quantcli.runtime.lowering import Lowerer
from quantcli.runtime.staging import Split, Staged
from quantcli.runtime.weights import Matrix

_CHUNKS = 4  # of a thread's share of panels, so that others can help it finish
_TRANSFORMS = {
    "silu": activations.SILU,
    "gelu_tanh": activations.GELU_TANH,
    "swiglu_oai": activations.SWIGLU_OAI,
}
_ALONE = {
    "gelu_tanh": activations.GELU_TANH_ALONE,
    "relu_squared": activations.RELU_SQUARED,
}


def split_of(op: Op) -> Split:
    """Return by what a product's input is laid out: the routes to experts, or heads."""
    if op.kind == "expert_linear":
        return op.inputs[1]
    if op.kind == "head_linear":
        return int(op.number("n_heads")), int(op.number("start"))
    return None


class ProductLowerer(Lowerer):
    """Lowers products; see `lower.Lowering`."""

    def _lower_embed(self, op: Op) -> None:
        matrix = self.sources.weights.matrices[op.weights[0]]
        out = self.place(op.output)
        kernel = matmul.module(matrix.panel.name).embed
        a = self.call(kernel, embed.ARGS, set(), {out.name})
        a["n_rows"] = self.rows_word(op.output.axis)
        a["tokens"] = self.sources.step.tokens.ctypes.data
        a["weights"], a["panel_nbytes"] = matrix.address, matrix.panel_nbytes
        a["block_nbytes"], a["n_blocks"] = matrix.panel.block_nbytes, matrix.n_blocks
        a["block_inputs"] = matrix.panel.n_inputs
        a["out"], a["out_stride"] = out.address, out.stride
        a["scale"] = op.number("scale")

    def _lower_linear(self, op: Op) -> None:
        self._multiply(op, set())

    def _lower_expert_linear(self, op: Op) -> None:
        routes = self.routes[op.inputs[1].axis]
        a = self._multiply(op, {routes.name})
        routes.sort(a)
        a["is_shared"] = op.inputs[0].axis == op.inputs[1].axis

    def _multiply(self, op: Op, also_reads: set[str]) -> np.void:
        """Lower a product, which adds to what an add behind it would, in place where it can."""
        matrix = self.sources.weights.matrices[op.weights[0]]
        acts = self._stage(op, matrix.panel.is_float)
        add = self.fusion.residual_add(op)
        residual = add.inputs[0] if add else None
        in_place = residual in self.regions and self.uses[residual] == 1
        if in_place and add and residual:
            out = self.place(op.output, like=residual)
            self.regions[add.output] = self.placed[add.output] = out
            self.done.add(add.output)
        else:
            out = self.place(op.output)
        kernel = matmul.module(matrix.panel.name).matmul
        reads = {acts.name} | also_reads | ({out.name} if in_place else set())
        a = self.call(kernel, MATMUL_ARGS, reads, {out.name})
        a["out"], a["out_stride"], a["is_add"] = out.address, out.stride, in_place
        self._point_product(a, op, matrix, acts)
        return a

    def _lower_head_linear(self, op: Op) -> None:
        matrix = self.sources.weights.matrices[op.weights[0]]
        acts = self._stage(op, matrix.panel.is_float)
        out = self.place(op.output)
        kernel = matmul.module(matrix.panel.name).matmul
        a = self.call(kernel, MATMUL_ARGS, {acts.name}, {out.name})
        a["out"], a["out_stride"] = out.address, out.stride
        self._point_product(a, op, matrix, acts)
        a["n_heads"], a["out_head_nbytes"] = matrix.n_experts, 4 * matrix.n_out

    def _point_product(self, a: np.void, op: Op, matrix: Matrix, acts: Staged) -> None:
        """Tell a matmul op where its weights and activations lie, and how to share the work."""
        self.staging.point(a, acts, matrix.panel)
        a["n_rows"] = self.rows_word(op.output.axis)
        a["weights"], a["panel_nbytes"] = matrix.address, matrix.panel_nbytes
        a["n_panels"], a["n_blocks"] = matrix.n_panels, matrix.n_blocks
        if len(op.weights) > 1:
            bias = self.sources.weights.vectors[op.weights[1]]
            a["bias"] = bias.ctypes.data
            a["bias_stride"] = bias.strides[0] if bias.ndim > 1 else 0
        a["n_shares"] = min(self.sources.n_threads, N_COUNTERS)
        a["chunk"] = max(1, matrix.n_panels // (self.sources.n_threads * _CHUNKS))

    def _stage(self, op: Op, is_float: bool) -> Staged:
        """Stage a product's input, unless the product before it has; return where it lies."""
        source, split = op.inputs[0], split_of(op)
        known = self.staging.current(source, split, is_float)
        if known:
            return known
        readers = [
            self.sources.weights.matrices[reader.weights[0]]
            for reader in self.fusion.readers[source]
            if reader.kind in PRODUCTS and split_of(reader) == split
        ]
        routes = split if isinstance(split, Buffer) else None
        copies, n_in = 1, readers[0].n_in
        if routes and source.axis == routes.axis and op.routing:
            copies = op.routing.n_used
        elif isinstance(split, tuple):
            copies = split[0]
        panels = [matrix.panel for matrix in readers]
        is_head = self.ops is self.head
        acts = self.staging.begin(source, split, copies, n_in, is_float, panels, is_head)
        regions = [self.regions[root] for root in self.fusion.roots(source)]
        reads = {region.name for region in regions}
        if routes:
            reads.add(self.routes[routes.axis].name)
        a = self.call(activations.stage, activations.ARGS, reads, {acts.name})
        self.staging.describe(a, acts)
        a["n_rows"] = self.rows_word(source.axis)
        a["x"], a["x_stride"] = regions[0].address, regions[0].stride
        a["up"], a["up_stride"] = regions[-1].address, regions[-1].stride
        a["width"], a["n_true"] = acts.width, n_in
        if isinstance(split, tuple):
            n_heads, start = split
            a["n_heads"], a["head_nbytes"] = n_heads, 4 * source.width // n_heads
            a["x"] += 4 * start
        if routes:
            self.routes[routes.axis].sort(a)
            if source.axis == routes.axis:
                self.routes[routes.axis].gather(a)
        if source in self.fusion.staged:
            self._transform(a, self.fusion.producers[source])
        return acts

    def _transform(self, a: np.void, op: Op) -> None:
        """Tell a stage op what to do with rows before they are laid out."""
        if op.kind in ("rms_norm", "layer_norm"):
            is_rms = op.kind == "rms_norm"
            a["transform"] = activations.RMS_NORM if is_rms else activations.LAYER_NORM
            a["norm"], a["eps"] = self.vector(op.weights[0]), op.number("eps")
            if len(op.weights) > 1:
                a["bias"] = self.vector(op.weights[1])
            return
        if op.kind == "scale":
            a["transform"], a["factor"] = activations.SCALE, op.number("factor")
            return
        transforms = _TRANSFORMS if op.kind == "gated" else _ALONE
        a["transform"] = transforms[str(op.params["act"])]

    def _lower_route(self, op: Op) -> None:
        logits, routes = self.regions[op.inputs[0]], self.routes[op.output.axis]
        self.place(op.output)
        a = self.call(experts.route, experts.ROUTE_ARGS, {logits.name}, {routes.name})
        a["n_rows"] = self.rows_word(op.output.axis)
        a["logits"], a["logits_stride"] = logits.address, logits.stride
        if op.weights:
            a["bias"] = self.vector(op.weights[0])
        routes.write(a, op)

    def _lower_mix(self, op: Op, add: Op | None = None) -> None:
        """Add entries up, with an `add` onto the buffer that it adds them to."""
        x, routes = self.regions[op.inputs[0]], self.routes[op.inputs[1].axis]
        base = add.inputs[0] if add else None
        is_last = base is not None and self.uses[base] == 1
        reads = {x.name, routes.name} | ({self.regions[base].name} if base else set())
        onto = self.regions[base] if base else None
        out = self.place(add.output if add else op.output, like=base if is_last else None)
        a = self.call(experts.mix, experts.MIX_ARGS, reads, {out.name})
        if onto:
            a["base"], a["base_stride"] = onto.address, onto.stride
        a["n_rows"] = self.rows_word(op.output.axis)
        a["x"], a["x_stride"] = x.address, x.stride
        a["out"], a["out_stride"], a["width"] = out.address, out.stride, out.padded_width
        routes.add_up(a, op)
