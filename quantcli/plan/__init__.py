"""The plan: a model's forward pass as a list of named ops over named buffers. Data, no arithmetic.

An architecture builds a plan; `inspect` prints it, the NumPy reference runs it, `lower` turns it
into addresses for the compiled executor, and the quantizers read from it which weights share an
input. Each op writes a new buffer (single assignment), so who feeds whom is never in doubt.
"""

from __future__ import annotations

from collections.abc import Iterable

from quantcli.errors import ShapeError
from quantcli.plan.parts import ENTRIES, OUTPUTS, TOKENS, Buffer, Heads, Op, Param, Rope, Routing

__all__ = [
    "ACTIVATIONS",
    "ENTRIES",
    "OUTPUTS",
    "PLAIN_ACTIVATIONS",
    "SCORES",
    "SIGNATURES",
    "TOKENS",
    "Buffer",
    "Heads",
    "Op",
    "Param",
    "Plan",
    "Rope",
    "Routing",
]

# kind: (number of input buffers, what it does)
SIGNATURES = {
    "embed": (0, "rows of a matrix chosen by token id, times `scale`"),
    "rms_norm": (1, "x / rms(x) * weight, over the row or over each head of `group` values"),
    "layer_norm": (1, "(x - mean) / deviation * weight (+ bias)"),
    "linear": (1, "x W^T (+ bias)"),
    "slice": (1, "`width` values of each row, from `start` on"),
    "head_linear": (1, "x_h W_h^T of each head, from the value `start` of it on"),
    "join_heads": (2, "parts of each head of two buffers side by side"),
    "cut_heads": (1, "a part of each head"),
    "rope": (1, "rotate each head by its position"),
    "attention": (3, "store k and v, then softmax(q k^T) v over the sequence's cache"),
    "gated": (2, "act(gate) * up"),
    "activate": (1, "act(x)"),
    "route": (1, "the experts each row goes to, best first, and their weights"),
    "expert_linear": (2, "x W_e^T (+ bias_e) for each row and each expert e it goes to"),
    "mix": (2, "sum of a row's entries by their weights, best expert first"),
    "sigmoid_gate": (2, "x * sigmoid(gate), one gate a row"),
    "add": (2, "x + y"),
    "scale": (1, "x * factor"),
    "select": (1, "keep the rows whose logits are wanted"),
    "softcap": (1, "cap * tanh(x / cap)"),
}
ACTIVATIONS = ("silu", "gelu_tanh", "swiglu_oai")  # of a gate
PLAIN_ACTIVATIONS = ("gelu_tanh", "relu_squared")  # without one
SCORES = ("softmax", "sigmoid", "softmax_of_chosen")


class Plan:
    """A growing list of ops. Each builder method appends one and returns the buffer it writes."""

    def __init__(self) -> None:
        """Start empty."""
        self.ops: list[Op] = []
        self.weights: dict[str, tuple[int, ...]] = {}
        self.layer: int | None = None
        self._names: dict[str, int] = {}

    @property
    def logits(self) -> Buffer:
        """The last buffer: f32 (outputs, n_vocab)."""
        return self.ops[-1].output

    def emptied(self) -> Plan:
        """Return a plan without ops yet, which knows this one's weights and the names in use."""
        plan = Plan()
        plan.weights, plan._names = dict(self.weights), dict(self._names)
        return plan

    def embed(self, weight: str, n_vocab: int, width: int, scale: float = 1.0) -> Buffer:
        """Look the step's tokens up in a matrix (n_vocab, width)."""
        self._weight(weight, (n_vocab, width))
        return self._append("embed", (), "x", width, (weight,), {"scale": scale})

    def rms_norm(self, x: Buffer, weight: str, eps: float, group: int = 0) -> Buffer:
        """Normalise rows, or with `group` each run of that many values with one shared weight."""
        self._weight(weight, (group or x.width,))
        if group and x.width % group:
            raise ShapeError(f"{weight}: groups of {group} do not divide a row of {x.width}.")
        return self._append("rms_norm", (x,), "h", x.width, (weight,), {"eps": eps, "group": group})

    def layer_norm(self, x: Buffer, weight: str, eps: float, bias: str | None = None) -> Buffer:
        """Centre and normalise rows."""
        self._weight(weight, (x.width,))
        if bias:
            self._weight(bias, (x.width,))
        weights = (weight, bias) if bias else (weight,)
        return self._append("layer_norm", (x,), "h", x.width, weights, {"eps": eps})

    def linear(self, x: Buffer, weight: str, n_out: int, bias: str | None = None) -> Buffer:
        """Multiply by a matrix (n_out, x.width). Linears of one buffer share their input."""
        self._weight(weight, (n_out, x.width))
        if bias:
            self._weight(bias, (n_out,))
        short = weight.removesuffix(".weight").rsplit(".", 1)[-1]
        return self._append("linear", (x,), short, n_out, (weight, bias) if bias else (weight,))

    def slice(self, x: Buffer, name: str, start: int, width: int) -> Buffer:
        """Take some of the values of each row, to be called `name`."""
        assert 0 <= start < start + width <= x.width, (x, start, width)
        return self._append("slice", (x,), name, width, (), {"start": start, "width": width})

    def rope(self, x: Buffer, rope: Rope, head_dim: int) -> Buffer:
        """Rotate each head of `head_dim` values."""
        fits = 0 < rope.n_rot <= head_dim - rope.start
        if rope.n_rot % 2 or not fits or x.width % head_dim:
            raise ShapeError(
                f"rope: {rope.n_rot} rotated dimensions do not fit heads of {head_dim} "
                f"in a row of {x.width}; an even number up to the head's width does."
            )
        for factors in (rope.freq_factors, rope.long_factors):
            if factors:
                self._weight(factors, (rope.n_rot // 2,))
        return self._append("rope", (x,), x.name, x.width, (), {"head_dim": head_dim}, rope=rope)

    def attention(self, q: Buffer, k: Buffer, v: Buffer, heads: Heads) -> Buffer:
        """Attend over the sequence, this step's rows included."""
        q_width = heads.n_heads * heads.head_dim
        k_width = heads.n_kv_heads * heads.head_dim
        v_width = heads.n_kv_heads * heads.value_width
        if (q.width, k.width, v.width) != (q_width, k_width, v_width):
            raise ShapeError(
                f"attention: q, k, v are {q.width}, {k.width}, {v.width} wide; "
                f"{heads.n_heads} and {heads.n_kv_heads} heads of {heads.head_dim} need "
                f"{q_width}, {k_width}, {v_width}."
            )
        if heads.value_width > heads.head_dim:
            raise ShapeError(
                f"attention: values are {heads.value_width} wide, but keys {heads.head_dim}; only "
                "values up to the width of keys are supported."
            )
        if heads.n_heads % heads.n_kv_heads:
            raise ShapeError(f"{heads.n_kv_heads} kv heads do not divide {heads.n_heads} heads.")
        if heads.sinks:
            self._weight(heads.sinks, (heads.n_heads,))
        width = heads.n_heads * heads.value_width
        return self._append("attention", (q, k, v), "attn", width, (), {}, heads=heads)

    def gated(self, gate: Buffer, up: Buffer, act: str) -> Buffer:
        """Multiply `up` by the activation of `gate`."""
        self._same("gated", gate, up)
        if act not in ACTIVATIONS:
            raise ShapeError(f"gated: no activation {act!r}; known: {', '.join(ACTIVATIONS)}.")
        return self._append("gated", (gate, up), "ff", gate.width, (), {"act": act})

    def head_linear(
        self, x: Buffer, weight: str, n_heads: int, n_in: int, n_out: int, start: int = 0
    ) -> Buffer:
        """Multiply n_in values of each head by a matrix of its own."""
        width = x.width // n_heads
        if x.width % n_heads or start + n_in > width or n_in % 32 or n_out % 16:
            raise ShapeError(
                f"{weight}: heads of {width} values times matrices of {n_out} x {n_in} are not "
                "supported; only multiples of 16 x 32 are."
            )
        self._weight(weight, (n_heads, n_out, n_in))
        params: dict[str, Param] = {"n_heads": n_heads, "start": start}
        return self._append("head_linear", (x,), "heads", n_heads * n_out, (weight,), params)

    def join_heads(self, a: Buffer, b: Buffer, n_heads: int, *cuts: tuple[int, int, int]) -> Buffer:
        """Put a part of each head of `a` before a part of each of `b`.

        cuts   for a, then b: how many heads it has (1: all take the same), first value, values
        """
        params: dict[str, Param] = {"n_heads": n_heads}
        for name, (n, start, width) in zip("ab", cuts, strict=True):
            params |= {f"{name}_heads": n, f"{name}_start": start, f"{name}_width": width}
        width = n_heads * sum(cut[2] for cut in cuts)
        return self._append("join_heads", (a, b), "heads", width, (), params)

    def cut_heads(self, x: Buffer, n_heads: int, start: int, width: int) -> Buffer:
        """Take a part of each head."""
        params: dict[str, Param] = {"n_heads": n_heads, "a_heads": n_heads}
        params |= {"a_start": start, "a_width": width}
        return self._append("cut_heads", (x,), "heads", n_heads * width, (), params)

    def activate(self, x: Buffer, act: str) -> Buffer:
        """Apply an activation to every value."""
        if act not in PLAIN_ACTIVATIONS:
            raise ShapeError(
                f"activate: no activation {act!r}; known: {', '.join(PLAIN_ACTIVATIONS)}."
            )
        return self._append("activate", (x,), "ff", x.width, (), {"act": act})

    def route(self, logits: Buffer, routing: Routing) -> Buffer:
        """Choose experts by one logit each; a row is their ids, then their weights."""
        assert routing.score in SCORES, routing
        if logits.width != routing.n_experts or not 0 < routing.n_used <= routing.n_experts:
            raise ShapeError(
                f"route: {routing.n_used} of {routing.n_experts} experts cannot be chosen by "
                f"{logits.width} logits."
            )
        if routing.bias:
            self._weight(routing.bias, (routing.n_experts,))
        weights = (routing.bias,) if routing.bias else ()
        width = 2 * routing.n_used
        return self._append("route", (logits,), "routes", width, weights, {}, routing=routing)

    def expert_linear(
        self, x: Buffer, routes: Buffer, weight: str, n_out: int, bias: str | None = None
    ) -> Buffer:
        """Multiply rows, or entries of an expert_linear before, by their experts' matrices."""
        routing = self._producer(routes).routing
        assert routing is not None, routes
        entries = ENTRIES[routes.axis]
        assert x.axis in (routes.axis, entries), (x, routes)
        self._weight(weight, (routing.n_experts, n_out, x.width))
        if bias:
            self._weight(bias, (routing.n_experts, n_out))
        short = weight.removesuffix(".weight").rsplit(".", 1)[-1]
        weights = (weight, bias) if bias else (weight,)
        return self._append(
            "expert_linear", (x, routes), short, n_out, weights, axis=entries, routing=routing
        )

    def mix(self, x: Buffer, routes: Buffer) -> Buffer:
        """Add up each row's entries by the weights it was routed with."""
        assert x.axis == ENTRIES[routes.axis], (x, routes)
        routing = self._producer(routes).routing
        return self._append("mix", (x, routes), "mixed", x.width, axis=routes.axis, routing=routing)

    def sigmoid_gate(self, x: Buffer, gate: Buffer) -> Buffer:
        """Multiply each row by the sigmoid of its one gate."""
        assert gate.width == 1, gate
        assert gate.axis == x.axis, (x, gate)
        return self._append("sigmoid_gate", (x, gate), x.name, x.width)

    def add(self, x: Buffer, y: Buffer) -> Buffer:
        """Add two buffers; `x` is the residual stream where there is one."""
        self._same("add", x, y)
        return self._append("add", (x, y), x.name, x.width)

    def scale(self, x: Buffer, factor: float) -> Buffer:
        """Multiply by a number."""
        return self._append("scale", (x,), x.name, x.width, (), {"factor": factor})

    def select(self, x: Buffer) -> Buffer:
        """Keep only the rows whose logits are wanted."""
        return self._append("select", (x,), x.name, x.width, axis=OUTPUTS)

    def softcap(self, x: Buffer, cap: float) -> Buffer:
        """Squash values into (-cap, cap)."""
        return self._append("softcap", (x,), x.name, x.width, (), {"cap": cap})

    def readers(self, buffer: Buffer) -> list[Op]:
        """Return the ops that read a buffer, in order."""
        return [op for op in self.ops if buffer in op.inputs]

    def verify(self) -> None:
        """Check that every op is known, reads only what was written before, and writes once."""
        written: set[Buffer] = set()
        for op in self.ops:
            assert op.kind in SIGNATURES, op.kind
            n_inputs = SIGNATURES[op.kind][0]
            assert len(op.inputs) == n_inputs, (op.kind, len(op.inputs), n_inputs)
            missing = [b.name for b in op.inputs if b not in written]
            assert not missing, (op.kind, missing)
            assert op.output not in written, op.output
            written.add(op.output)
        assert self.ops[-1].output.axis == OUTPUTS, self.ops[-1]

    def lines(self) -> Iterable[str]:
        """Yield one line an op, for people."""
        for op in self.ops:
            reads = ", ".join([b.name for b in op.inputs] + list(op.weights))
            params = "".join(f" {k}={v}" for k, v in op.params.items() if v)
            yield f"{op.output.name} [{op.output.width}] = {op.kind}({reads}){params}"

    def _append(
        self,
        kind: str,
        inputs: tuple[Buffer, ...],
        name: str,
        width: int,
        weights: tuple[str, ...] = (),
        params: dict[str, Param] | None = None,
        *,
        axis: str | None = None,
        rope: Rope | None = None,
        heads: Heads | None = None,
        routing: Routing | None = None,
    ) -> Buffer:
        axis = axis or (inputs[0].axis if inputs else TOKENS)
        output = Buffer(self._fresh(name), width, axis)
        op = Op(kind, inputs, output, weights, params or {}, self.layer, rope, heads, routing)
        self.ops.append(op)
        return output

    def _producer(self, buffer: Buffer) -> Op:
        return next(op for op in reversed(self.ops) if op.output == buffer)

    def _fresh(self, name: str) -> str:
        base = name.split("#", 1)[0]
        self._names[base] = self._names.get(base, 0) + 1
        return f"{base}#{self._names[base]}"

    def _weight(self, name: str, shape: tuple[int, ...]) -> None:
        known = self.weights.setdefault(name, shape)
        if known != shape:
            raise ShapeError(f"{name}: used as {known} and as {shape}.")

    @staticmethod
    def _same(kind: str, x: Buffer, y: Buffer) -> None:
        if (x.width, x.axis) != (y.width, y.axis):
            raise ShapeError(f"{kind}: {x.name} is {x.width} wide, {y.name} is {y.width}.")
