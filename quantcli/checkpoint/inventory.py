"""The models that were downloaded to this machine: list them, find one by name, delete it.

They lie in the shared Hugging Face cache or in quantcli's own folder. A file that the user put
somewhere is never in the list and never deleted.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from quantcli.checkpoint import home, hub_cache
from quantcli.checkpoint.names import HubName, parse
from quantcli.checkpoint.quants import FileSet, choose, file_sets, quant_of
from quantcli.checkpoint.sources import ModelRow, rows
from quantcli.errors import QuantcliError, UnknownName, UsageError

OWN_FOLDER = "quantcli"
HUB_CACHE = "hub cache"
PARTIAL = "partial download"


@dataclass(frozen=True, slots=True)
class InstalledModel:
    """A downloaded model, whole, or what an interrupted download left (`where` says so)."""

    name: str  # a name that leads to it
    paths: tuple[Path, ...]  # the shards, in order, or one Hugging Face folder
    nbytes: int
    where: str  # OWN_FOLDER, HUB_CACHE or PARTIAL
    last_used: float  # seconds since the epoch
    repo: str = ""  # in the hub cache: its repository
    files: FileSet = ()  # in the hub cache: its shards in the repository

    @property
    def path(self) -> Path:
        """Return the first shard, which is what one opens."""
        return self.paths[0]

    def format(self) -> str:
        """Read from the file what it is quantized as (`q4_k_m`), or return "" if it is unreadable.

        Takes as long as opening the model.
        """
        from gguf import LlamaFileType

        from quantcli.checkpoint import open_checkpoint

        if self.where == PARTIAL:
            return ""
        try:
            with open_checkpoint(self.path) as checkpoint:
                number = checkpoint.metadata.get("general.file_type")
            name = str(LlamaFileType(number).name)
        except (QuantcliError, ValueError):
            return ""
        return name.removeprefix("MOSTLY_").removeprefix("ALL_").lower()


def folders() -> dict[str, Path]:
    """Return the folders that hold downloaded models, which need not exist yet."""
    return {"models": home.home(), "hub_cache": hub_cache.cache_folder()}


def installed() -> list[InstalledModel]:
    """Return the downloaded models, sorted by name."""
    found = [
        InstalledModel(model.name, (model.path,), model.nbytes, OWN_FOLDER, home.last_used(model))
        for model in home.stored()
    ]
    for repo in hub_cache.cached_repos():
        found += hub_models(repo)
        if folder := hub_cache.cached_folder(repo):
            found.append(_folder(repo, folder))
    return sorted(found, key=lambda model: (model.name.lower(), model.where))


def partial() -> list[InstalledModel]:
    """Return what interrupted downloads left; pulling the same name again goes on from there."""
    names = {row.sha256: row.name for row in rows().values()}
    left = [(names.get(path.name, path.name), path) for path in home.staged()]
    for repo in hub_cache.cached_repos():
        left += [(repo, path) for path in hub_cache.partial_blobs(repo)]
    return [
        InstalledModel(name, (path,), nbytes, PARTIAL, path.stat().st_mtime)
        for name, path in left
        if (nbytes := home.size_of(path))
    ]


def hub_models(repo: str, revision: str = "main") -> list[InstalledModel]:
    """Return the complete models of a repository in the hub cache, the revision's own first.

    A file that several snapshots hold is listed once.
    """
    snapshots: dict[str, list[hub_cache.CachedFile]] = {}
    for cached in hub_cache.cached(repo, revision):
        snapshots.setdefault(cached.commit, []).append(cached)
    found: dict[str, InstalledModel] = {}
    for snapshot in snapshots.values():
        for model in _models_of(repo, snapshot):
            found.setdefault(model.files[0].path, model)
    return list(found.values())


def is_meant(target: HubName, model: InstalledModel) -> bool:
    """Return whether a hub name means a model of the hub cache; without a tag it means all."""
    if target.repo.lower() != model.repo.lower():
        return False
    if target.file:
        return target.file.lower() in (file.path.lower() for file in model.files)
    if target.quant is None:
        return True
    if model.path.is_dir():
        return False
    try:
        return bool(choose(model.files, repo=target.repo, quant=target.quant))
    except UsageError:
        return False


def matching(name: str) -> list[InstalledModel]:
    """Return the downloaded models that a name means: one, or all those of a repository.

    Interrupted downloads count. Raises UnknownName with what is here, and UsageError for the path
    of a file.
    """
    everything = [*installed(), *partial()]
    if found := [model for model in everything if model.name.lower() == name.lower()]:
        return found
    target = parse(name)
    if isinstance(target, Path):
        raise UsageError(f"{target} is your own file; only downloaded models are removed.")
    if isinstance(target, ModelRow):
        found = [model for model in everything if model.name == target.name]
    else:
        found = [model for model in everything if is_meant(target, model)]
    if not everything:
        raise UsageError(f"{name} is not here: no model has been downloaded to this machine.")
    if not found:
        raise UnknownName("downloaded model", name, {model.name for model in everything})
    return found


def remove(name: str) -> int:
    """Delete the models that a name means and return the bytes freed; raises as `matching`."""
    return delete(matching(name))


def delete(models: Iterable[InstalledModel]) -> int:
    """Delete downloaded models and return the bytes freed; what others still use stays.

    Raises ResourceError if the system refuses.
    """
    freed = 0
    cached: list[hub_cache.CachedFile] = []
    for model in models:
        if model.where == PARTIAL:
            freed += model.nbytes
            home.remove_partial(model.path)
        elif model.where == OWN_FOLDER:
            freed += sum(home.delete(own) for own in home.stored() if own.path == model.path)
        else:
            if model.path.is_dir():
                cached += hub_cache.cached_parts(model.path)
                continue
            # Every snapshot that holds the model: else an older one would bring it back.
            paths = {file.path for file in model.files}
            cached += [file for file in hub_cache.cached(model.repo) if file.file.path in paths]
    if cached:
        from quantcli.checkpoint import hub

        freed += hub.delete(cached)
    return freed


def _models_of(repo: str, snapshot: list[hub_cache.CachedFile]) -> list[InstalledModel]:
    """Return the complete models of one snapshot."""
    by_path = {cached.file.path: cached for cached in snapshot}
    sets = file_sets(cached.file for cached in snapshot)
    tags = [quant_of(files[0].path) for files in sets]
    found = []
    for files, tag in zip(sets, tags, strict=True):
        members = [by_path[file.path] for file in files]
        by_tag = f"{repo}:{tag}" if tag and tags.count(tag) == 1 else ""
        found.append(
            InstalledModel(
                name=_row_name(repo, files[0].path) or by_tag or f"{repo}/{files[0].path}",
                paths=tuple(member.path for member in members),
                nbytes=sum(file.nbytes for file in files),
                where=HUB_CACHE,
                last_used=max(member.last_used for member in members),
                repo=repo,
                files=files,
            )
        )
    return found


def _folder(repo: str, folder: Path) -> InstalledModel:
    """Return a snapshot that is a Hugging Face folder as a model."""
    parts = hub_cache.cached_parts(folder)
    return InstalledModel(
        name=repo,
        paths=(folder,),
        nbytes=sum(part.file.nbytes for part in parts),
        where=HUB_CACHE,
        last_used=max(part.last_used for part in parts),
        repo=repo,
        files=tuple(part.file for part in parts),
    )


def _row_name(repo: str, path: str) -> str:
    """Return the known model whose file this is, or ""."""
    for row in rows().values():
        if (row.hub.repo, row.file.lower()) == (repo, path.lower()):
            return row.name
    return ""
