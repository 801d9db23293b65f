"""From what is asked for, an importance matrix for example, to the settings of a run."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np

from quantcli import catalog
from quantcli.arch import Hyper, get
from quantcli.checkpoint import Checkpoint
from quantcli.checkpoint.gguf_write import WriteValue
from quantcli.errors import UsageError
from quantcli.plan import Plan
from quantcli.quantize import Fold, Needs, Quantizer
from quantcli.quantize.imatrix import Imatrix, read_imatrix
from quantcli.quantize.job import Progress, Settings
from quantcli.quantize.layers import Walk
from quantcli.quantize.plain import QUANTIZER as PLAIN
from quantcli.quantize.recipe import Recipe, quantizes
from quantcli.text import Tokenizer

_MAX_TEXT = 127  # of a value that llama-quantize writes
_CHUNK = 512  # tokens of a sequence, as llama-imatrix has them
_TOKENS_FOR_EACH_INPUT = 4  # with which a Hessian says more than its diagonal: below, it is noise


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
        """Return the first tokens of a text, in chunks that each start as a text does.

        Raises UsageError if there is not one chunk.
        """
        ids = tokenizer.encode(text, add_special=False)
        bos = [tokenizer.bos] if tokenizer.add_bos and tokenizer.bos is not None else []
        step = _CHUNK - len(bos)
        starts = range(0, min(n_tokens, len(ids)) - step + 1, step)
        chunks = tuple((*bos, *ids[start : start + step]) for start in starts)
        if not chunks:
            raise UsageError(
                f"{title} has {len(ids)} tokens, and {min(n_tokens, len(ids))} are to be used: "
                f"calibration takes {_CHUNK} at least. Use a longer text."
            )
        return cls(title, chunks)

    def digest(self) -> str:
        """Return what tells these tokens from others."""
        return sha256(repr(self.chunks).encode()).hexdigest()


@dataclass(frozen=True)
class Method:
    """The settings of a run, and what a user should know about them, a line each."""

    settings: Settings
    remarks: tuple[str, ...] = ()


def method(
    checkpoint: Checkpoint,
    recipe: Recipe,
    *,
    names: Sequence[str] = (),
    imatrix_path: Path | None = None,
    calibration: Calibration | None = None,
    n_threads: int = 1,
    allow_requantize: bool = False,
) -> Method:
    """Return the settings of a run, and what is to be said about them.

    names         of quantizers and folds in the catalog; none is the plain search
    imatrix_path  the file whose statistics weight the errors of the plain search, or None
    calibration   text that runs through the model while it is quantized, or None

    Raises CheckpointError or ShapeError for an importance matrix that is damaged or another's,
    UsageError for methods and statistics that do not go together.
    """
    parts = [catalog.load("quantizer", name).QUANTIZER for name in names]
    if imatrix_path is not None and (names or calibration):
        raise UsageError(
            "--imatrix is for the plain search; --gptq, --awq and --calib collect statistics "
            "themselves. Leave one out."
        )
    if calibration is not None:
        return _calibrated(checkpoint, recipe, parts, calibration, n_threads, allow_requantize)
    assert not parts, "folds and quantizers need calibration"
    if imatrix_path is None:
        return Method(Settings(recipe, allow_requantize=allow_requantize))
    imatrix = read_imatrix(imatrix_path)
    settings = Settings(
        recipe,
        statistics=imatrix.statistics(),
        calibration=sha256(imatrix_path.read_bytes()).hexdigest(),
        origin=origin(imatrix, imatrix_path),
        allow_requantize=allow_requantize,
    )
    return Method(settings, tuple(_gaps(imatrix, imatrix_path, checkpoint)))


def _calibrated(
    checkpoint: Checkpoint,
    recipe: Recipe,
    parts: Sequence[Any],
    calibration: Calibration,
    n_threads: int,
    allow_requantize: bool,
) -> Method:
    """Return the settings of a run that walks through the layers.

    parts   folds, and at most one quantizer
    """
    quantizer: Quantizer = PLAIN
    folds: list[Fold] = []
    for part in parts:
        if hasattr(part, "quantize"):
            assert quantizer is PLAIN, (quantizer.name, part.name)
            quantizer = part
        else:
            folds.append(part)
    needs: Needs = "hessian" if any(p.needs == "hessian" for p in parts) else "importance"
    hyper = Hyper.from_metadata(checkpoint.metadata, checkpoint.tensors)
    plan = get(hyper.arch).build(hyper)

    def walk(progress: Progress | None) -> Walk:
        return Walk(
            checkpoint,
            plan,
            calibration.chunks,
            needs=needs,
            n_threads=n_threads,
            progress=progress,
        )

    settings = Settings(
        recipe,
        quantizer=quantizer,
        folds=tuple(folds),
        walk=walk,
        calibration=calibration.digest(),
        origin={
            "quantcli.quantize.method": " + ".join(part.name for part in parts) or PLAIN.name,
            "quantcli.quantize.text": calibration.title,
            "quantcli.quantize.tokens": np.uint32(calibration.n_tokens),
        },
        allow_requantize=allow_requantize,
    )
    return Method(settings, tuple(_too_short(calibration, plan)))


def _too_short(calibration: Calibration, plan: Plan) -> Iterator[str]:
    """Yield a warning if there are fewer tokens than GPTQ wants for the widest matrix."""
    widest = max(op.inputs[0].width for op in plan.ops if op.kind == "linear")
    wanted = _TOKENS_FOR_EACH_INPUT * widest
    if calibration.n_tokens < wanted:
        yield (
            f"{calibration.n_tokens} tokens of calibration are few for matrices of {widest} "
            f"inputs: {wanted} would be enough. What they cannot tell is taken as uncorrelated."
        )


def origin(imatrix: Imatrix, path: Path) -> dict[str, WriteValue]:
    """Return the keys that llama-quantize writes about an importance matrix."""
    keys: dict[str, WriteValue] = {"quantize.imatrix.file": str(path)[:_MAX_TEXT]}
    if imatrix.datasets:
        keys["quantize.imatrix.dataset"] = imatrix.datasets[0][:_MAX_TEXT]
    keys["quantize.imatrix.entries_count"] = np.uint32(len(imatrix.entries))
    if imatrix.n_chunks > 0:
        keys["quantize.imatrix.chunks_count"] = np.uint32(imatrix.n_chunks)
    return keys


def _gaps(imatrix: Imatrix, path: Path, checkpoint: Checkpoint) -> Iterator[str]:
    """Yield what an importance matrix does not know of a model, a line each."""
    shapes = {n: t.shape for n, t in checkpoint.tensors.items() if quantizes(n, t.shape)}
    missing = [name for name in imatrix.check(shapes, path) if name.startswith("blk.")]
    if missing:
        more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
        yield (
            f"{path} knows nothing of {missing[0]}{more}; they are quantized without. "
            "Make a new one with 'quantcli imatrix'."
        )
    for name, (n, of) in imatrix.unseen().items():
        yield f"{path}: {n} of {of} experts of {name} saw no token; they count evenly."
