"""Quantizing: the contract between recipes, files and algorithms.

A recipe gives every tensor a format. `pipeline` reads the source, hands matrices to a `Quantizer`
and writes what comes back. Two orders of work:

*Tensor by tensor*, where a quantizer needs at most `importance`: each matrix goes by slabs of rows,
since a row's codes depend on that row alone.

*Layer by layer*, where it needs a Hessian, or where folds change weights: `layers` (a `LayerWalk`)
runs the calibration tokens through the model and yields one `Layer` at a time, whose inputs come
from the layers before it as they were quantized. The pipeline then does

    for layer in walk:
        for fold in folds:                       # awq: same function, easier weights
            notes += fold.fold(layer, formats)
        for group in layer.groups:               # linears that share an input, in plan order
            statistics = layer.statistics(group[0])
            for name in group:
                result = quantizer.quantize(MatrixJob(...))
                layer.put(name, QTensor(...))    # what later groups and layers see
        # on to the next layer: the walk runs the tokens through what was put

and stores, when the next layer is there, `walk.state()` beside the tensors of those before it, so
that a run that was broken off goes on with `walk.restore(...)` and ends in the same bytes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

import numpy as np
import numpy.typing as npt

from quantcli.formats import F32, BlockFormat
from quantcli.plan import Op
from quantcli.qtensor import U8, QTensor

Needs = Literal["nothing", "importance", "hessian"]
State = dict[str, npt.NDArray[np.generic]]


@dataclass(frozen=True, slots=True)
class Statistics:
    """What calibration learned about one input buffer of the plan.

    importance  f32 (n_in,)        mean of x_j ** 2 over the tokens
    n_tokens    rows that were counted (for an expert: those routed to it)
    hessian     f32 (n_in, n_in)   mean of x x^T, symmetric; None where not asked for
    counts      of a stack of experts, whose importance is f32 (n_experts, n_in): rows of each
    """

    importance: F32
    n_tokens: int
    hessian: F32 | None = None
    counts: tuple[int, ...] | None = None


@dataclass(frozen=True, slots=True)
class MatrixJob:
    """One matrix to quantize.

    name     the canonical tensor name
    weight   f32 (n_out, n_in)   finite; belongs to the quantizer, which may overwrite it
    format   what it becomes; n_in is a multiple of its block
    source   what it was in the file: its values may lie on that format's grid
    statistics   what is known about its inputs, or None
    """

    name: str
    weight: F32
    format: BlockFormat
    source: BlockFormat
    statistics: Statistics | None = None


@dataclass(frozen=True, slots=True)
class MatrixResult:
    """A quantized matrix and how much it lost.

    data       u8 (nbytes,)   the blocks, row after row
    error      relative output error: tr(dW H dW^T) / tr(W H W^T) with a Hessian, the same with its
               diagonal where only the importance is known, with H = 1 where nothing is
    baseline   that of the search alone, where the quantizer did more than search; else None
    notes      what a user should know, such as a factorization that failed; one sentence each
    seconds    time it took
    """

    data: U8
    error: float
    baseline: float | None = None
    notes: tuple[str, ...] = ()
    seconds: float = 0.0


class Quantizer(Protocol):
    """Chooses a matrix's codes. The object named QUANTIZER of a module in the catalog.

    Its repr tells every option that decides what it writes: a run is resumed only with the same.
    """

    name: str
    needs: Needs

    def quantize(self, job: MatrixJob) -> MatrixResult:
        """Return the matrix in the job's format; never worse than the search alone."""
        ...


class Layer(Protocol):
    """One transformer layer under way; the last one has `index` None and holds the output matrix.

    index    the layer's number, or None for what comes after the last
    groups   names of its matrices in plan order; those in one tuple read the same input
    weights  f32 by tensor name, of all its tensors, norms and biases too; folds write here
    ops      of the plan, from which a fold reads who makes what
    """

    index: int | None
    groups: tuple[tuple[str, ...], ...]
    ops: Sequence[Op]
    weights: dict[str, F32]

    def preview(self, name: str) -> Statistics:
        """Return the statistics of a matrix's input, for folds: weights stay as they are."""
        ...

    def statistics(self, name: str) -> Statistics:
        """Return the statistics of a matrix's input, given what was put so far.

        The weights of the matrices that read it may be moved, to make up for the errors in it.
        """
        ...

    def put(self, name: str, tensor: QTensor) -> None:
        """Replace a matrix by its quantized self in all that follows."""
        ...

    def changed(self, scales: Mapping[str, F32] | None = None) -> None:
        """Count statistics anew: a fold has written to `weights`. Nothing may be put yet.

        scales   what the input of a group is divided by now, by name of its first matrix
        """
        ...


class LayerWalk(Protocol):
    """The model, a layer at a time, with calibration tokens running through it."""

    def embed(self, tensor: QTensor) -> None:
        """Begin with this embedding, where it is quantized before the layers."""
        ...

    def __iter__(self) -> Iterator[Layer]:
        """Yield the layers that are left, first to last."""
        ...

    def state(self) -> State:
        """Return the activations that enter the layer just yielded, before anything is put."""
        ...

    def restore(self, state: State, next_layer: int) -> None:
        """Begin with a layer, counted from 0, from the state that entered it."""
        ...

    def close(self) -> None:
        """Stop threads and give memory back."""
        ...


class Fold(Protocol):
    """Rewrites a layer's weights so that it computes the same and quantizes better (AWQ).

    The object named QUANTIZER of a module in the catalog, where it has `fold` and no `quantize`.
    Its repr tells its options, as a quantizer's does.
    """

    name: str
    needs: Needs

    def fold(self, layer: Layer, formats: Mapping[str, BlockFormat]) -> tuple[str, ...]:
        """Change `layer.weights` in place; return notes. Formats are those the matrices get."""
        ...
