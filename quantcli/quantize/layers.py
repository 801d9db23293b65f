"""Calibration tokens on their way through a model, a layer at a time, in bounded memory.

Two streams of activations run side by side: that of the model as it is quantized so far, which the
statistics are of, and that of the original, which says how far the first has drifted. Before a
matrix is quantized it is moved so as to make up for the drift, see `correction`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import TracebackType

import numpy as np
import numpy.typing as npt

from quantcli.checkpoint import Checkpoint
from quantcli.formats import F32
from quantcli.plan import Op, Plan
from quantcli.qtensor import QTensor
from quantcli.quantize import Needs, State, Statistics
from quantcli.quantize.correction import corrected
from quantcli.quantize.flow import Flow, Settings, Values
from quantcli.quantize.groups import Group, groups_of, layers_of
from quantcli.quantize.statistics import ExpertMoments, Moments
from quantcli.runtime.executor import Executor
from quantcli.runtime.stretch import all_rows, inputs_of, weights_of
from quantcli.runtime.threads import default_threads

Progress = Callable[[str, int, int], None]
I64 = npt.NDArray[np.int64]

# Activations held between two matrices; what is wider is computed again from further up.
_HELD_NBYTES = 1 << 30
_EXACT = "exact "  # before names of buffers, in a state


class CalibratedLayer:
    """One layer under way: a `quantize.Layer`.

    ops      its ops, in plan order
    weights  f32 by tensor name, each read when it is first asked for
    """

    def __init__(
        self,
        walk: Walk,
        index: int | None,
        ops: Sequence[Op],
        later: Sequence[Op],
        entries: Sequence[Values],
    ) -> None:
        """Begin; `entries` are what flows into the layer, quantized and original."""
        self.index = index
        self.ops: Sequence[Op] = list(ops)
        self.weights: dict[str, F32] = _Weights(walk, dict.fromkeys(weights_of(ops)))
        self._walk = walk
        self._groups = groups_of(self.ops)
        self.groups = tuple(group.names for group in self._groups)
        self._put: dict[str, QTensor] = {}
        sources = (self._current, walk.original)
        self._flows = [
            Flow(self.ops, later, walk.settings, entry, source)
            for entry, source in zip(entries, sources, strict=False)
        ]
        self._known: tuple[Group, Statistics] | None = None
        self._corrected: set[str] = set()
        self._scales: dict[str, F32] = {}

    @property
    def entries(self) -> list[Values] | None:
        """What flows into the layer, quantized and original; None once a matrix was put."""
        found = [flow.entry for flow in self._flows if flow.entry is not None]
        return found if len(found) == len(self._flows) else None

    def preview(self, name: str) -> Statistics:
        """Return the statistics of a matrix's input, and leave its weights as they are.

        Raises ModelError if the input is not finite.
        """
        group = self.group(name)
        if self._known is None or self._known[0] != group:
            self._known = None  # a Hessian may be large: one at a time
            if group.n_experts:
                self._known = (group, self._moments_of_experts(group))
            else:
                self._known = (group, self._moments(group, with_drift=False).statistics())
        return self._known[1]

    def statistics(self, name: str) -> Statistics:
        """Return the statistics of a matrix's input, given what was put so far.

        The weights of all matrices that read it are moved, to make up for the errors in it.
        Raises ModelError if the input is not finite.
        """
        group = self.group(name)
        corrects = self._walk.corrects and self.index is not None and not group.n_experts
        if not corrects or group.names[0] in self._corrected:
            return self.preview(name)
        moments = self._moments(group, with_drift=True)
        statistics, drift = moments.statistics(), moments.drift()
        self._known = (group, statistics)
        self._corrected.update(group.names)
        if drift is not None:
            assert statistics.hessian is not None
            before = [self.weights[name] for name in group.names]
            after = corrected(before, statistics.hessian, drift)
            self.weights.update(zip(group.names, after, strict=True))
        return statistics

    def put(self, name: str, tensor: QTensor) -> None:
        """Replace a matrix by its quantized self in all that follows; its f32 weights go."""
        group = self.group(name)
        assert name not in self._put, (name, "was put before")
        for flow in self._flows:
            if flow.at > group.start:
                flow.rewind()
        for flow in self._flows:
            flow.forget_entry()
        self._put[name] = shaped(tensor, self._walk.plan)
        self.weights.pop(name, None)
        if all(other in self._put for other in group.names):
            self._known = None

    def changed(self, scales: Mapping[str, F32] | None = None) -> None:
        """Forget what was computed: weights have been written to. Nothing may be put yet.

        scales   what the input of a group is divided by now, by name of its first matrix
        """
        for flow in self._flows:
            flow.rewind()
        self._known = None
        for name, values in (scales or {}).items():
            self._scales[name] = self._scales.get(name, np.float32(1)) * values

    def finish(self) -> list[Values]:
        """Run the tokens to the end of the layer and return what flows into the next."""
        self._known = None
        n_done = 0
        for counts in zip(*(flow.finish() for flow in self._flows), strict=True):
            n_done += counts[0]
            self._walk.report(n_done)
        return [flow.result() for flow in self._flows]

    def group(self, name: str) -> Group:
        """Return the group that a matrix belongs to."""
        return next(group for group in self._groups if name in group.names)

    def _moments(self, group: Group, *, with_drift: bool) -> Moments:
        """Run the tokens to a group's input and add its moments up."""
        walk, width = self._walk, group.input.width
        flows = self._flows if with_drift else self._flows[:1]
        for flow in flows:
            if flow.at > group.start:
                flow.rewind()
        with_hessian = walk.needs == "hessian"
        moments = Moments(width, walk.executor, with_hessian=with_hessian, with_drift=with_drift)
        scales = self._scales.get(group.names[0])
        what, n_done = f"the input of {group.names[0]}", 0
        passes = [flow.read(group.start, group.input) for flow in flows]
        for found, *exact in zip(*passes, strict=True):
            if exact and scales is not None:
                exact = [exact[0] / scales]
            moments.add(found, what, *exact)
            n_done += len(found)
            walk.report(n_done)
        return moments

    def _moments_of_experts(self, group: Group) -> Statistics:
        """Run the tokens to a group of experts and add up the moments of what each of them sees."""
        flow, walk = self._flows[0], self._walk
        if flow.at > group.start:
            flow.rewind()
        moments = ExpertMoments(group.n_experts, group.input.width)
        what, n_all = f"the input of {group.names[0]}", walk.settings.n_tokens
        for rows, experts in flow.read_entries(group.start, group.input):
            moments.add(rows, experts, what)
            walk.report(min(moments.n_rows, n_all))
        return moments.statistics()

    def _current(self, name: str) -> F32 | QTensor:
        return self._put[name] if name in self._put else self.weights[name]


class _Weights(dict[str, F32]):
    """A layer's weights in f32, each read when it is first asked for."""

    def __init__(self, walk: Walk, names: Iterable[str]) -> None:
        super().__init__()
        self._walk = walk
        self._names = frozenset(names)

    def __missing__(self, name: str) -> F32:
        assert name in self._names, (name, "is not of this layer")
        self[name] = self._walk.original(name).dequantize()
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
        corrects: bool | None = None,
        n_threads: int | None = None,
        held_nbytes: int = _HELD_NBYTES,
        progress: Progress | None = None,
    ) -> None:
        """Look the tokens up in the embedding.

        chunks       tokens, each chunk a sequence of its own
        needs        whether statistics have a Hessian
        corrects     whether matrices make up for the errors before them, which takes a Hessian and
                     runs the original model beside the quantized; None: where there is a Hessian
        held_nbytes  most memory for activations between two matrices of a layer, besides those
                     that flow into it
        """
        assert chunks, "there are tokens"
        assert not (corrects and needs != "hessian"), "a correction takes a Hessian"
        self.checkpoint = checkpoint
        self.plan = plan
        self.needs = needs
        self.corrects = needs == "hessian" if corrects is None else corrects
        self.executor = Executor(n_threads or default_threads())
        lengths = [len(chunk) for chunk in chunks]
        self.settings = Settings(lengths, self.executor, held_nbytes)
        self._progress = progress
        self._layers = layers_of(all_rows(plan))
        self._next = 0
        self._current: CalibratedLayer | None = None
        index, ops = self._layers[0]
        self._embedding, self._layers[0] = ops[0], (index, ops[1:])
        self._ids = np.concatenate([np.asarray(chunk, np.int64) for chunk in chunks])
        try:
            embedded = {self._embedding.output: self._embedded(_stored_rows(checkpoint))}
        except BaseException:
            self.executor.close()
            raise
        self._values: list[Values] = [embedded] * (2 if self.corrects else 1)

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
            later = self._ops_from(self._next + 1)
            self._current = CalibratedLayer(self, index, ops, later, self._values)
            self._values = []
            yield self._current
            self._advance()

    def original(self, name: str) -> QTensor:
        """Return a tensor of the source, in the plan's shape."""
        return shaped(self.checkpoint.tensor(name), self.plan)

    def embed(self, tensor: QTensor) -> None:
        """Let the quantized model begin with this embedding; before the first layer."""
        assert self._current is None, "the first layer is under way"
        self._values[0] = {self._embedding.output: self._embedded(_rows_of(tensor))}

    def state(self) -> State:
        """Return the activations that enter the layer at hand, or the next once matrices were put.

        f32 (n_tokens, width) by name of the buffer.
        """
        entries = self._current.entries if self._current is not None else None
        if entries is None:
            self._advance()
            entries = self._values
        return {
            prefix + buffer.name: array
            for prefix, values in zip(("", _EXACT), entries, strict=False)
            for buffer, array in values.items()
        }

    def restore(self, state: State, next_layer: int) -> None:
        """Go on with a layer, from the state stored after the one before it."""
        self._next = next_layer
        buffers = inputs_of(self._ops_from(next_layer))
        self._values = [
            {b: np.asarray(state[prefix + b.name], np.float32) for b in buffers}
            for prefix in ("", _EXACT)[: len(self._values)]
        ]

    def report(self, n_tokens: int) -> None:
        """Say how many tokens have gone through the stretch at hand."""
        if self._progress:
            self._progress("calibrating", n_tokens, self.settings.n_tokens)

    def close(self) -> None:
        """Stop the threads."""
        self.executor.close()

    def _embedded(self, rows: Callable[[str, I64], F32]) -> F32:
        """Return the embeddings of all tokens: f32 (n_tokens, width)."""
        unique, place = np.unique(self._ids, return_inverse=True)
        found = rows(self._embedding.weights[0], unique)
        found *= np.float32(self._embedding.number("scale"))
        embedded: F32 = found[place]
        return embedded

    def _ops_from(self, position: int) -> list[Op]:
        return [op for _, ops in self._layers[position:] for op in ops]

    def _advance(self) -> None:
        """Run the tokens through the rest of the layer at hand, if there is one."""
        layer, self._current = self._current, None
        if layer is not None:
            self._next += 1
            self._values = layer.finish() if self._next < len(self._layers) else []


def shaped(tensor: QTensor, plan: Plan) -> QTensor:
    """Return a tensor in the plan's shape: files write a matrix of one row as a vector."""
    return QTensor(tensor.name, plan.weights[tensor.name], tensor.format, tensor.data)


def _stored_rows(checkpoint: Checkpoint) -> Callable[[str, I64], F32]:
    """Return what reads some rows of a tensor from a file, and no others."""

    def rows(name: str, ids: I64) -> F32:
        info = checkpoint.tensors[name]
        n_vocab, width = info.shape
        assert ids[0] >= 0, ids[0]
        assert ids[-1] < n_vocab, (ids[-1], n_vocab)
        data = np.empty((len(ids), info.format.row_nbytes(width)), np.uint8)
        for i, row in enumerate(ids.tolist()):
            checkpoint.read_into(name, data[i], row * data.shape[1])
        return QTensor(name, (len(ids), width), info.format, data.reshape(-1)).dequantize()

    return rows


def _rows_of(tensor: QTensor) -> Callable[[str, I64], F32]:
    """Return what takes some rows of a tensor."""

    def rows(name: str, ids: I64) -> F32:
        width = tensor.shape[-1]
        data = tensor.data.reshape(tensor.n_rows, -1)[ids].reshape(-1)
        return QTensor(name, (len(ids), width), tensor.format, data).dequantize()

    return rows
