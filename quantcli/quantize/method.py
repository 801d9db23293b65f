"""From what is asked for, an importance matrix for example, to the settings of a run."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

import numpy as np

from quantcli.checkpoint import Checkpoint
from quantcli.checkpoint.gguf_write import WriteValue
from quantcli.quantize.imatrix import Imatrix, read_imatrix
from quantcli.quantize.job import Settings
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
    imatrix_path: Path | None = None,
    allow_requantize: bool = False,
) -> Method:
    """Return the settings of a run, and what is to be said about them.

    imatrix_path  the file whose statistics weight the errors, or None

    Raises CheckpointError or ShapeError for an importance matrix that is damaged or another's.
    """
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
