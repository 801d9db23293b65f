"""From what is asked for, an importance matrix for example, to the settings of a run."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np

from quantcli import catalog
from quantcli.arch import Hyper, get
from quantcli.checkpoint import Checkpoint
from quantcli.checkpoint.gguf_write import WriteValue
from quantcli.errors import UsageError
from quantcli.quantize import Needs, Quantizer
from quantcli.quantize.calibrate import Calibration
from quantcli.quantize.imatrix import Imatrix, read_imatrix
from quantcli.quantize.job import Progress, Settings
from quantcli.quantize.layers import Walk
from quantcli.quantize.plain import QUANTIZER as PLAIN
from quantcli.quantize.recipe import Recipe, quantizes

_MAX_TEXT = 127  # of a value that llama-quantize writes


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
    folds: list[Any] = []
    for part in parts:
        if hasattr(part, "quantize"):
            assert quantizer is PLAIN, (quantizer.name, part.name)
            quantizer = part
        else:
            folds.append(part)
    folds = [  # they try scales on what will be used
        replace(fold, quantizer=quantizer) if hasattr(fold, "quantizer") else fold for fold in folds
    ]
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
        n_tokens=calibration.n_tokens,
        calibration=calibration.digest(),
        origin={
            "quantcli.quantize.method": " + ".join(part.name for part in parts) or PLAIN.name,
            "quantcli.quantize.text": calibration.title,
            "quantcli.quantize.tokens": np.uint32(calibration.n_tokens),
        },
        allow_requantize=allow_requantize,
    )
    shortage = calibration.shortage(plan)
    return Method(settings, (shortage,) if shortage else ())


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
