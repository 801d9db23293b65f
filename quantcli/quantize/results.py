"""What became of each tensor; kept beside a draft too, so that a resumed run has it."""

from __future__ import annotations

import json
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import asdict, dataclass
from math import prod
from pathlib import Path

from quantcli.quantize.recipe import Choice
from quantcli.quantize.slabs import Encoded


@dataclass(frozen=True, slots=True)
class TensorResult:
    """One tensor of the output.

    wanted    the format it was to get, where its rows did not fit that
    error     relative output error, None for what was copied, or if the record of it was lost
    baseline  that of the search alone, where more was done
    """

    name: str
    shape: tuple[int, ...]
    source: str
    format: str
    wanted: str
    reason: str
    nbytes: int
    error: float | None = None
    baseline: float | None = None
    notes: tuple[str, ...] = ()
    seconds: float = 0.0

    @property
    def bits_per_weight(self) -> float:
        """Bits of a weight."""
        return 8 * self.nbytes / prod(self.shape)


def result_of(choice: Choice, parts: Iterable[Encoded] = ()) -> TensorResult:
    """Return a tensor's result from its slabs: errors weighted by what they are relative to."""
    parts = list(parts)
    whole = sum(part.energy for part in parts)
    error = baseline = None
    if parts and parts[0].error is not None:
        error = sum((part.error or 0.0) * part.energy for part in parts) / (whole or 1.0)
    if parts and parts[0].baseline is not None:
        baseline = sum((part.baseline or 0.0) * part.energy for part in parts) / (whole or 1.0)
    return TensorResult(
        name=choice.name,
        shape=choice.shape,
        source=choice.source.name,
        format=choice.format.name,
        wanted=choice.wanted if choice.wanted != choice.format.name else "",
        reason=choice.reason,
        nbytes=choice.nbytes,
        error=error,
        baseline=baseline,
        notes=tuple(dict.fromkeys(note for part in parts for note in part.notes)),
        seconds=sum(part.seconds for part in parts),
    )


class ResultLog:
    """Results in a file, one a line; a line that a crash has cut is left out."""

    def __init__(self, path: Path, *, resume: bool) -> None:
        """Start a log, or with `resume` read the one that is there and go on."""
        self._path = path
        self.results: dict[str, TensorResult] = {}
        if resume:
            self._read()
        else:
            self.remove()

    def add(self, result: TensorResult) -> None:
        """Keep a result."""
        self.results[result.name] = result
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(asdict(result)) + "\n")

    def remove(self) -> None:
        """Delete the file."""
        with suppress(OSError):
            self._path.unlink(missing_ok=True)

    def _read(self) -> None:
        try:
            lines = self._path.read_text(encoding="utf-8").splitlines()
        except (OSError, UnicodeDecodeError):
            return
        for line in lines:
            with suppress(ValueError, TypeError, KeyError):
                values = json.loads(line)
                values["shape"] = tuple(values["shape"])
                values["notes"] = tuple(values["notes"])
                result = TensorResult(**values)
                self.results[result.name] = result
