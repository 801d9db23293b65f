"""Stand-ins for quantizers, folds and walks: fast, exact, and easy to predict."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np

from quantcli.checkpoint import Checkpoint
from quantcli.formats import F32, BlockFormat
from quantcli.qtensor import U8, QTensor
from quantcli.quantize import Layer, MatrixJob, MatrixResult, Needs, State, Statistics


def rounded(weight: F32, fmt: BlockFormat) -> U8:
    """Return the blocks of weights rounded to nearest, by the format's own encoder."""
    assert fmt.encode is not None, fmt.name
    blocks = fmt.encode(np.ascontiguousarray(weight.reshape(-1, fmt.weights_per_block)))
    return np.ascontiguousarray(blocks).view(np.uint8).reshape(-1)


class Rounding:
    """Rounds to nearest, in NumPy."""

    name = "rounding"

    def __init__(self, needs: Needs = "nothing") -> None:
        """Ask for what `needs` says."""
        self.needs: Needs = needs
        self.jobs: list[MatrixJob] = []

    def __repr__(self) -> str:
        return f"Rounding({self.needs})"

    def quantize(self, job: MatrixJob) -> MatrixResult:
        """Return the matrix rounded to nearest."""
        self.jobs.append(job)
        return MatrixResult(rounded(job.weight, job.format), 0.25, 0.5, ("a note",), 0.1)


class Halving:
    """A fold that halves a norm and doubles what reads it."""

    name = "halving"
    needs: Needs = "importance"

    def __repr__(self) -> str:
        return "Halving"

    def fold(self, layer: Layer, formats: Mapping[str, BlockFormat]) -> tuple[str, ...]:
        """Halve the norm before attention."""
        if layer.index is None:
            return ()
        layer.weights[f"blk.{layer.index}.attn_norm.weight"] *= np.float32(0.5)
        for name in layer.groups[0]:
            layer.weights[name] *= np.float32(2.0)
        return (f"layer {layer.index} was halved",)


class FakeLayer:
    """One layer of a fake walk."""

    def __init__(self, walk: FakeWalk, index: int | None, groups: tuple[tuple[str, ...], ...]):
        """Read all weights of the layer."""
        self.index = index
        self.groups = groups
        prefix = f"blk.{index}."
        names = [n for n in walk.checkpoint.tensors if n.startswith(prefix)]
        self.weights = {n: walk.checkpoint.tensor(n).dequantize() for n in names}
        self._walk = walk

    def statistics(self, name: str) -> Statistics:
        """Return statistics that follow from the activations and the matrix's width."""
        self._walk.asked.append(name)
        n_in = self._walk.checkpoint.tensors[name].shape[-1]
        importance = np.full(n_in, 1 + abs(self._walk.activation), np.float32)
        return Statistics(importance, 7, np.diag(importance))

    def put(self, name: str, tensor: QTensor) -> None:
        """Let the activations depend on what was put."""
        self._walk.put.append(name)
        self._walk.activation += float(tensor.dequantize().mean())


class FakeWalk:
    """A walk whose only activation is a number that all matrices before have made."""

    def __init__(self, checkpoint: Checkpoint, n_layers: int, output: str) -> None:
        """Begin before the first layer."""
        self.checkpoint = checkpoint
        self.n_layers = n_layers
        self.output = output
        self.activation = 1.0
        self.asked: list[str] = []
        self.put: list[str] = []
        self.is_closed = False
        self._next = 0

    def embed(self, tensor: QTensor) -> None:
        """Remember that the embedding was quantized before."""
        self.put.append(tensor.name)

    def __iter__(self) -> Iterator[FakeLayer]:
        """Yield the layers that are left."""
        while self._next <= self.n_layers:
            i = self._next
            inside = (
                tuple(f"blk.{i}.attn_{x}.weight" for x in "qkv"),
                (f"blk.{i}.attn_output.weight",),
                (f"blk.{i}.ffn_gate.weight", f"blk.{i}.ffn_up.weight"),
                (f"blk.{i}.ffn_down.weight",),
            )
            is_last = i == self.n_layers
            yield FakeLayer(self, None if is_last else i, ((self.output,),) if is_last else inside)
            self._next += 1

    def state(self) -> State:
        """Return the activation."""
        return {"x": np.array([self.activation])}

    def restore(self, state: State, next_layer: int) -> None:
        """Take the activation up again."""
        self.activation = float(state["x"][0])
        self._next = next_layer

    def close(self) -> None:
        """Be closed."""
        self.is_closed = True
