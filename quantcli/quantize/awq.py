"""AWQ: scale the inputs of matrices so that what matters rounds better, and undo it before them.

Lin et al. 2023 (arXiv 2306.00978). The matrices that read one input take W_j * s_j in column j, and
whatever makes the input is divided by s_j: a norm's weights, the rows of an up projection, the
values that attention averages. The model computes the same; only rounding changes. Which op makes
an input is read off the plan, so that no architecture is named here.

Scales are tried on the quantizer that will be used, identity among them, on some of the rows and by
tr(dW H dW^T); they are kept only where that falls, and where no matrix, as a whole, loses more than
by the plain search without them. There is no search for clipping of its own: the
searches for scales of all formats try ranges that clip the largest weights.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from quantcli.formats import F32, BlockFormat
from quantcli.kernels.quantize.layouts import LAYOUTS
from quantcli.plan import Buffer, Op
from quantcli.qtensor import QTensor
from quantcli.quantize import Fold, Layer, MatrixJob, Needs, Quantizer, Statistics
from quantcli.quantize.gptq import Gptq
from quantcli.quantize.plain import QUANTIZER as PLAIN

_ROWS = 192  # of each matrix that candidates are tried on
_COLUMNS = 2048  # inputs they are tried on; more would cost the cube of it
_MARGIN = 0.99  # of the loss, below which scales are worth their while
_CHECKED = 3  # of the best candidates, on whole matrices
_SLAB_ROWS = 1024
_MOST = 8.0  # largest scale, and 1 / the least
# Powers of the input's size, and of the inverse of the weights'.
_POWERS = (
    (0.1, 0.1),
    (0.2, 0.2),
    (0.3, 0.3),
    (0.1, 0.0),
    (0.2, 0.0),
    (0.4, 0.4),
    (0.3, 0.0),
    (0.5, 0.5),
    (0.5, 0.0),
    (0.7, 0.0),
)


@dataclass(frozen=True, slots=True)
class Site:
    """A place where scales can be folded away.

    readers   the linears that read the input
    producer  the op that makes it: rms_norm, gated or attention
    maker     the tensor that is divided: a norm's weight, or the matrix of up or v
    bias      the bias that goes with that matrix, or None
    """

    readers: tuple[Op, ...]
    producer: Op
    maker: str
    bias: str | None = None


@dataclass
class Awq:
    """The search for scales, and their folding.

    quantizer   what the matrices will be quantized with
    """

    name: str = "awq"
    needs: Needs = "hessian"
    quantizer: Quantizer = field(default_factory=lambda: PLAIN)

    def fold(self, layer: Layer, formats: Mapping[str, BlockFormat]) -> tuple[str, ...]:
        """Scale what loses less by it; return what was left out, and why.

        The output matrix is never scaled: it may be the embedding as well.
        """
        if layer.index is None:
            return ()
        notes: list[str] = []
        scales: dict[str, F32] = {}
        for group in layer.groups:
            if not any(formats[name].name in LAYOUTS for name in group):
                continue
            site, why = site_of(layer.ops, group)
            if site is None:
                notes.append(f"{', '.join(group)}: not scaled, {why}.")
                continue
            found = self._search(layer, site, formats, layer.preview(group[0]))
            if found is not None:
                apply(layer, site, found)
                scales[group[0]] = found
        if scales:
            layer.changed(scales)
        return tuple(notes)

    def _search(
        self,
        layer: Layer,
        site: Site,
        formats: Mapping[str, BlockFormat],
        statistics: Statistics,
    ) -> F32 | None:
        """Return the best scales f32 (n_in,) of a site, or None where none is better than none."""
        assert statistics.hessian is not None
        trial = _Trial.of(layer, site, formats, statistics)
        if trial is None:
            return None
        quantizer = self.quantizer
        if isinstance(quantizer, Gptq):
            quantizer = quantizer.for_trials()
        losses = {(0.0, 0.0): trial.loss(quantizer, None)}
        for powers in _POWERS:
            losses[powers] = trial.loss(quantizer, _scales(layer, site, statistics, *powers))
        limit = _MARGIN * losses[0.0, 0.0]
        better = sorted((p for p in losses if losses[p] < limit), key=lambda powers: losses[powers])
        for powers in better[:_CHECKED]:
            scales = _scales(layer, site, statistics, *powers)
            if _is_never_worse(layer, site, formats, statistics, scales, quantizer):
                return scales
        return None


@dataclass(frozen=True, slots=True)
class _Trial:
    """Some rows and columns of the matrices of a site, to try scales on."""

    columns: np.ndarray
    weights: dict[str, F32]
    formats: dict[str, BlockFormat]
    energies: dict[str, float]
    statistics: Statistics

    def loss(self, quantizer: Quantizer, scales: F32 | None) -> float:
        """Return the sum of the matrices' relative output errors once scaled and quantized."""
        total = 0.0
        statistics, weights = self.statistics, self.weights
        if scales is not None:
            s = scales[self.columns]
            statistics = _scaled(statistics, s)
            weights = {name: weight * s for name, weight in weights.items()}
        for name, weight in weights.items():
            fmt = self.formats[name]
            job = MatrixJob(name, weight.copy(), fmt, fmt, statistics)
            data = quantizer.quantize(job).data
            values = QTensor(name, weight.shape, fmt, data).dequantize()
            total += _energy(weight - values, statistics) / self.energies[name]
        return total

    @classmethod
    def of(
        cls,
        layer: Layer,
        site: Site,
        formats: Mapping[str, BlockFormat],
        statistics: Statistics,
    ) -> _Trial | None:
        """Take whole blocks of columns and rows evenly; None if nothing reaches the input."""
        assert statistics.hessian is not None
        names = [op.weights[0] for op in site.readers if formats[op.weights[0]].name in LAYOUTS]
        n_in = len(statistics.importance)
        width = max(formats[name].weights_per_block for name in names)
        blocks = _evenly(n_in // width, max(1, _COLUMNS // width))
        columns = (blocks[:, None] * width + np.arange(width)).reshape(-1)
        part = Statistics(
            statistics.importance[columns],
            statistics.n_tokens,
            np.ascontiguousarray(statistics.hessian[np.ix_(columns, columns)]),
        )
        weights = {}
        for name in names:
            weight = layer.weights[name]
            rows = _evenly(len(weight), _ROWS)
            weights[name] = np.ascontiguousarray(weight[np.ix_(rows, columns)])
        energies = {name: _energy(weight, part) for name, weight in weights.items()}
        if not all(energy > 0 for energy in energies.values()):
            return None
        return cls(columns, weights, {n: formats[n] for n in names}, energies, part)


def _is_never_worse(
    layer: Layer,
    site: Site,
    formats: Mapping[str, BlockFormat],
    statistics: Statistics,
    scales: F32,
    quantizer: Quantizer,
) -> bool:
    """Return whether every matrix, once scaled, loses no more than by the search as it is."""
    scaled = _scaled(statistics, scales)
    for op in site.readers:
        name = op.weights[0]
        weight, fmt = layer.weights[name], formats[name]
        if fmt.name not in LAYOUTS:
            continue
        most = _lost(PLAIN, name, weight, None, fmt, statistics)
        # what is chosen in the end loses no more than the search does
        if _lost(PLAIN, name, weight, scales, fmt, scaled) <= most:
            continue
        if quantizer is PLAIN or _lost(quantizer, name, weight, scales, fmt, scaled) > most:
            return False
    return True


def _lost(
    quantizer: Quantizer,
    name: str,
    weight: F32,
    scales: F32 | None,
    fmt: BlockFormat,
    statistics: Statistics,
) -> float:
    """Return tr(dW H dW^T) of a matrix with its columns scaled, by slabs of rows."""
    total = 0.0
    for start in range(0, len(weight), _SLAB_ROWS):
        rows = weight[start : start + _SLAB_ROWS]
        rows = rows.copy() if scales is None else rows * scales
        data = quantizer.quantize(MatrixJob(name, rows.copy(), fmt, fmt, statistics)).data
        total += _energy(rows - QTensor(name, rows.shape, fmt, data).dequantize(), statistics)
    return total


def site_of(ops: Sequence[Op], group: Sequence[str]) -> tuple[Site | None, str]:
    """Return where the scales of a group's input can be folded away, or None and why not."""
    readers = tuple(op for op in ops if op.weights and op.weights[0] in group)
    source = readers[0].inputs[0]
    if any(op.kind != "linear" for op in ops if source in op.inputs):
        return None, "its input is read by more than matrices"
    producer = next((op for op in ops if op.output == source), None)
    if producer is None:
        return None, "its input comes from another layer"
    if producer.kind == "rms_norm" and not producer.params["group"]:
        return _only(Site(readers, producer, producer.weights[0]), ops)
    if producer.kind == "gated":
        return _made_by_linear(Site(readers, producer, ""), producer.inputs[1], ops)
    if producer.kind == "attention":
        return _made_by_linear(Site(readers, producer, ""), producer.inputs[2], ops)
    return None, f"its input is made by {producer.kind}, which cannot take scales in"


def _only(site: Site, ops: Sequence[Op]) -> tuple[Site | None, str]:
    """Return a site unless its tensor is used elsewhere too."""
    if sum(site.maker in op.weights for op in ops) > 1:
        return None, f"{site.maker} is used more than once"
    return site, ""


def _made_by_linear(site: Site, buffer: Buffer, ops: Sequence[Op]) -> tuple[Site | None, str]:
    """Return a site whose tensor is the matrix that makes a buffer for one reader alone."""
    maker = next((op for op in ops if op.output == buffer), None)
    if maker is None or maker.kind != "linear":
        return None, f"what {site.producer.kind} reads is not made by a matrix"
    if sum(buffer in op.inputs for op in ops) > 1:
        return None, f"what {maker.weights[0]} makes is read more than once"
    bias = maker.weights[1] if len(maker.weights) > 1 else None
    return _only(Site(site.readers, site.producer, maker.weights[0], bias), ops)


def apply(layer: Layer, site: Site, scales: F32) -> None:
    """Multiply the columns of the readers and divide the maker, in `layer.weights`."""
    for op in site.readers:
        layer.weights[op.weights[0]] *= scales
    inverse = 1 / made_scales(site, scales)
    maker = layer.weights[site.maker]
    if maker.ndim == 1:
        maker *= inverse
    else:
        maker *= inverse[:, None]
    if site.bias is not None:
        layer.weights[site.bias] *= inverse


def made_scales(site: Site, scales: F32) -> F32:
    """Return scales of what the maker makes: of an attention, one for each value of a k/v head."""
    heads = site.producer.heads
    if heads is None:
        return scales
    each = scales.reshape(heads.n_kv_heads, -1, heads.head_dim)
    return np.ascontiguousarray(each[:, 0]).reshape(-1)


def _scales(
    layer: Layer, site: Site, statistics: Statistics, power: float, weight_power: float
) -> F32:
    """Return scales whose geometric mean is 1: (size of inputs)^a / (size of weights)^b."""
    inputs = np.sqrt(statistics.importance.astype(np.float64))
    tops = [np.abs(layer.weights[op.weights[0]]).max(axis=0) for op in site.readers]
    weights = np.max(tops, axis=0).astype(np.float64)
    heads = site.producer.heads
    if heads is not None:  # query heads that share values share their scales
        shape = (heads.n_kv_heads, -1, heads.head_dim)
        inputs = _shared(np.square(inputs), shape, np.mean) ** 0.5
        weights = _shared(weights, shape, np.max)
    logs = power * _logs(inputs) - weight_power * _logs(weights)
    scales = np.exp(np.clip(logs, -np.log(_MOST), np.log(_MOST)))
    return scales.astype(np.float32)


def _shared(values: np.ndarray, shape: tuple[int, ...], join) -> np.ndarray:  # type: ignore[no-untyped-def]
    """Return values joined over the query heads of each k/v head, and repeated for them."""
    each = values.reshape(shape)
    joined = join(each, axis=1, keepdims=True)
    return np.broadcast_to(joined, each.shape).reshape(-1)


def _logs(values: np.ndarray) -> np.ndarray:
    """Return logarithms with mean 0; dead channels get 0."""
    alive = values > 0
    logs = np.log(values, out=np.zeros_like(values), where=alive)
    mean = logs[alive].mean() if alive.any() else 0.0
    return np.where(alive, logs - mean, 0.0)


def _scaled(statistics: Statistics, scales: F32) -> Statistics:
    """Return the statistics of an input that is divided by scales."""
    assert statistics.hessian is not None
    inverse = np.float32(1) / scales
    return Statistics(
        statistics.importance * inverse * inverse,
        statistics.n_tokens,
        statistics.hessian * inverse * inverse[:, None],
    )


def _energy(rows: F32, statistics: Statistics) -> float:
    """Return tr(x H x^T)."""
    assert statistics.hessian is not None
    return float(np.einsum("ij,ij->", rows @ statistics.hessian, rows, dtype=np.float64))


def _evenly(n: int, most: int) -> np.ndarray:
    """Return up to so many of the indices below n, spread evenly."""
    count = min(n, most)
    return np.arange(count) * n // count


QUANTIZER: Fold = Awq()
