"""JSON from files that nobody vouches for: bounded before it is parsed, refused in one sentence."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from quantcli.checkpoint.gguf_layout import quoted
from quantcli.checkpoint.positional import PositionalFile
from quantcli.errors import CheckpointError

MAX_NBYTES = 16 << 20  # configs are below 100 KB; indexes of the largest models near 10 MB


def read_bytes(path: Path, limit: int = MAX_NBYTES) -> bytes:
    """Return a file's bytes; raise CheckpointError if it is missing or larger than `limit`."""
    with PositionalFile(path) as file:
        if file.nbytes > limit:
            raise CheckpointError(
                f"{path}: is {file.nbytes} bytes long; it must be at most {limit}."
            )
        return file.read(file.nbytes, 0)


def read_object(path: Path, limit: int = MAX_NBYTES) -> dict[str, object]:
    """Return the object that a JSON file holds.

    Raises CheckpointError if the file is missing, too large, no JSON or no object, or holds a key
    twice.
    """
    return parse_object(read_bytes(path, limit), str(path))


def parse_object(data: bytes, what: str) -> dict[str, object]:
    """Return the object in some JSON; `what` names it in errors, which are as `read_object`'s."""
    try:
        value = json.loads(data, object_pairs_hook=_unique)
    except RecursionError:
        raise CheckpointError(f"{what}: is nested too deeply to be JSON of a model.") from None
    except ValueError as error:  # not UTF-8, not JSON, or a number of thousands of digits
        raise CheckpointError(f"{what}: is not valid JSON: {_first_words(error)}.") from error
    if not isinstance(value, dict):
        raise CheckpointError(f"{what}: holds {_kind(value)}; it must be an object.")
    return value


def text(table: Mapping[str, object], key: str, what: str) -> str:
    """Return a string of an object; raise CheckpointError if it is missing or something else."""
    value = table.get(key)
    if not isinstance(value, str):
        raise wrong(table, key, "a string", what)
    return value


def wrong(table: Mapping[str, object], key: str, allowed: str, what: str) -> CheckpointError:
    """Return the error for a value that is not what it must be."""
    got = f"is {shown(table[key])}" if key in table else "is missing"
    return CheckpointError(f"{what}: {quoted(key)} {got}; it must be {allowed}.")


def shown(value: object) -> str:
    """Return a JSON value for a message: short, on one line."""
    if isinstance(value, str):
        return quoted(value)
    if isinstance(value, list | dict):
        return f"{_kind(value)} of {len(value)}"
    return json.dumps(value)[:40]


def _kind(value: object) -> str:
    return (
        "a list"
        if isinstance(value, list)
        else "an object"
        if isinstance(value, dict)
        else "a value"
    )


def _unique(pairs: list[tuple[str, object]]) -> dict[str, object]:
    table = dict(pairs)
    if len(table) != len(pairs):
        seen: set[str] = set()
        twice = next(key for key, _ in pairs if key in seen or seen.add(key))  # type: ignore[func-returns-value]
        raise ValueError(f"key {quoted(twice)} is there twice")
    return table


def _first_words(error: ValueError) -> str:
    return " ".join(str(error).split())[:120].rstrip(".")
