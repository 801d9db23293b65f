"""What a model's name on the command line means: a file, a known model, or a hub repository.

    path/to/model.gguf               a file on this machine
    smollm2   smollm2:Q8_0           a row of models/, or another quantization of its repository
    org/repo  org/repo:Q4_K_M        a repository of the hub, `hf.co/` or its web address before it
    org/repo/file.gguf               one file of it, or any shard of a split one

A path that exists wins. Nothing here touches the network.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from urllib.parse import unquote

from quantcli.checkpoint.quants import quant_of
from quantcli.checkpoint.sources import ModelRow, find, rows
from quantcli.errors import UsageError

_WEB = re.compile(r"^(?:https?://)?(?:www\.)?(?:hf\.co|huggingface\.co)/", re.I)
_FILE_PAGE = re.compile(
    r"^(?P<repo>[^/]+/[^/]+)/(?:resolve|blob)/(?P<revision>[^/]+)/(?P<file>.+)$"
)
_REPO = re.compile(r"^[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*$", re.ASCII)
_PATH = re.compile(r"^([./~]|[A-Za-z]:[\\/]|.*\\)|\.(safetensors|bin|ggml|pth?)$", re.I)


@dataclass(frozen=True, slots=True)
class HubName:
    """A model in a repository of the hub: one file, or the one that a quantization means."""

    repo: str
    quant: str | None = None
    file: str | None = None
    revision: str = "main"

    def __str__(self) -> str:
        if self.file:
            return f"{self.repo}/{self.file}"
        return f"{self.repo}:{self.quant}" if self.quant else self.repo


def parse(name: str) -> Path | ModelRow | HubName:
    """Return what a name means: an existing path, a row of models/, or a hub name.

    Raises UsageError for what looks like a path and is missing, with what lies near it, and
    UnknownName for a bare word that is no known model.
    """
    if not name.strip():
        raise UsageError(
            "the model's name is empty. Give a .gguf file or a name; see quantcli list."
        )
    if web := _WEB.match(name):
        return _hub_name(unquote(name[web.end() :]).split("?")[0].strip("/"), name)
    path = Path(name).expanduser()
    if path.exists() and not (path.is_dir() and name.lower() in rows()):
        return path
    if _looks_like_path(name):
        raise UsageError(missing(path))
    if "/" in name:
        return _hub_name(name, name)
    alias, _, quant = name.partition(":")
    row = find(alias)
    if quant and quant.upper() != quant_of(row.file):
        return HubName(row.hub.repo, quant=_checked_quant(quant, name))
    return row


def missing(path: Path) -> str:
    """Return one line about a path that does not exist: the closest name, or what is there."""
    folder = path.parent
    if not folder.is_dir():
        return f"no such file: {path}. There is no folder {folder} either."
    try:
        names = sorted(entry.name for entry in folder.iterdir())
    except OSError as error:
        return f"no such file: {path}. Its folder cannot be read: {error.strerror}."
    lower = {entry.lower(): entry for entry in names}
    if close := get_close_matches(path.name.lower(), lower, n=3, cutoff=0.6):
        return f"no such file: {path}. Did you mean {' or '.join(lower[entry] for entry in close)}?"
    models = [entry for entry in names if entry.lower().endswith(".gguf")]
    if models:
        more = " and others" if len(models) > 5 else ""
        return f"no such file: {path}. That folder has {', '.join(models[:5])}{more}."
    return f"no such file: {path}. That folder has no .gguf file."


def _looks_like_path(name: str) -> bool:
    """Return whether a name that does not exist was meant as a path, rather than for the hub."""
    if _PATH.search(name):
        return True
    parts = name.split("/")
    if not name.lower().endswith(".gguf"):
        return False
    return len(parts) < 3 or Path(parts[0]).is_dir()


def _hub_name(name: str, original: str) -> HubName:
    """Parse `org/repo`, `org/repo:QUANT`, `org/repo/file.gguf` or the address of a file's page."""
    revision = "main"
    if page := _FILE_PAGE.match(name):
        revision, name = page["revision"], f"{page['repo']}/{page['file']}"
    parts = name.split("/")
    repo, colon, quant = "/".join(parts[:2]).partition(":")
    file = "/".join(parts[2:])
    if not _REPO.match(repo) or ".." in name or "--" in repo or (colon and file):
        raise UsageError(
            f"{original!r} is not a model's name. Use org/repo, org/repo:Q4_K_M, "
            "org/repo/file.gguf, a name from quantcli list, or the path of a file."
        )
    if file and not file.lower().endswith(".gguf"):
        raise UsageError(f"{original!r} does not name a .gguf file. Use org/repo/file.gguf.")
    wanted = _checked_quant(quant, original) if colon else None
    return HubName(repo, quant=wanted, file=file or None, revision=revision)


def _checked_quant(quant: str, original: str) -> str:
    """Return a quantization tag as asked for, or raise UsageError if it cannot be one."""
    if not re.fullmatch(r"[A-Za-z0-9][\w.-]*", quant, re.ASCII):
        raise UsageError(f"{original!r} ends in no quantization. Use a tag such as :Q4_K_M.")
    return quant
