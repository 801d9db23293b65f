"""The plan in NumPy, one small function an op: the oracle, and `--backend reference`.

Everything is f32 and plain; nothing here is shared with the compiled kernels, so that a misreading
in one does not hide in the other.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from quantcli.errors import ResourceError
from quantcli.formats import F32
from quantcli.plan import Buffer, Op, Plan
from quantcli.runtime import reference_experts as experts
from quantcli.runtime.decoded import I64, DecodedWeights, Weights
from quantcli.runtime.reference_activations import ACTS, PLAIN_ACTS, swiglu_oai
from quantcli.runtime.reference_rounding import KV_ROUNDING, round_activations
from quantcli.runtime.rope_tables import factors_of, rope_angles, temperatures

KV_TYPES = ("f32", "f16", "q8_0")
ACTIVATIONS = ("f32", "q8")


class ReferenceExecutor:
    """Runs a plan step by step, with keys and values of any number of sequences."""

    def __init__(
        self,
        plan: Plan,
        weights: Weights,
        *,
        context: int,
        kv_type: str = "f32",
        activation: str = "f32",
        cache_nbytes: int = 1 << 30,
    ) -> None:
        """Prepare to run a plan; weights are fetched when first needed.

        weights       returns a tensor by name: `Checkpoint.tensor`, or f32 arrays
        context       longest sequence
        kv_type       what keys and values are rounded to: f32 (not at all), f16 or q8_0
        activation    "q8" rounds the input of quantized matrices as the compiled kernels do
        cache_nbytes  decoded weights to keep
        """
        assert kv_type in KV_TYPES, kv_type
        assert activation in ACTIVATIONS, activation
        self.plan = plan
        self.context = context
        self.activation = activation
        self.weights = DecodedWeights(plan, weights, cache_nbytes)
        self._round_kv = KV_ROUNDING[kv_type]
        self._dying = _dying_buffers(plan)
        self._kv: dict[tuple[int, int], _KV] = {}  # by (index of the op, sequence)

    def forward(
        self,
        tokens: Sequence[int],
        positions: Sequence[int],
        sequences: Sequence[int],
        outputs: Sequence[int],
        *,
        until: Buffer | None = None,
    ) -> F32:
        """Run one step: a row for each token, at a position of a sequence.

        outputs  rows whose logits are wanted
        until    stop at this buffer and return it instead
        return   f32 (len(outputs), n_vocab)

        A sequence's positions must follow what it holds, or overwrite its end after `truncate`.
        Raises ResourceError for a position at or beyond the context.
        """
        if len(positions) and max(positions) >= self.context:
            raise ResourceError(
                f"position {max(positions)} does not fit a context of {self.context} tokens; "
                "raise it with --ctx."
            )
        step = _Step(
            executor=self,
            tokens=np.asarray(tokens, np.int64),
            positions=np.asarray(positions, np.int64),
            sequences=np.asarray(sequences, np.int64),
            outputs=np.asarray(outputs, np.int64),
        )
        with np.errstate(all="ignore"):  # weights may overflow; who reads the logits checks them
            for index, op in enumerate(self.plan.ops):
                step.index = index
                inputs = [step.values[buffer] for buffer in op.inputs]
                step.values[op.output] = _OPS[op.kind](step, op, *inputs)
                if op.output == until:
                    return step.values[op.output]
                for buffer in self._dying[index]:
                    del step.values[buffer]
        return step.values[self.plan.logits]

    def truncate(self, sequence: int, n_tokens: int) -> None:
        """Forget a sequence's keys and values from position n_tokens on."""
        for (_, held), kv in self._kv.items():
            if held == sequence:
                kv.length = min(kv.length, n_tokens)

    def free(self, sequence: int) -> None:
        """Forget a sequence."""
        for key in [key for key in self._kv if key[1] == sequence]:
            del self._kv[key]

    def store(self, index: int, sequence: int, positions: I64, k: F32, v: F32) -> _KV:
        """Put keys and values (rows, n_kv_heads, head_dim) into a sequence's cache of one op."""
        kv = self._kv.setdefault((index, sequence), _KV(k.shape[1:], v.shape[1:]))
        kv.put(positions, self._round_kv(k), self._round_kv(v))
        return kv


@dataclass
class _Step:
    """One call of `forward`: its rows, and the buffers that are still to be read."""

    executor: ReferenceExecutor
    tokens: I64
    positions: I64
    sequences: I64
    outputs: I64
    values: dict[Buffer, F32] = field(default_factory=dict)
    index: int = 0  # of the op that runs


def _dying_buffers(plan: Plan) -> list[set[Buffer]]:
    """Return for each op the buffers that no later op reads."""
    last = {plan.logits: len(plan.ops)}
    for index, op in enumerate(plan.ops):
        last |= {buffer: index for buffer in op.inputs}
    dying: list[set[Buffer]] = [set() for _ in plan.ops]
    for buffer, index in last.items():
        if index < len(plan.ops):
            dying[index].add(buffer)
    return dying


class _KV:
    """Keys and values of one sequence in one attention, by position."""

    def __init__(self, k_shape: tuple[int, ...], v_shape: tuple[int, ...]) -> None:
        self.length = 0
        self.k: F32 = np.zeros((0, *k_shape), np.float32)  # (capacity, n_kv_heads, head_dim)
        self.v: F32 = np.zeros((0, *v_shape), np.float32)

    def put(self, positions: I64, k: F32, v: F32) -> None:
        stop = int(positions.max()) + 1
        assert int(positions.min()) <= self.length, (positions, self.length)
        if stop > len(self.k):
            more = max(stop, 2 * len(self.k)) - len(self.k)
            self.k, self.v = (
                np.concatenate([held, np.zeros((more, *new.shape[1:]), np.float32)])
                for held, new in ((self.k, k), (self.v, v))
            )
        self.k[positions], self.v[positions] = k, v
        self.length = max(self.length, stop)


def _embed(step: _Step, op: Op) -> F32:
    rows = step.executor.weights.rows(op.weights[0], step.tokens)
    return rows * np.float32(op.params["scale"])


def _rms_norm(step: _Step, op: Op, x: F32) -> F32:
    weight = step.executor.weights.array(op.weights[0])
    groups = x.reshape(len(x), x.shape[1] // len(weight), len(weight))
    mean = np.mean(np.square(groups, dtype=np.float64), axis=-1, keepdims=True)
    scale = (1.0 / np.sqrt(mean + float(op.params["eps"] or 0.0))).astype(np.float32)
    y: F32 = (groups * scale * weight).reshape(x.shape)
    return y


def _layer_norm(step: _Step, op: Op, x: F32) -> F32:
    weights = [step.executor.weights.array(name) for name in op.weights]
    wide = x.astype(np.float64)
    centred = wide - wide.mean(axis=-1, keepdims=True)
    deviation = np.sqrt(np.mean(centred * centred, axis=-1, keepdims=True) + op.number("eps"))
    y: F32 = (centred / deviation).astype(np.float32) * weights[0]
    return y + weights[1] if len(weights) > 1 else y


def _linear(step: _Step, op: Op, x: F32) -> F32:
    weights = step.executor.weights
    if step.executor.activation == "q8" and weights.is_quantized(op.weights[0]):
        x = round_activations(x)
    parts = [x @ chunk.T for chunk in weights.chunks(op.weights[0])]
    y = parts[0] if len(parts) == 1 else np.concatenate(parts, axis=1)
    return y + weights.array(op.weights[1]) if len(op.weights) > 1 else y


def _head_linear(step: _Step, op: Op, x: F32) -> F32:
    weights, name = step.executor.weights, op.weights[0]
    n_heads, start = int(op.number("n_heads")), int(op.number("start"))
    heads = x.reshape(len(x), n_heads, -1)
    parts = []
    for head in range(n_heads):
        matrix = weights.expert(name, head)
        part = np.ascontiguousarray(heads[:, head, start : start + matrix.shape[1]])
        if step.executor.activation == "q8" and weights.is_quantized(name):
            part = round_activations(part)
        parts.append(part @ matrix.T)
    return np.concatenate(parts, axis=1)


def _join_heads(step: _Step, op: Op, *sources: F32) -> F32:
    n_rows, n_heads = len(sources[0]), int(op.number("n_heads"))
    parts = []
    for name, x in zip("ab", sources, strict=False):
        start = int(op.number(f"{name}_start"))
        heads = x.reshape(n_rows, int(op.number(f"{name}_heads")), -1)
        part = heads[:, :, start : start + int(op.number(f"{name}_width"))]
        parts.append(np.broadcast_to(part, (n_rows, n_heads, part.shape[2])))
    return np.concatenate(parts, axis=2).reshape(n_rows, -1)


def _rope(step: _Step, op: Op, x: F32) -> F32:
    rope = op.rope
    assert rope is not None
    name = factors_of(rope, step.executor.context)
    factors = step.executor.weights.array(name) if name else None
    cos, sin = (t[:, None, :] for t in rope_angles(rope, factors, step.positions))
    heads = x.reshape(len(x), -1, int(op.params["head_dim"] or 0)).copy()
    start, stop = rope.start, rope.start + rope.n_rot
    if rope.style == "norm":
        first, second = slice(start, stop, 2), slice(start + 1, stop, 2)
    else:
        half = start + rope.n_rot // 2
        first, second = slice(start, half), slice(half, stop)
    a, b = heads[:, :, first].copy(), heads[:, :, second].copy()
    heads[:, :, first] = a * cos - b * sin
    heads[:, :, second] = a * sin + b * cos
    return heads.reshape(x.shape)


def _attention(step: _Step, op: Op, q: F32, k: F32, v: F32) -> F32:
    heads = op.heads
    assert heads is not None
    out = np.empty((len(q), op.output.width), np.float32)
    for sequence in np.unique(step.sequences).tolist():
        rows = np.flatnonzero(step.sequences == sequence)
        shape = (len(rows), -1, heads.head_dim)
        positions = step.positions[rows]
        values = v[rows].reshape(len(rows), heads.n_kv_heads, -1)
        kv = step.executor.store(step.index, sequence, positions, k[rows].reshape(shape), values)
        start = max(0, int(positions.min()) - heads.window + 1) if heads.window else 0
        stop = int(positions.max()) + 1
        keys = np.arange(start, stop)
        seen = keys <= positions[:, None]
        if heads.window:
            seen &= keys > positions[:, None] - heads.window
        sinks = step.executor.weights.array(heads.sinks) if heads.sinks else None
        group = heads.n_heads // heads.n_kv_heads
        rows_q = q[rows].reshape(shape)
        if heads.temperature:
            rows_q *= temperatures(heads, positions)[:, None, None]
        result = np.empty((len(rows), heads.n_heads, heads.value_width), np.float32)
        for head in range(heads.n_heads):
            scores = rows_q[:, head] @ kv.k[start:stop, head // group].T * np.float32(heads.scale)
            if heads.softcap:
                scores = _capped(scores, heads.softcap)
            scores[~seen] = -np.inf
            share = _softmax(scores, None if sinks is None else float(sinks[head]))
            result[:, head] = share @ kv.v[start:stop, head // group]
        out[rows] = result.reshape(len(rows), -1)
    return out


def _gated(step: _Step, op: Op, gate: F32, up: F32) -> F32:
    act = str(op.params["act"])
    if act == "swiglu_oai":
        return swiglu_oai(gate, up)
    return ACTS[act](gate) * up


def _activate(step: _Step, op: Op, x: F32) -> F32:
    return PLAIN_ACTS[str(op.params["act"])](x)


def _slice(step: _Step, op: Op, x: F32) -> F32:
    start = int(op.number("start"))
    part: F32 = x[:, start : start + op.output.width]
    return part


def _route(step: _Step, op: Op, logits: F32) -> F32:
    assert op.routing is not None
    bias = step.executor.weights.array(op.weights[0]) if op.weights else None
    return experts.choose(logits, op.routing, bias)


def _expert_linear(step: _Step, op: Op, x: F32, routes: F32) -> F32:
    assert op.routing is not None
    weights, name = step.executor.weights, op.weights[0]
    if step.executor.activation == "q8" and weights.is_quantized(name):
        x = round_activations(x)
    chosen = experts.experts_of(routes, op.routing)
    if len(x) != len(chosen):
        x = np.repeat(x, op.routing.n_used, axis=0)
    y = experts.multiply(x, chosen, op.output.width, lambda e: weights.expert(name, e))
    return y + weights.array(op.weights[1])[chosen] if len(op.weights) > 1 else y


def _mix(step: _Step, op: Op, x: F32, routes: F32) -> F32:
    assert op.routing is not None
    return experts.mix(x, routes, op.routing)


def _sigmoid_gate(step: _Step, op: Op, x: F32, gate: F32) -> F32:
    y: F32 = np.divide(x, 1.0 + np.exp(-gate))
    return y


def _add(step: _Step, op: Op, x: F32, y: F32) -> F32:
    return x + y


def _scale(step: _Step, op: Op, x: F32) -> F32:
    return x * np.float32(op.params["factor"])


def _select(step: _Step, op: Op, x: F32) -> F32:
    return x[step.outputs]


def _softcap(step: _Step, op: Op, x: F32) -> F32:
    return _capped(x, float(op.params["cap"] or 0.0))


_OPS: dict[str, Callable[..., F32]] = {
    "embed": _embed,
    "rms_norm": _rms_norm,
    "layer_norm": _layer_norm,
    "linear": _linear,
    "slice": _slice,
    "head_linear": _head_linear,
    "join_heads": _join_heads,
    "cut_heads": _join_heads,
    "rope": _rope,
    "attention": _attention,
    "gated": _gated,
    "activate": _activate,
    "route": _route,
    "expert_linear": _expert_linear,
    "mix": _mix,
    "sigmoid_gate": _sigmoid_gate,
    "add": _add,
    "scale": _scale,
    "select": _select,
    "softcap": _softcap,
}


def _capped(x: F32, cap: float) -> F32:
    y: F32 = np.float32(cap) * np.tanh(x / np.float32(cap))
    return y


def _softmax(scores: F32, sink: float | None) -> F32:
    """Return the softmax of each row, with one more logit that takes its share and is dropped."""
    top = scores.max(axis=-1, keepdims=True)
    if sink is not None:
        top = np.maximum(top, np.float32(sink))
    e = np.exp(scores - top)
    total = e.sum(axis=-1, keepdims=True)
    if sink is not None:
        total = total + np.exp(np.float32(sink) - top)
    share: F32 = e / total
    return share
