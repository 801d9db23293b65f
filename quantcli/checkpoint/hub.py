"""Downloads from the Hugging Face hub. The only user of huggingface_hub.

huggingface_hub 2 starts an interrupted download again from the beginning. We keep the partial
file, let its `http_get` go on from there, and verify the digest before the file counts.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from threading import Thread
from typing import TYPE_CHECKING, BinaryIO, TypeVar, cast

from quantcli import __version__
from quantcli.checkpoint.home import (
    Notify,
    Progress,
    flush,
    locked,
    mismatch,
    remove_partial,
    require_space,
    write_errors,
)
from quantcli.checkpoint.hub_cache import (
    COMMIT,
    DIGEST,
    CachedFile,
    cache_folder,
    digest_of,
    is_safe,
    link,
    partial_path,
    present_nbytes,
    repo_folder,
    snapshot_path,
    write_ref,
)
from quantcli.checkpoint.quants import ModelFile, folder_files
from quantcli.errors import DownloadError, ResourceError

if TYPE_CHECKING:
    from huggingface_hub import ModelInfo

_T = TypeVar("_T")
_CHUNK = 1 << 20  # bytes between two steps of the progress


@dataclass(frozen=True, slots=True)
class Listing:
    """A repository at one commit: its GGUF files, and those that make up a Hugging Face folder."""

    repo: str
    revision: str  # as asked for: branch, tag or commit
    commit: str
    files: tuple[ModelFile, ...]
    licence: str  # "" where the repository does not state one
    folder: tuple[ModelFile, ...] = ()  # config.json first; none if it is no such folder


def endpoint() -> str:
    """Return the hub's address: HF_ENDPOINT or the public one."""
    return (os.environ.get("HF_ENDPOINT") or "https://huggingface.co").rstrip("/")


def is_offline() -> bool:
    """Return whether the environment forbids the network: QUANTCLI_OFFLINE or HF_HUB_OFFLINE."""
    values = (os.environ.get(name, "") for name in ("QUANTCLI_OFFLINE", "HF_HUB_OFFLINE"))
    return any(value.upper() in ("1", "ON", "YES", "TRUE") for value in values)


def list_files(repo: str, revision: str = "main", *, timeout_s: float = 10) -> Listing:
    """Ask the hub for the files of a repository; give up after `timeout_s`, whatever hangs.

    Raises DownloadError.
    """
    from huggingface_hub import HfApi

    _configure()
    api = HfApi(endpoint=endpoint(), library_name="quantcli", library_version=__version__)

    def ask() -> ModelInfo:
        return api.model_info(repo, revision=revision, timeout=timeout_s, files_metadata=True)

    with _hub_errors(repo):
        info = _within(timeout_s, ask)
        if not COMMIT.fullmatch(info.sha or ""):
            raise ValueError("no commit")
        files = tuple(
            ModelFile(
                path=sibling.rfilename,
                nbytes=sibling.size or 0,
                digest=(sibling.lfs.sha256 if sibling.lfs else sibling.blob_id) or "",
            )
            for sibling in info.siblings or ()
            if is_safe(sibling.rfilename)
        )
    licences = [tag[8:] for tag in info.tags or () if tag.startswith("license:")]
    models = tuple(file for file in files if file.path.lower().endswith(".gguf"))
    licence = licences[0] if licences else ""
    return Listing(repo, revision, str(info.sha), models, licence, folder_files(files))


def fetch(
    listing: Listing,
    files: Iterable[ModelFile],
    *,
    progress: Progress | None = None,
    notify: Notify = lambda line: None,
) -> Path:
    """Download files of a repository into the shared cache and return the path of the first.

    What is there is not fetched again; a partial file is continued. A file counts only once its
    size and digest are those that the hub states. Raises DownloadError, and ResourceError if
    the disk is too small or fills up.
    """
    repo, commit, files = listing.repo, listing.commit, tuple(files)
    for file in files:
        if not DIGEST.fullmatch(file.digest):
            raise DownloadError(f"{repo}/{file.path}: the hub states no digest to verify it with.")
    blobs = repo_folder(repo) / "blobs"
    wanted = [file for file in files if not snapshot_path(repo, commit, file.path).exists()]
    missing = sum(file.nbytes - present_nbytes(blobs / file.digest) for file in wanted)
    if missing > 0:
        require_space(cache_folder(), missing, repo)
    with write_errors(cache_folder()):
        blobs.mkdir(parents=True, exist_ok=True)
        for file in wanted:
            blob, pointer = blobs / file.digest, snapshot_path(repo, commit, file.path)
            lock = cache_folder() / ".locks" / blobs.parent.name / f"{file.digest}.lock"
            with locked(lock, notify):
                if not (pointer.exists() or blob.exists()):
                    _download(listing, file, blob, progress)
                link(blob, pointer)
        write_ref(repo, listing.revision, commit)
    return snapshot_path(repo, commit, files[0].path)


def delete(files: Iterable[CachedFile]) -> int:
    """Delete files from the shared cache and return the bytes freed.

    A blob that another snapshot or repository still leads to stays. Raises ResourceError if the
    cache refuses.
    """
    from huggingface_hub import scan_cache_dir

    _configure()
    wanted = {os.path.realpath(file.path.parent) + os.sep + file.path.name for file in files}
    info = scan_cache_dir(cache_folder())
    strategy = info.delete_files(
        *(
            file
            for repo in info.repos
            for revision in repo.revisions
            for file in revision.files
            if str(file.file_path) in wanted
        )
    )
    strategy.execute()
    if left := [path for path in wanted if os.path.lexists(path)]:
        raise ResourceError(f"cannot delete {left[0]}: the cache refuses. Check its permissions.")
    return int(strategy.expected_freed_size)


def _configure() -> None:
    """Keep huggingface_hub quiet: progress, retries and errors are told in our own words."""
    from huggingface_hub import constants
    from huggingface_hub.utils import logging
    from huggingface_hub.utils.tqdm import disable_progress_bars

    if "HF_HUB_VERBOSITY" not in os.environ:
        logging.set_verbosity(50)  # above errors
    disable_progress_bars("huggingface_hub.http_get")
    constants.HF_HUB_DISABLE_TELEMETRY = True  # else it asks the hub for a list of agents first
    # It writes and reports this many bytes at a time; 10 MB are many seconds on a slow line.
    constants.DOWNLOAD_CHUNK_SIZE = min(constants.DOWNLOAD_CHUNK_SIZE, _CHUNK)


def _download(listing: Listing, file: ModelFile, blob: Path, progress: Progress | None) -> None:
    """Fetch one file next to where it will be, verify it, and move it there."""
    partial = partial_path(blob)
    with write_errors(cache_folder(), partial):
        was_resumed = _receive(listing, file, partial, progress)
        actual = digest_of(partial, file.digest)
        if actual != file.digest and was_resumed:
            # What an earlier download left may be at fault: once more, from the start.
            remove_partial(partial)
            _receive(listing, file, partial, progress)
            actual = digest_of(partial, file.digest)
        if actual != file.digest:
            remove_partial(partial)
            raise mismatch(f"{listing.repo}/{file.path}", file.digest, actual)
        os.replace(partial, blob)


def _receive(listing: Listing, file: ModelFile, partial: Path, progress: Progress | None) -> bool:
    """Append what is missing to a partial file and return whether some of it was there."""
    from huggingface_hub import hf_hub_url
    from huggingface_hub.file_download import http_get
    from huggingface_hub.utils._headers import build_hf_headers

    _configure()
    url = hf_hub_url(listing.repo, file.path, revision=listing.commit, endpoint=endpoint())
    headers = build_hf_headers(library_name="quantcli", library_version=__version__)
    headers["Accept-Encoding"] = "identity"  # compressed bytes could be neither counted nor resumed
    with partial.open("ab") as target, _hub_errors(listing.repo, writing=True):
        start = target.tell()
        if start > file.nbytes:
            start = target.truncate(0)
        counted = _Counted(target, PurePosixPath(file.path).name, file.nbytes, progress)
        http_get(
            url,
            cast(BinaryIO, counted),
            resume_size=start,
            headers=headers,
            expected_size=file.nbytes,
        )
        flush(target)
    return start > 0


class _Counted:
    """The part of a binary file that http_get uses; it reports how far the file has come."""

    def __init__(self, file: BinaryIO, label: str, total: int, progress: Progress | None) -> None:
        self._file, self._label, self._total, self._progress = file, label, total, progress
        self._report()

    def write(self, data: bytes) -> int:
        """Append and report; written through, so that an interrupt loses nothing."""
        written = self._file.write(data)
        self._file.flush()
        self._report()
        return written

    def tell(self) -> int:
        """Return the position."""
        return self._file.tell()

    def seek(self, position: int) -> int:
        """Move to a position."""
        return self._file.seek(position)

    def truncate(self) -> int:
        """Cut off what follows the position: the server sends the file from the start."""
        return self._file.truncate()

    def _report(self) -> None:
        if self._progress:
            self._progress(self._label, self._file.tell(), self._total)


@contextmanager
def _hub_errors(repo: str, *, writing: bool = False) -> Iterator[None]:
    """Turn what huggingface_hub raises into one sentence about a repository.

    While `writing`, an OSError with a number is the disk's and passes; http_get's own have none.
    """
    # The base of its transport errors, httpx's or httpx2's as the version has it.
    from huggingface_hub.errors import HTTPError  # type: ignore[attr-defined]

    try:
        yield
    except (HTTPError, OSError, ValueError, TypeError, KeyError) as error:
        if writing and isinstance(error, OSError) and error.errno is not None:
            raise
        raise DownloadError(_sentence(repo, error)) from error


def _sentence(repo: str, error: Exception) -> str:
    """Return what went wrong at the hub and what to do, in one line."""
    from huggingface_hub import errors

    words = " ".join(str(error).split())[:120]
    reason = re.sub(r"^\[Errno -?\d+\] ", "", words) or type(error).__name__
    if isinstance(error, errors.GatedRepoError):
        return (
            f"{repo} is gated. Accept its terms at {endpoint()}/{repo}, "
            "then set HF_TOKEN to a token that may read it."
        )
    if isinstance(error, errors.RepositoryNotFoundError):
        return (
            f"the hub has no repository {repo}, or it is private. Check the spelling, "
            "or set HF_TOKEN to a token that may read it."
        )
    if isinstance(error, errors.EntryNotFoundError | errors.RevisionNotFoundError):
        return f"{repo}: the hub has no such file or revision any more. Look at its page."
    if isinstance(error, errors.HfHubHTTPError):
        return _status_sentence(repo, error.response.status_code)
    if isinstance(error, TimeoutError) or "Timeout" in type(error).__name__:
        return f"the hub at {endpoint()} does not answer in time. Check the network."
    if isinstance(error, OSError):
        return f"the download from {repo} broke off: {reason}. Pull again to go on."
    if isinstance(error, ValueError | TypeError | KeyError):
        return (
            f"{endpoint()} does not answer like the hub ({reason}). "
            "A proxy or a login page may stand in between."
        )
    return f"cannot reach the hub at {endpoint()}: {reason}."


def _status_sentence(repo: str, status: int) -> str:
    if status in (401, 403):
        return f"the hub refuses access to {repo} (status {status}). Check HF_TOKEN."
    return f"the hub answers for {repo} with an error (status {status}). Try again later."


def _within(seconds: float, ask: Callable[[], _T]) -> _T:
    """Return what a call returns, or raise TimeoutError; Ctrl-C works while it waits.

    A name server that does not answer would otherwise hold us for half a minute, deaf to Ctrl-C.
    """
    results: list[_T] = []
    failures: list[Exception] = []

    def run() -> None:
        try:
            results.append(ask())
        except Exception as error:  # noqa: BLE001 - raised again by the thread that waits
            failures.append(error)

    thread = Thread(target=run, name="hub", daemon=True)
    thread.start()
    thread.join(seconds)
    if failures:
        raise failures[0]
    if not results:
        raise TimeoutError
    return results[0]
