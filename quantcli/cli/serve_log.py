"""What `serve` says on standard error: where it listens, and a line for each request."""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from quantcli.server.service import Service
    from quantcli.server.settings import Log

_lock = threading.Lock()  # the engine's thread reports its errors, too


def logger(*, as_json: bool, quiet: bool) -> Log | None:
    """Return what writes log entries: as JSON, as text, or only errors if it is to be quiet."""

    def log(entry: Mapping[str, object]) -> None:
        if as_json:
            write(_json_line(entry))
        elif "traceback" in entry:
            write(str(entry["traceback"]).rstrip())
        elif not quiet:
            write(_text_line(entry))

    return log


def started(url: str, service: Service, *, as_json: bool) -> None:
    """Say that requests are answered now."""
    served = service.served
    if as_json:
        write(_json_line({"event": "started", "url": url, "model": served.name}))
        return
    write(f"{served.name} is served at {url}, the API at {url}/v1. Ctrl-C stops.")
    write(f"{service.n_parallel} answers at once, each in a context of {served.context} tokens.")


def write(text: str) -> None:
    """Write a line; whoever closed standard error misses it."""
    try:
        with _lock:
            print(text, file=sys.stderr, flush=True)
    except (OSError, ValueError):
        return


def _json_line(entry: Mapping[str, object]) -> str:
    time = datetime.now(UTC).isoformat(timespec="milliseconds")
    return json.dumps({"time": time, "level": "info", **entry})


def _text_line(entry: Mapping[str, object]) -> str:
    from quantcli.cli.render import printable

    words = [
        f"{datetime.now():%H:%M:%S}",
        str(entry["method"]),
        printable(str(entry["path"]))[:100],
        str(entry["status"]),
        f"{entry['seconds']:.3f} s",
    ]
    if entry.get("total_tokens"):
        words.append(f"{entry['prompt_tokens']} + {entry['completion_tokens']} tokens")
    return " ".join(words)
