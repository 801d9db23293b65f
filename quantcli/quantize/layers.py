"""Calibration tokens on their way through a model, a layer at a time, in bounded memory.

Between the ops where tokens are held, `runtime.stretch` runs them again from what is held, with
the weights as they are by then: quantized ones once they are put, so that each matrix sees the
inputs it will see in the finished file.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from types import TracebackType

import numpy as np

from quantcli.checkpoint import Checkpoint
from quantcli.formats import F32
from quantcli.plan import Buffer, Op, Plan
from quantcli.qtensor import QTensor
from quantcli.quantize import Needs, State, Statistics
from quantcli.quantize.statistics import Moments
from quantcli.runtime.executor import Executor
from quantcli.runtime.stretch import Stretch, all_rows, inputs_of
from quantcli.runtime.threads import default_threads

Progress = Callable[[str, int, int], None]
Values = dict[Buffer, F32]  # f32 (tokens of all chunks, width)

# Activations held between two matrices; what is wider is computed again from further up.
_HELD_NBYTES = 1 << 30
_HEAVY = {"linear", "attention"}


@dataclass(frozen=True, slots=True)
class Group:
    """Matrices that read one input.

    names   in plan order
    input   the buffer they read
    start   the first of their ops, counted from the layer's first
    """

    names: tuple[str, ...]
    input: Buffer
    start: int


def groups_of(ops: Sequence[Op]) -> list[Group]:
    """Return a layer's matrices by the input they share, in plan order."""
    first: dict[Buffer, int] = {}
    names: dict[Buffer, list[str]] = {}
    for i, op in enumerate(ops):
        if op.kind == "linear":
            first.setdefault(op.inputs[0], i)
            names.setdefault(op.inputs[0], []).append(op.weights[0])
    return [Group(tuple(names[b]), b, start) for b, start in first.items()]


class CalibratedLayer:
    """One layer under way: a `quantize.Layer`.

    ops      its ops, in plan order
    later    ops of the layers behind it
    entry    what flows into it; None once a matrix was put
    """

    def __init__(
        self, walk: Walk, index: int | None, ops: Sequence[Op], later: Sequence[Op], entry: Values
    ) -> None:
        """Begin; `entry` is what flows into the layer."""
        self.index = index
        self.ops: Sequence[Op] = list(ops)
        self.later = list(later)
        self.weights: dict[str, F32] = _Weights(walk, dict.fromkeys(_weights_of(ops)))
        self._walk = walk
        self._groups = groups_of(self.ops)
        self.groups = tuple(group.names for group in self._groups)
        self._put: dict[str, QTensor] = {}
        self.entry: Values | None = entry
        self._held, self._at = entry, 0  # what flows into op `at`
        self._known: dict[Buffer, Statistics] = {}

    def statistics(self, name: str) -> Statistics:
        """Return the statistics of a matrix's input, given what was put so far.

        Raises ModelError if the input is not finite.
        """
        group = self.group(name)
        if group.input not in self._known:
            self._known.clear()  # a Hessian may be large: one at a time
            self._known[group.input] = self._collect(group)
        return self._known[group.input]

    def put(self, name: str, tensor: QTensor) -> None:
        """Replace a matrix by its quantized self in all that follows; its f32 weights go."""
        group = self.group(name)
        assert name not in self._put, (name, "was put before")
        if self._at > group.start:
            self._rewind()
        self.entry = None
        self._put[name] = tensor
        self.weights.pop(name, None)
        if all(other in self._put for other in group.names):
            self._known.pop(group.input, None)

    def changed(self) -> None:
        """Forget what was computed: weights have been written to. Nothing may be put yet."""
        self._rewind()
        self._known.clear()

    def inputs(self, name: str) -> Iterator[F32]:
        """Yield the rows that a matrix reads, chunk by chunk, each valid until the next."""
        group = self.group(name)
        yield from self._run(self._at, group.start, [group.input], self._held)

    def finish(self) -> Values:
        """Run the tokens to the end of the layer and return what flows into the next."""
        values = self._hold(len(self.ops), self._at, self._held)
        self._held, self.entry = {}, None
        self._known.clear()
        return values

    def group(self, name: str) -> Group:
        """Return the group that a matrix belongs to."""
        return next(group for group in self._groups if name in group.names)

    def _rewind(self) -> None:
        assert self.entry is not None, "nothing before what was put can be computed again"
        self._held, self._at = self.entry, 0

    def _collect(self, group: Group) -> Statistics:
        """Run the tokens to a group's input and add its moments up; hold them where it pays."""
        walk = self._walk
        if self._at > group.start:
            self._rewind()
        moments = Moments(group.input.width, walk.executor, with_hessian=walk.needs == "hessian")
        at = self._where_to_hold(group.start)
        live = self._live(at) if at > self._at else []
        held = {b: np.empty((walk.n_tokens, b.width), np.float32) for b in live}
        row = 0
        for kept in self._run_all(self._at, group.start, [group.input, *live], self._held):
            n = len(kept[group.input])
            for buffer, array in held.items():
                array[row : row + n] = kept[buffer]
            row += n
            moments.add(kept[group.input], f"the input of {group.names[0]}")
            walk.report(row)
        if at > self._at:
            self._held, self._at = held, at
        return moments.statistics()

    def _hold(self, at: int, start: int, values: Values) -> Values:
        """Run the tokens to an op and return what flows into it."""
        live = self._live(at)
        held = {b: np.empty((self._walk.n_tokens, b.width), np.float32) for b in live}
        row = 0
        for kept in self._run_all(start, at, live, values):
            n = len(kept[live[0]])
            for buffer, array in held.items():
                array[row : row + n] = kept[buffer]
            row += n
            self._walk.report(row)
        return held

    def _run(self, start: int, stop: int, outputs: list[Buffer], values: Values) -> Iterator[F32]:
        for kept in self._run_all(start, stop, outputs, values):
            yield kept[outputs[0]]

    def _run_all(
        self, start: int, stop: int, outputs: list[Buffer], values: Values
    ) -> Iterator[dict[Buffer, F32]]:
        """Yield buffers as they are before op `stop`, a chunk at a time, from those at `start`."""
        walk = self._walk
        ops = self.ops[start:stop]
        weights: dict[str, F32 | QTensor] = {}
        for name in dict.fromkeys(_weights_of(ops)):
            weights[name] = self._put[name] if name in self._put else self.weights[name]
        stretch = Stretch(ops, outputs, weights, walk.executor, max_rows=max(walk.lengths))
        row = 0
        for n in walk.lengths:
            rows = slice(row, row + n)
            yield stretch.run({b: values[b][rows] for b in stretch.inputs}, n)
            row += n

    def _live(self, at: int) -> list[Buffer]:
        """Return the buffers that ops from `at` on read from before."""
        return inputs_of([*self.ops[at:], *self.later]) or [self.ops[-1].output]

    def _where_to_hold(self, stop: int) -> int:
        """Return the op up to `stop` before which tokens are best held.

        Least is to be computed again of what fits in the memory meant for it; then least is held.
        """

        def cost(at: int) -> tuple[int, int, int]:
            nbytes = 4 * self._walk.n_tokens * sum(b.width for b in self._live(at))
            heavy = sum(op.kind in _HEAVY for op in self.ops[at:stop])
            fits = nbytes <= self._walk.held_nbytes or at == self._at
            return (0 if fits else 1, heavy, nbytes)

        return min(range(self._at, stop + 1), key=cost)


class _Weights(dict[str, F32]):
    """A layer's weights in f32, each read when it is first asked for."""

    def __init__(self, walk: Walk, names: Iterable[str]) -> None:
        super().__init__()
        self._walk = walk
        self._names = frozenset(names)

    def __missing__(self, name: str) -> F32:
        assert name in self._names, (name, "is not of this layer")
        tensor = self._walk.checkpoint.tensor(name)
        self[name] = tensor.dequantize().reshape(self._walk.plan.weights[name])
        return self[name]


class Walk:
    """A model's layers with calibration tokens running through them: a `quantize.LayerWalk`."""

    def __init__(
        self,
        checkpoint: Checkpoint,
        plan: Plan,
        chunks: Sequence[Sequence[int]],
        *,
        needs: Needs,
        n_threads: int | None = None,
        held_nbytes: int = _HELD_NBYTES,
        progress: Progress | None = None,
    ) -> None:
        """Look the tokens up in the embedding.

        chunks       tokens, each chunk a sequence of its own
        needs        whether statistics have a Hessian
        held_nbytes  most memory for activations between two matrices of a layer, besides those
                     that flow into it
        """
        assert chunks, "there are tokens"
        self.checkpoint = checkpoint
        self.plan = plan
        self.needs = needs
        self.lengths = [len(chunk) for chunk in chunks]
        self.n_tokens = sum(self.lengths)
        self.held_nbytes = held_nbytes
        self.executor = Executor(n_threads or default_threads())
        self._progress = progress
        self._layers = layers_of(all_rows(plan))
        self._next = 0
        self._current: CalibratedLayer | None = None
        self._values: Values = {}
        try:
            embed = self._layers[0][1][0]
            self._layers[0] = (self._layers[0][0], self._layers[0][1][1:])
            self._values = {embed.output: _embedded(checkpoint, embed, chunks)}
        except BaseException:
            self.executor.close()
            raise

    def __enter__(self) -> Walk:
        """Return itself; leaving the block stops the threads."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def __len__(self) -> int:
        return len(self._layers)

    def __iter__(self) -> Iterator[CalibratedLayer]:
        """Yield the layers that are left, first to last."""
        self._advance()
        while self._next < len(self._layers):
            index, ops = self._layers[self._next]
            later = [op for _, some in self._layers[self._next + 1 :] for op in some]
            self._current = CalibratedLayer(self, index, ops, later, self._values)
            self._values = {}
            yield self._current
            self._advance()

    def state(self) -> State:
        """Return what enters the layer at hand, or the next one once matrices were put.

        f32 (n_tokens, width) by name of the buffer.
        """
        entry = self._current.entry if self._current is not None else None
        if entry is None:
            self._advance()
            entry = self._values
        return {buffer.name: array for buffer, array in entry.items()}

    def restore(self, state: State, next_layer: int) -> None:
        """Go on with a layer, from the state stored after the one before it."""
        self._next = next_layer
        ops = [op for _, some in self._layers[next_layer:] for op in some]
        self._values = {b: np.asarray(state[b.name], np.float32) for b in inputs_of(ops)}

    def _advance(self) -> None:
        """Run the tokens through the rest of the layer at hand, if there is one."""
        layer, self._current = self._current, None
        if layer is not None:
            self._next += 1
            self._values = layer.finish() if layer.later else {}

    def report(self, n_tokens: int) -> None:
        """Say how many tokens have gone through the stretch at hand."""
        if self._progress:
            self._progress("calibrating", n_tokens, self.n_tokens)

    def close(self) -> None:
        """Stop the threads."""
        self.executor.close()


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


def _weights_of(ops: Sequence[Op]) -> Iterator[str]:
    for op in ops:
        yield from op.weights
        if op.rope and op.rope.freq_factors:
            yield op.rope.freq_factors
        if op.heads and op.heads.sinks:
            yield op.heads.sinks


def _embedded(checkpoint: Checkpoint, embed: Op, chunks: Sequence[Sequence[int]]) -> F32:
    """Return the embeddings of all tokens, read row by row: f32 (n_tokens, width)."""
    assert embed.kind == "embed", embed
    info = checkpoint.tensors[embed.weights[0]]
    n_vocab, width = info.shape
    row_nbytes = info.format.row_nbytes(width)
    ids = np.concatenate([np.asarray(chunk, np.int64) for chunk in chunks])
    assert ids.min() >= 0, ids.min()
    assert ids.max() < n_vocab, (ids.max(), n_vocab)
    unique, place = np.unique(ids, return_inverse=True)
    data = np.empty((len(unique), row_nbytes), np.uint8)
    for i, row in enumerate(unique.tolist()):
        checkpoint.read_into(info.name, data[i], row * row_nbytes)
    rows = QTensor(info.name, (len(unique), width), info.format, data.reshape(-1)).dequantize()
    rows *= np.float32(embed.number("scale"))
    embedded: F32 = rows[place]
    return embedded
