"""Results of `bench` next to those of another day, from a file of either program's JSON."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median

from quantcli.cli.bench_results import Entry, Result, workload_name
from quantcli.errors import UsageError

HEADERS = ("model", "threads", "test", "then", "now", "ratio", "note")
ALIGNED = "lrlrrrl"

# What a ratio does not speak for when it differs: field, how it is called, what a file without it
# means.
_SETTINGS = (
    ("n_threads", "threads", None),
    ("type_k", "kv", "f16"),
    ("cache", "cache", None),
    ("backends", "backend", None),
)
_MACHINE = (
    ("cpu_info", "processor"),
    ("instruction_set", "instruction set"),
    ("quantcli", "quantcli"),
    ("program", "program"),
)


@dataclass(frozen=True)
class Change:
    """A test now, and the same test then.

    then         tokens per second, None if the file has no such test
    differences  settings that differ, such as "threads 4 then"
    """

    now: Result
    then: float | None
    differences: tuple[str, ...] = ()

    @property
    def ratio(self) -> float | None:
        """Now over then."""
        return self.now.median_ts / self.then if self.then else None

    def cells(self) -> tuple[str, ...]:
        """Return the row under HEADERS."""
        now = self.now
        name = workload_name(asdict(now)) + ("" if now.type_k == "f16" else f", kv {now.type_k}")
        return (
            now.model_type,
            str(now.n_threads),
            name,
            "-" if self.then is None else f"{self.then:.2f}",
            f"{now.median_ts:.2f}",
            "-" if self.ratio is None else f"{self.ratio:.2f}",
            "not in the file" if self.then is None else ", ".join(self.differences),
        )


def read_entries(path: Path) -> list[Entry]:
    """Return the records of a file of `bench --save` or `llama-bench -o json`.

    Raises UsageError if it is none.
    """
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(f"--compare {path}: {(error.strerror or str(error)).lower()}.") from error
    except ValueError as error:
        raise UsageError(f"--compare {path} is not JSON: {error}.") from error
    is_list = isinstance(document, list) and all(isinstance(e, dict) for e in document)
    if not is_list or not all(_speed(entry) for entry in document):
        raise UsageError(
            f"--compare {path} holds no results. Give a file of 'quantcli bench --save' or of "
            "'llama-bench -o json'."
        )
    return document  # type: ignore[no-any-return]


def compare(results: Sequence[Result], entries: Sequence[Entry]) -> list[Change]:
    """Return each result with the record of the same model and test whose settings are closest."""
    return [_change(result, entries) for result in results]


def machine_notes(results: Sequence[Result], entries: Sequence[Entry]) -> Iterator[str]:
    """Yield one line for each thing about machine or program that is not the same."""
    for field, name in _MACHINE:
        now = {str(getattr(result, field)) for result in results}
        then = {str(entry[field]) for entry in entries if field in entry}
        if then and now and then != now:
            yield f"{name} then: {', '.join(sorted(then))}; now: {', '.join(sorted(now))}"


def _change(result: Result, entries: Sequence[Entry]) -> Change:
    now = asdict(result)
    same = [e for e in entries if _identity(e) == _identity(now)]
    if not same:
        return Change(result, None)
    closest = min(same, key=lambda entry: len(_differences(entry, now)))
    return Change(result, _speed(closest), tuple(_differences(closest, now)))


def _identity(entry: Entry) -> tuple[object, ...]:
    """Return what makes two records the same test: the model's file and the test."""
    file = str(entry.get("model_filename", "")).replace("\\", "/").rpartition("/")[2]
    program = str(entry.get("program", "")).partition(" ")[0]
    return file, workload_name(entry), program or "quantcli"


def _differences(then: Entry, now: Entry) -> list[str]:
    found = []
    for field, name, default in _SETTINGS:
        before = then.get(field, default)
        if before is not None and before != now.get(field):
            found.append(f"{name} {before} then")
    return found


def _speed(entry: Entry) -> float | None:
    """Return the median tokens per second of a record, None if it has none."""
    samples = entry.get("samples_ts")
    if isinstance(samples, list) and samples and all(_is_speed(s) for s in samples):
        return float(median(samples))  # type: ignore[type-var]
    found = entry.get("median_ts", entry.get("avg_ts"))
    return float(found) if _is_speed(found) else None  # type: ignore[arg-type]


def _is_speed(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < 1e12
