"""Calibration: text in tokens, and what running it through a model says of its matrices."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from hashlib import sha256

import numpy as np

from quantcli.arch import Hyper, check_tensors, get
from quantcli.checkpoint import Checkpoint
from quantcli.errors import UsageError
from quantcli.plan import Plan
from quantcli.quantize.imatrix import Entry, Imatrix
from quantcli.quantize.layers import Walk
from quantcli.text import Tokenizer

Progress = Callable[[str, int, int], None]

CHUNK = 512  # tokens of a sequence, as llama-imatrix has them
TOKENS_FOR_EACH_INPUT = 4  # with which second moments say more than their diagonal


@dataclass(frozen=True)
class Calibration:
    """Text in tokens, to run through a model.

    title   what the text is, for people
    chunks  tokens, each chunk a sequence of its own
    """

    title: str
    chunks: tuple[tuple[int, ...], ...]

    @property
    def n_tokens(self) -> int:
        """Tokens of all chunks."""
        return sum(map(len, self.chunks))

    @classmethod
    def of(cls, text: str, title: str, tokenizer: Tokenizer, n_tokens: int) -> Calibration:
        """Return the first tokens of a text in whole chunks, cut as llama-imatrix cuts them.

        BOS, where the model wants it, takes the place of each chunk's first token. Raises
        UsageError if there is not one chunk.
        """
        ids = tokenizer.encode(text)
        n_used = min(n_tokens, len(ids))
        bos = (tokenizer.bos,) if tokenizer.add_bos and tokenizer.bos is not None else ()
        starts = range(0, n_used - CHUNK + 1, CHUNK)
        chunks = tuple((*bos, *ids[start + len(bos) : start + CHUNK]) for start in starts)
        if not chunks:
            raise UsageError(
                f"{title} has {len(ids)} tokens, and {n_used} are to be used: "
                f"calibration takes {CHUNK} at least. Use a longer text."
            )
        return cls(title, chunks)

    def digest(self) -> str:
        """Return what tells these tokens from others."""
        return sha256(repr(self.chunks).encode()).hexdigest()

    def shortage(self, plan: Plan) -> str | None:
        """Return a warning if there are few tokens for a model's widest matrix, else None."""
        widest = max(op.inputs[0].width for op in plan.ops if op.kind == "linear")
        wanted = TOKENS_FOR_EACH_INPUT * widest
        if self.n_tokens >= wanted:
            return None
        return (
            f"{self.n_tokens} tokens of calibration are few for matrices of {widest} inputs: "
            f"{wanted} would be enough. What they cannot tell is taken as uncorrelated."
        )


def collect(
    checkpoint: Checkpoint,
    calibration: Calibration,
    *,
    with_output: bool = False,
    n_threads: int | None = None,
    progress: Progress | None = None,
) -> Imatrix:
    """Run a text through a model and return the importance matrix of its layers.

    with_output   whether the output matrix gets an entry; llama-quantize does better without

    The model is run in f32, a layer at a time, whatever its size. Raises UnsupportedModel for an
    architecture that quantcli does not have, CheckpointError for a tensor that is missing and
    ModelError for activations that are not finite.
    """
    hyper = Hyper.from_metadata(checkpoint.metadata, checkpoint.tensors)
    plan = get(hyper.arch).build(hyper)
    check_tensors(plan, checkpoint.tensors)
    entries: dict[str, Entry] = {}
    n_all = hyper.n_layers + with_output

    n_done = 0

    def within(stage: str, done: int, total: int) -> None:
        assert progress is not None
        progress(stage, n_done * total + done, n_all * total)

    walk = Walk(
        checkpoint,
        plan,
        calibration.chunks,
        needs="importance",
        n_threads=n_threads,
        progress=within if progress else None,
    )
    with walk:
        for layer in walk:
            if layer.index is None and not with_output:
                break
            for group in layer.groups:
                known = layer.statistics(group[0])
                counts = np.array(known.counts or (known.n_tokens,), np.int64)
                sums = np.atleast_2d(known.importance.astype(np.float64)) * counts[:, None]
                for name in group:
                    entries[name] = Entry(sums.astype(np.float32), counts)
            n_done += 1
    return Imatrix(entries, (calibration.title,), len(calibration.chunks), CHUNK)
