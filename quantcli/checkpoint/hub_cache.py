"""The cache that huggingface_hub and other programs share, read and written in its layout.

    models--ORG--REPO/blobs/DIGEST            the file; DIGEST.incomplete while it arrives
    models--ORG--REPO/snapshots/COMMIT/PATH   a link to it; the file itself where links are refused
    models--ORG--REPO/refs/main               the commit that `main` last meant

DIGEST is the sha256 of a large file and git's sha1 of a small one. Nothing here uses the network.
Source: https://huggingface.co/docs/huggingface_hub/guides/manage-cache
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from quantcli.checkpoint.quants import ModelFile

COMMIT = re.compile(r"[0-9a-f]{40}")
DIGEST = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")


@dataclass(frozen=True, slots=True)
class CachedFile:
    """A GGUF file in the shared cache."""

    repo: str
    commit: str
    file: ModelFile
    path: Path  # in the snapshot
    last_used: float  # seconds since the epoch


def cache_folder() -> Path:
    """Return the shared cache: HF_HUB_CACHE, else `hub` in HF_HOME, else the platform's default."""
    for variable in ("HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE"):
        if configured := os.environ.get(variable):
            return Path(os.path.expandvars(configured)).expanduser()
    if configured := os.environ.get("HF_HOME"):
        return Path(os.path.expandvars(configured)).expanduser() / "hub"
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base).expanduser() / "huggingface" / "hub"


def repo_folder(repo: str) -> Path:
    """Return the folder of a repository in the shared cache."""
    return cache_folder() / ("models--" + repo.replace("/", "--"))


def snapshot_path(repo: str, commit: str, path: str) -> Path:
    """Return where a file of a commit lies or would lie."""
    return repo_folder(repo).joinpath("snapshots", commit, *PurePosixPath(path).parts)


def partial_path(blob: Path) -> Path:
    """Return where a blob is while it arrives."""
    return blob.with_name(f"{blob.name}.incomplete")


def present_nbytes(blob: Path) -> int:
    """Return how many bytes of a blob are here, whole or partial."""
    for path in (blob, partial_path(blob)):
        with suppress(OSError):
            return path.stat().st_size
    return 0


def partial_blobs(repo: str) -> list[Path]:
    """Return the blobs of a repository that have arrived in part."""
    return sorted(repo_folder(repo).glob("blobs/*.incomplete"))


def cached_repos() -> list[str]:
    """Return the repositories that have a folder in the shared cache."""
    names = (path.name for path in sorted(cache_folder().glob("models--*--*")))
    return [name.removeprefix("models--").replace("--", "/", 1) for name in names]


def cached(repo: str, revision: str = "main") -> list[CachedFile]:
    """Return the GGUF files of a repository in the shared cache.

    Those of the commit that the revision last meant come first, then those of other commits;
    a revision that is itself a commit means that one alone.
    """
    return [
        _cached_file(repo, snapshot, path)
        for snapshot in _snapshots(repo, revision)
        for path in sorted(snapshot.rglob("*"))
        if path.suffix.lower() == ".gguf" and path.is_file()
    ]


def _snapshots(repo: str, revision: str) -> list[Path]:
    """Return the snapshots of a repository, that of the revision first; of a commit, it alone."""
    folder = repo_folder(repo)
    commit = revision
    with suppress(OSError):
        commit = (folder / "refs" / revision).read_text(encoding="utf-8").strip()
    snapshots = [path for path in folder.glob("snapshots/*") if path.is_dir()]
    if COMMIT.fullmatch(revision):
        snapshots = [path for path in snapshots if path.name == revision]
    snapshots.sort(key=lambda path: (path.name == commit, path.stat().st_mtime), reverse=True)
    return snapshots


def cached_folder(repo: str, revision: str = "main") -> Path | None:
    """Return a snapshot that is a whole Hugging Face folder, or None; the revision's own first."""
    return next((path for path in _snapshots(repo, revision) if _is_whole_folder(path)), None)


def cached_parts(folder: Path) -> list[CachedFile]:
    """Return the files of a snapshot that is a Hugging Face folder."""
    repo = folder.parent.parent.name.removeprefix("models--").replace("--", "/", 1)
    files = [path for path in sorted(folder.rglob("*")) if path.is_file()]
    return [_cached_file(repo, folder, path) for path in files if path.suffix.lower() != ".gguf"]


def _is_whole_folder(snapshot: Path) -> bool:
    """Return whether a snapshot has a configuration and all the weights that its index names."""
    if not (snapshot / "config.json").is_file():
        return False
    try:
        index = json.loads((snapshot / "model.safetensors.index.json").read_text(encoding="utf-8"))
        names = set(index["weight_map"].values())
    except FileNotFoundError:
        names = {"model.safetensors"}
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return False
    return all(isinstance(name, str) and (snapshot / name).is_file() for name in names)


def link(blob: Path, pointer: Path) -> None:
    """Make a snapshot's path lead to a blob; where links are refused, the blob moves there."""
    if pointer.exists():
        return
    pointer.parent.mkdir(parents=True, exist_ok=True)
    pointer.unlink(missing_ok=True)  # a dangling link
    try:
        pointer.symlink_to(os.path.relpath(blob, pointer.parent))
    except (OSError, NotImplementedError):
        os.replace(blob, pointer)


def write_ref(repo: str, revision: str, commit: str) -> None:
    """Record which commit a branch or tag means."""
    if revision == commit:
        return
    ref = repo_folder(repo) / "refs" / revision
    ref.parent.mkdir(parents=True, exist_ok=True)
    draft = ref.with_name(f"{ref.name}.{os.getpid()}.tmp")
    draft.write_text(commit, encoding="utf-8")
    os.replace(draft, ref)


def digest_of(path: Path, like: str) -> str:
    """Return a file's sha256, or the sha1 that git gives it where `like` is that long."""
    if len(like) == 64:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    sha1 = hashlib.sha1(b"blob %d\0" % path.stat().st_size, usedforsecurity=False)
    with path.open("rb") as file:
        while data := file.read(1 << 20):
            sha1.update(data)
    return sha1.hexdigest()


def is_safe(path: str) -> bool:
    """Return whether a path that a server names stays inside its snapshot, on every platform."""
    parts = path.split("/")
    return all(part not in ("", ".", "..") for part in parts) and not re.search(r"[\\:\0]", path)


def _cached_file(repo: str, snapshot: Path, path: Path) -> CachedFile:
    status = path.stat()
    blob = path.resolve().name
    file = ModelFile(
        path=path.relative_to(snapshot).as_posix(),
        nbytes=status.st_size,
        digest=blob if DIGEST.fullmatch(blob) else "",
    )
    return CachedFile(repo, snapshot.name, file, path, max(status.st_atime, status.st_mtime))
