"""The plan: a model's forward pass as a list of named ops over named buffers. Data, no arithmetic.

An architecture builds a plan; `inspect` prints it, the NumPy reference runs it, `lower` turns it
into addresses for the compiled executor, and the quantizers read from it which weights share an
input. Each op writes a new buffer (single assignment), so who feeds whom is never in doubt.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from quantcli.errors import ShapeError

Param = int | float | str | bool | None

TOKENS = "tokens"  # one row for each token of a step
OUTPUTS = "outputs"  # one row for each token whose logits are wanted
# One row for each expert that each row of an axis goes to; in which order is the executor's choice.
ENTRIES = {TOKENS: "token entries", OUTPUTS: "output entries"}


@dataclass(frozen=True, slots=True)
class Buffer:
    """A value between two ops: f32 (rows, width), where `axis` names the rows."""

    name: str
    width: int
    axis: str = TOKENS


@dataclass(frozen=True, slots=True)
class Rope:
    """Rotary position embedding of one kind of layer.

    style            "norm" rotates pairs (2i, 2i+1), "neox" pairs (i, i + n_rot/2)
    n_rot            leading dimensions of a head that rotate, even
    freq_base        theta_i = position * freq_base ** (-2i / n_rot) / factor_i
    scaling          "none", "linear" or "yarn"
    factor           scaling factor (linear, yarn)
    original_context context the model was trained with before scaling (yarn)
    ext_factor, attn_factor, beta_fast, beta_slow   yarn's parameters
    log_mul          yarn's magnitude is divided by 0.1 log_mul ln(factor) + 1; 0: it is not
    freq_factors     name of the tensor with factor_i (llama3's rope_freqs), or None
    long_factors     the same for contexts beyond original_context (longrope), or None
    start            first dimension of a head that rotates
    """

    style: str
    n_rot: int
    freq_base: float
    scaling: str = "none"
    factor: float = 1.0
    original_context: int = 0
    ext_factor: float = 0.0
    attn_factor: float = 1.0
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    log_mul: float = 0.0
    freq_factors: str | None = None
    long_factors: str | None = None
    start: int = 0


@dataclass(frozen=True, slots=True)
class Heads:
    """The shape and rule of one attention.

    n_heads, n_kv_heads, head_dim   query heads, key/value heads (a divisor), width of one
    scale     factor on q . k
    window    keys a query sees, itself included; 0 means all
    softcap   cap * tanh(score / cap) before the softmax; 0 means none
    sinks     name of the tensor with one extra logit a head, or None
    temperature, temperature_length   q grows with its position by 1 + temperature * ln(1 +
              floor(position / temperature_length)); 0 means it does not
    """

    n_heads: int
    n_kv_heads: int
    head_dim: int
    scale: float
    window: int = 0
    softcap: float = 0.0
    sinks: str | None = None
    temperature: float = 0.0
    temperature_length: int = 1


@dataclass(frozen=True, slots=True)
class Routing:
    """How a row chooses experts: the best scores, ties to the lower expert, in falling order.

    n_experts, n_used   experts there are, and that a row goes to
    score       "softmax" over all experts, "sigmoid" of each, or "softmax_of_chosen": over the
                chosen ones, which the logits themselves choose
    bias        name of a tensor added to scores for choosing only, or None
    normalize   whether the weights of the chosen are divided by their sum
    scale       factor on weights
    """

    n_experts: int
    n_used: int
    score: str = "softmax"
    bias: str | None = None
    normalize: bool = True
    scale: float = 1.0


@dataclass(frozen=True, slots=True)
class Op:
    """One entry of a plan.

    kind     a key of SIGNATURES
    inputs   buffers it reads
    output   the buffer it writes
    weights  tensor names it reads, in the order of its kind's signature
    params   its numbers, by name
    layer    the transformer layer it belongs to, or None
    rope, heads, routing   set for the kinds that need them
    """

    kind: str
    inputs: tuple[Buffer, ...]
    output: Buffer
    weights: tuple[str, ...] = ()
    params: dict[str, Param] = field(default_factory=dict)
    layer: int | None = None
    rope: Rope | None = None
    heads: Heads | None = None
    routing: Routing | None = None

    def number(self, name: str) -> float:
        """Return a numeric parameter."""
        value = self.params[name]
        assert isinstance(value, int | float), (self.kind, name, value)
        return float(value)


# kind: (number of input buffers, what it does)
SIGNATURES = {
    "embed": (0, "rows of a matrix chosen by token id, times `scale`"),
    "rms_norm": (1, "x / rms(x) * weight, over the row or over each head of `group` values"),
    "layer_norm": (1, "(x - mean) / deviation * weight (+ bias)"),
    "linear": (1, "x W^T (+ bias)"),
    "slice": (1, "`width` values of each row, from `start` on"),
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
        kv_width = heads.n_kv_heads * heads.head_dim
        if (q.width, k.width, v.width) != (q_width, kv_width, kv_width):
            raise ShapeError(
                f"attention: q, k, v are {q.width}, {k.width}, {v.width} wide; "
                f"{heads.n_heads} and {heads.n_kv_heads} heads of {heads.head_dim} need "
                f"{q_width}, {kv_width}, {kv_width}."
            )
        if heads.n_heads % heads.n_kv_heads:
            raise ShapeError(f"{heads.n_kv_heads} kv heads do not divide {heads.n_heads} heads.")
        if heads.sinks:
            self._weight(heads.sinks, (heads.n_heads,))
        return self._append("attention", (q, k, v), "attn", q_width, (), {}, heads=heads)

    def gated(self, gate: Buffer, up: Buffer, act: str) -> Buffer:
        """Multiply `up` by the activation of `gate`."""
        self._same("gated", gate, up)
        if act not in ACTIVATIONS:
            raise ShapeError(f"gated: no activation {act!r}; known: {', '.join(ACTIVATIONS)}.")
        return self._append("gated", (gate, up), "ff", gate.width, (), {"act": act})

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
