"""How much a kind of matrix matters: the KL divergence that a little error in it makes.

Measured by probes: all matrices of a group are rounded, nothing else is, and the model's logits
are compared with its own. Divergence is proportional to the energy of a small error, so that one
probe of a group tells what any format would do in it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np

from quantcli.checkpoint import Checkpoint, TensorInfo
from quantcli.errors import ModelError, ResourceError
from quantcli.evaluate.rows import check_finite, compare, predictions
from quantcli.formats import F32, get
from quantcli.qtensor import U8
from quantcli.quantize import Statistics
from quantcli.quantize.mixes import kind_of
from quantcli.quantize.plain import QUANTIZER as PLAIN
from quantcli.quantize.recipe import Choice, layer_of
from quantcli.quantize.slabs import encode, in_order, slabs
from quantcli.runtime.model import Model
from quantcli.runtime.sizing import size_model

Progress = Callable[[str, int, int], None]

PROBE = "q4_0"  # rounds to about 1% of error, and fits rows that most formats do not
# Tokens of a probe: those that a laptop computes in some seconds and whose logits fit in memory.
_PROBE_FLOPS = 8 * 10**11
_LOGITS_NBYTES = 256 << 20
_LEAST_TOKENS, _MOST_TOKENS = 128, 1024
_ZONES = ("first", "middle", "last")

# Nats of divergence for each unit of relative output error of one matrix, where a model was not
# probed itself. Geometric means of SmolLM2-135M and Gemma 3 270M, which differ by less than a
# factor of two in nearly all (768 tokens of English and Markdown, 2026-11). Both tie the embedding
# to the output matrix; how the two share its weight where they are apart is a guess.
PRIOR = {
    "attn_q first": 0.20,
    "attn_q middle": 0.11,
    "attn_q last": 0.12,
    "attn_k first": 0.20,
    "attn_k middle": 0.10,
    "attn_k last": 0.10,
    "attn_v first": 0.62,
    "attn_v middle": 0.62,
    "attn_v last": 0.42,
    "attn_output first": 0.39,
    "attn_output middle": 0.16,
    "attn_output last": 0.17,
    "ffn_gate first": 0.38,
    "ffn_gate middle": 0.16,
    "ffn_gate last": 0.31,
    "ffn_up first": 0.47,
    "ffn_up middle": 0.31,
    "ffn_up last": 0.63,
    "ffn_down first": 0.70,
    "ffn_down middle": 0.43,
    "ffn_down last": 1.4,
    "token_embd": 2.0,
    "output": 8.0,
    "token_embd tied": 9.5,
}
_UNKNOWN = 0.5  # of kinds that no model had


@dataclass(frozen=True)
class Sensitivity:
    """What a unit of relative output error in a matrix costs, by group of matrices.

    n_layers  of the model, by which groups are told apart
    is_tied   whether the embedding is the output matrix as well
    measured  nats by group, where probes were made
    """

    n_layers: int
    is_tied: bool = False
    measured: Mapping[str, float] = field(default_factory=dict)

    def of(self, name: str) -> float:
        """Return that of one matrix."""
        group = group_of(name, self.n_layers)
        prior = f"{group} tied" if group == "token_embd" and self.is_tied else group
        return self.measured.get(group, PRIOR.get(prior, _UNKNOWN))


def group_of(name: str, n_layers: int) -> str:
    """Return the group of a matrix: its kind, and whether its layer is first, last or between.

    The first and the last eighth are apart, as in the mixes of llama.cpp.
    """
    layer = layer_of(name)
    if layer is None:
        return kind_of(name)
    edge = max(1, n_layers // 8)
    zone = 0 if layer < edge else 2 if layer >= n_layers - edge else 1
    return f"{kind_of(name)} {_ZONES[zone]}"


class Overlay(Checkpoint):
    """A checkpoint some of whose tensors are replaced by others in memory."""

    def __init__(self, base: Checkpoint, replaced: Mapping[str, tuple[TensorInfo, U8]]) -> None:
        """Put tensors in place of those of the same names; closing it leaves the base open."""
        super().__init__((), base.metadata, {**base.tensors}, base.notes)
        self.paths = base.paths
        self._base = base
        self._replaced = replaced
        for name, (info, _) in replaced.items():
            self.tensors[name] = info

    def read_into(self, name: str, buffer: U8, start: int = 0) -> None:
        """Fill a buffer with a tensor's bytes from `start` on."""
        if name in self._replaced:
            flat = buffer.reshape(-1).view(np.uint8)
            flat[:] = self._replaced[name][1][start : start + flat.nbytes]
        else:
            self._base.read_into(name, buffer, start)


def n_probe_tokens(n_weights: int, n_vocab: int) -> int:
    """Return how many tokens to probe a model with: as many as neither time nor memory minds."""
    by_time = _PROBE_FLOPS // (2 * n_weights)
    by_memory = _LOGITS_NBYTES // (4 * n_vocab)
    return int(np.clip(min(by_time, by_memory), _LEAST_TOKENS, _MOST_TOKENS))


def can_probe(checkpoint: Checkpoint, n_tokens: int) -> bool:
    """Return whether a model can be loaded, and fits in memory with room for as much again."""
    try:
        memory = size_model(checkpoint, context=n_tokens).memory
    except (ModelError, ResourceError):
        return False
    return 2 * memory.total <= memory.available


def measure(
    checkpoint: Checkpoint,
    choices: Sequence[Choice],
    tokens: Sequence[int],
    statistics: Mapping[str, Statistics],
    *,
    n_layers: int,
    n_threads: int,
    backend: str = "compiled",
    progress: Progress | None = None,
) -> Sensitivity:
    """Probe every group of matrices with one sequence of tokens.

    choices   the matrices whose formats are to be chosen
    tokens    not from the text that the result will be judged on

    The model is loaded once for each group: 22 times where all layers have the usual seven
    matrices. Raises ModelError if logits are not finite, ResourceError if the model does not fit
    in memory.
    """
    groups: dict[str, list[Choice]] = {}
    for choice in choices:
        groups.setdefault(group_of(choice.name, n_layers), []).append(choice)
    options = {"context": len(tokens), "n_threads": n_threads, "backend": backend}
    base = _logits(checkpoint, tokens, options)
    measured = {}
    for i, (group, some) in enumerate(groups.items()):
        if progress:
            progress("probing what matters", i, len(groups))
        overlay, error = _rounded(checkpoint, some, statistics, n_threads)
        kl = _divergence(overlay, tokens, base, options)
        if error > 0:
            measured[group] = kl / error
    return Sensitivity(n_layers, measured=measured)


def _rounded(
    checkpoint: Checkpoint,
    some: Sequence[Choice],
    statistics: Mapping[str, Statistics],
    n_threads: int,
) -> tuple[Overlay, float]:
    """Return a model with some matrices rounded, and the sum of their relative errors."""
    probe, replaced, total = get(PROBE), {}, 0.0
    work = partial(encode, checkpoint, PLAIN, statistics)
    for choice in some:
        if choice.shape[-1] % probe.weights_per_block:
            continue
        # a source in the probe's own format is rounded as well: copying would show nothing
        target = replace(choice, format=probe)
        parts = list(in_order(work, slabs(target), n_threads))
        data = np.concatenate([part.data for part in parts])
        info = TensorInfo(choice.name, choice.shape, probe, data.nbytes, 0, 0)
        replaced[choice.name] = (info, data)
        energy = sum(part.energy for part in parts)
        lost = sum((part.error or 0.0) * part.energy for part in parts)
        total += lost / energy if energy else 0.0
    return Overlay(checkpoint, replaced), total


def _logits(checkpoint: Checkpoint, tokens: Sequence[int], options: Mapping[str, object]) -> F32:
    """Return the logits of every position: f32 (n_tokens, n_vocab)."""
    model = Model.load(checkpoint, **options)  # type: ignore[arg-type]
    try:
        logits = np.empty((len(tokens), model.n_vocab), np.float32)
        for row, some in predictions(model, tokens):
            logits[row : row + len(some)] = some
        return logits
    finally:
        model.close()


def _divergence(
    checkpoint: Checkpoint, tokens: Sequence[int], base: F32, options: Mapping[str, object]
) -> float:
    """Return the mean KL divergence from the base's logits."""
    model = Model.load(checkpoint, **options)  # type: ignore[arg-type]
    total = 0.0
    try:
        for row, some in predictions(model, tokens):
            pair = compare(model, base[row : row + len(some)], some)
            check_finite(pair.row.log_total, "a probe", lambda i: f"at token {i}")
            total += float(pair.kl.sum())
    finally:
        model.close()
    return total / len(tokens)
