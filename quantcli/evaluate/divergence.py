"""How far a quantized model's predictions are from its base's, position by position.

Exactly, with both models in memory and their rows next to each other; or against a file that holds
the base's likeliest tokens and what is left to all others (`quantcli.evaluate.logits_file`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from quantcli.errors import UsageError
from quantcli.evaluate.estimates import Estimate, mean, root_mean_square, share
from quantcli.evaluate.perplexity import Counter, Progress, place
from quantcli.evaluate.protocol import Chunk
from quantcli.evaluate.rows import Runnable, check_finite, compare, predictions, target_logits

F64 = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]

PERCENTILES = (90.0, 99.0, 99.9)


@dataclass(frozen=True, slots=True)
class Positions:
    """What was measured at each scored position, all (n,).

    kl          f64 KL divergence from the base, in nats; a lower bound if it is from a file
    base_nll    f64 the base's negative log-likelihood of the token that came
    nll         f64 the model's
    is_same     bool whether both find the same token the likeliest
    rest        f64 probability that the base gives to tokens that the file does not list
    """

    kl: F64
    base_nll: F64
    nll: F64
    is_same: Bools
    rest: F64

    @classmethod
    def join(cls, parts: Sequence[Positions]) -> Positions:
        """Return the positions of several chunks in order."""
        assert parts
        names = cls.__dataclass_fields__
        return cls(**{name: np.concatenate([getattr(p, name) for p in parts]) for name in names})


@dataclass(frozen=True, slots=True)
class Divergence:
    """How far a model is from its base, in nats and shares.

    is_exact       whether KL is over the whole vocabulary; else it is a lower bound
    rest           mean probability that the base gives to tokens that were not told apart
    log_ratio      ln(perplexity / base perplexity); its error is of the paired differences
    delta_p_rms    root mean square of the change of the probability of the token that came
    """

    n_tokens: int
    is_exact: bool
    rest: float
    kl: Estimate
    kl_median: float
    kl_percentiles: dict[str, float]
    kl_max: float
    same_top: Estimate
    delta_p: Estimate
    delta_p_rms: Estimate
    perplexity: Estimate
    base_perplexity: Estimate
    log_ratio: Estimate
    ratio: Estimate


def measure(
    base: Runnable,
    model: Runnable,
    chunks: Sequence[Chunk],
    *,
    names: tuple[str, str],
    progress: Progress | None = None,
) -> Iterator[Positions]:
    """Yield what each chunk's positions show, with both models computing in turns.

    names  what the base and the model are called in errors

    Raises ModelError if logits are not finite.
    """
    check_vocabularies(base.n_vocab, model.n_vocab, names)
    counted = Counter(f"comparing {names[1]} with {names[0]}", chunks, progress)
    for chunk in chunks:
        found = []
        tokens, first = chunk.tokens[:-1], chunk.first_row
        rows = zip(
            predictions(base, tokens, first=first),
            predictions(model, tokens, first=first, step=counted.step),
            strict=True,
        )
        for (row, theirs), (same_row, ours) in rows:
            assert row == same_row, (row, same_row)
            pair = compare(model, theirs, ours)
            for name, known in zip(names, (pair.base, pair.row), strict=True):
                check_finite(known.log_total, name, place(chunk, row))
            targets = chunk.targets[row - first : row - first + len(ours)]
            found.append(
                Positions(
                    kl=pair.kl,
                    base_nll=pair.base.log_total - target_logits(theirs, targets),
                    nll=pair.row.log_total - target_logits(ours, targets),
                    is_same=pair.base.likeliest == pair.row.likeliest,
                    rest=np.zeros(len(ours)),
                )
            )
        yield Positions.join(found)


def check_vocabularies(n_base: int, n_vocab: int, names: tuple[str, str]) -> None:
    """Raise UsageError if two models cannot be compared because their logits mean other tokens."""
    if n_base != n_vocab:
        raise UsageError(
            f"{names[0]} has a vocabulary of {n_base} tokens and {names[1]} one of {n_vocab}: "
            "only models of one vocabulary can be compared."
        )


def mean_kl(parts: Sequence[Positions]) -> Estimate:
    """Return the mean KL divergence over several chunks."""
    return mean(np.concatenate([part.kl for part in parts]))


def summarize(positions: Positions, *, is_exact: bool) -> Divergence:
    """Return the statistics of positions, of which there is at least one."""
    kl = positions.kl
    delta = np.exp(-positions.nll) - np.exp(-positions.base_nll)
    log_ratio = mean(positions.nll - positions.base_nll)
    percentiles = np.percentile(kl, PERCENTILES)
    return Divergence(
        n_tokens=kl.size,
        is_exact=is_exact,
        rest=float(positions.rest.mean()),
        kl=mean(kl),
        kl_median=float(np.median(kl)),
        kl_percentiles={f"{p:g}": float(v) for p, v in zip(PERCENTILES, percentiles, strict=True)},
        kl_max=float(kl.max()),
        same_top=share(positions.is_same),
        delta_p=mean(delta),
        delta_p_rms=root_mean_square(delta),
        perplexity=mean(positions.nll).exp(),
        base_perplexity=mean(positions.base_nll).exp(),
        log_ratio=log_ratio,
        ratio=log_ratio.exp(),
    )
