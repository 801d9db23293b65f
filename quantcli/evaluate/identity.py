"""What tells one model file, vocabulary or build from another."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from hashlib import sha256
from pathlib import Path

from quantcli import __version__
from quantcli.kernels import jit

Progress = Callable[[str, int, int], None]

_CHUNK_NBYTES = 8 << 20


def files_sha256(paths: Sequence[Path], progress: Progress | None = None) -> str:
    """Return the sha256 of files' bytes, one file after the other."""
    total, done = sum(path.stat().st_size for path in paths), 0
    digest = sha256()
    for path in paths:
        with path.open("rb") as file:
            while data := file.read(_CHUNK_NBYTES):
                digest.update(data)
                done += len(data)
                if progress is not None:
                    progress(f"reading {paths[0].name}", done, total)
    return digest.hexdigest()


def vocabulary_sha256(metadata: Mapping[str, object]) -> str:
    """Return the sha256 of a vocabulary: its tokens in order, each led by its length."""
    tokens = metadata.get("tokenizer.ggml.tokens", ())
    digest = sha256()
    for token in tokens:  # type: ignore[attr-defined]
        data = str(token).encode()
        digest.update(len(data).to_bytes(4, "little") + data)
    return digest.hexdigest()


def build() -> str:
    """Return what decides the last bits of a logit: version, kernels, instruction set."""
    return f"quantcli {__version__}, kernels {jit.cache_dir().name}"
