"""Which file of a repository a name means: quantization tags, split files, and what is no model.

Pure functions over file names: the same rules serve a listing of the hub and the local cache.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from quantcli.errors import DownloadError, UsageError

# Tried in this order when a name asks for no quantization.
DEFAULT_QUANTS = ("Q4_K_M", "Q8_0")

# Companions that end in .gguf too: vision towers, calibration data, draft heads, adapters.
_NOT_A_MODEL = re.compile(
    r"(?<![a-z0-9])(mmproj|imatrix|mtp|draft|eagle\d*|dflash|lora|adapter)(?![a-z0-9])", re.I
)
_QUANT = re.compile(
    r"(?<![A-Za-z0-9])((?:UD-)?(?:I?Q\d|TQ\d|MXFP4|NVFP4)(?:_[A-Za-z0-9]+)*|BF16|FP?16|FP?32)"
    r"(?=[.\-/]|$)",
    re.I,
)
# What makes up a Hugging Face folder, by name: weights, and what says how to use them.
_FOLDER_FILE = re.compile(
    r"model[\w.-]*\.safetensors|model\.safetensors\.index\.json|(generation_|quantize_|quant_)?config"
    r"\.json|tokenizer(_config)?\.json|tokenizer\.model|(added_tokens|special_tokens_map|vocab)\.json"
    r"|merges\.txt|chat_template\.(jinja|json)|additional_chat_templates/[\w.-]+\.jinja|README\.md"
)
_SHARD = re.compile(r"^(?P<base>.+)-(?P<index>\d{5})-of-(?P<count>\d{5})\.gguf$", re.I)


@dataclass(frozen=True, slots=True)
class ModelFile:
    """One file of a repository."""

    path: str  # inside the repository, with forward slashes
    nbytes: int
    digest: str = ""  # sha256 (64 digits) or, for a small file, the git blob's sha1 (40 digits)


FileSet = tuple[ModelFile, ...]  # the shards of one model, in order; most have one


def is_model(path: str) -> bool:
    """Return whether a path names model weights, by its name alone."""
    return path.lower().endswith(".gguf") and not _NOT_A_MODEL.search(path)


def folder_files(files: Iterable[ModelFile]) -> FileSet:
    """Return the files of a Hugging Face folder, config.json first; none if it is not one."""
    parts = (file for file in files if _FOLDER_FILE.fullmatch(file.path))
    found = sorted(parts, key=lambda file: file.path)
    first = [file for file in found if file.path == "config.json"]
    if not first or not any(file.path.endswith(".safetensors") for file in found):
        return ()
    return (*first, *(file for file in found if file not in first))


def quant_of(path: str) -> str | None:
    """Return the quantization tag in a path (`Q4_K_M`), the last one if there are several."""
    found = _QUANT.findall(path.rpartition(".")[0])
    return str(found[-1]).upper() if found else None


def file_sets(files: Iterable[ModelFile]) -> list[FileSet]:
    """Return the models among some files, the shards of a split one together, sorted by path.

    A split model with a shard missing is left out.
    """
    groups: dict[tuple[str, int], list[ModelFile]] = {}
    for file in sorted(files, key=lambda file: file.path):
        if is_model(file.path):
            shard = _SHARD.match(file.path)
            key = (shard["base"], int(shard["count"])) if shard else (file.path, 1)
            groups.setdefault(key, []).append(file)
    return [tuple(group) for (_, count), group in groups.items() if len(group) == count]


def choose(files: Iterable[ModelFile], *, repo: str, quant: str | None = None) -> FileSet:
    """Return the model of a repository that a quantization means, in any case.

    Without one: Q4_K_M, then Q8_0, then the first. Raises DownloadError if there is none, and
    UsageError if the quantization is not there or means several.
    """
    sets = file_sets(files)
    if not sets:
        raise DownloadError(
            f"{repo} holds no GGUF model. Name a repository with .gguf files; many end in -GGUF."
        )
    if quant is None:
        for wanted in DEFAULT_QUANTS:
            if matching := _with_quant(sets, wanted):
                return matching[0]
        return sets[0]
    matching = _with_quant(sets, quant)
    if len(matching) == 1:
        return matching[0]
    if matching:
        choices = ", ".join(f"{repo}/{files[0].path}" for files in matching)
        raise UsageError(f"{repo} has several files of {quant}. Name one: {choices}.")
    raise UsageError(f"{repo} has no {quant}. It has {describe(sets)}.")


def choose_file(files: Iterable[ModelFile], *, repo: str, path: str) -> FileSet:
    """Return the model that a file name in any case belongs to, all shards of a split one.

    Raises UsageError with the models that the repository has.
    """
    sets = file_sets(files)
    for candidate in sets:
        if path.lower() in (file.path.lower() for file in candidate):
            return candidate
    if not sets:
        raise DownloadError(f"{repo} holds no GGUF model, so no {path} either.")
    raise UsageError(f"{repo} has no complete {path}. It has {describe(sets)}.")


def describe(sets: Sequence[FileSet], limit: int = 40) -> str:
    """Return `Q4_K_M (397.8 MB), Q8_0 (675.7 MB)`, or file names where the tag says too little."""
    tags = [quant_of(files[0].path) for files in sets]
    parts = []
    for files, tag in zip(sets, tags, strict=True):
        label = tag if tag and tags.count(tag) == 1 else files[0].path
        parts.append(f"{label} ({size_text(sum(file.nbytes for file in files))})")
    more = f" and {len(parts) - limit} more" if len(parts) > limit else ""
    return ", ".join(parts[:limit]) + more


def size_text(nbytes: int) -> str:
    """Return a size in decimal units, as disks and download pages state it: `98.4 MB`."""
    value = float(nbytes)
    for unit in ("bytes", "kB", "MB", "GB", "TB"):
        if value < 999.95 or unit == "TB":
            break
        value /= 1000
    return f"{nbytes} bytes" if unit == "bytes" else f"{value:.1f} {unit}"


def _with_quant(sets: Iterable[FileSet], quant: str) -> list[FileSet]:
    """Return the models whose tag is the wanted one, else those whose path holds it."""
    sets = list(sets)
    exact = [files for files in sets if quant_of(files[0].path) == quant.upper()]
    held = re.compile(rf"(?<![A-Za-z0-9]){re.escape(quant)}(?=[.\-/])", re.I)
    return exact or [files for files in sets if held.search(files[0].path)]
