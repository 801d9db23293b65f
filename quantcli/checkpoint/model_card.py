"""A model's name, authors, licence and sampling defaults, as `general.*` keys of GGUF.

What a model is called and based on is guessed from its README.md, its config.json and its folder by
the `gguf` package, whose guesses are what users know from other programs.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from math import isfinite, prod
from pathlib import Path

import numpy as np

from quantcli.checkpoint.gguf_write import WriteValue

_MAX_CARD_NBYTES = 2 << 20  # results of benchmarks in a card come to 300 KB
_ALIAS = re.compile(r"(?m)(?:^|[\s\[{,:-])\*[A-Za-z0-9_-]+\s*(?:$|[,\]}])")
_QUANTIZATION_VERSION = 2

# GGUF's name less "general.sampling.", and the keys of generation_config.json; the first counts.
_INTEGERS: dict[str, tuple[str, ...]] = {
    "top_k": ("top_k",),
    "penalty_last_n": ("penalty_last_n",),
    "mirostat": ("mirostat",),
}
_NUMBERS: dict[str, tuple[str, ...]] = {
    "top_p": ("top_p",),
    "min_p": ("min_p",),
    "xtc_probability": ("xtc_probability",),
    "xtc_threshold": ("xtc_threshold",),
    "temp": ("temperature",),
    "penalty_repeat": ("penalty_repeat", "repetition_penalty"),
    "mirostat_tau": ("mirostat_tau",),
    "mirostat_eta": ("mirostat_eta",),
}


def general_keys(
    folder: Path, arch: str, shapes: Mapping[str, tuple[int, ...]], generation: Mapping[str, object]
) -> dict[str, WriteValue]:
    """Return the `general.*` keys of a folder but for the file's type.

    shapes       of all tensors, by GGUF name
    generation   generation_config.json
    """
    keys: dict[str, WriteValue] = {"general.architecture": arch, "general.type": "model"}
    keys |= sampling_keys(generation)
    keys |= _described(folder, arch, shapes)
    keys["general.quantization_version"] = np.uint32(_QUANTIZATION_VERSION)
    return keys


def sampling_keys(generation: Mapping[str, object]) -> dict[str, WriteValue]:
    """Return the sampling defaults of generation_config.json; what is no number is left out."""
    prefix = "general.sampling."
    keys: dict[str, WriteValue] = {}
    if isinstance(sequence := generation.get("sequence"), str):
        keys[prefix + "sequence"] = sequence
    for name, sources in _INTEGERS.items():
        value = _first(generation, sources)
        if isinstance(value, int) and not isinstance(value, bool) and abs(value) < 1 << 31:
            keys[prefix + name] = np.int32(value)
    for name, sources in _NUMBERS.items():
        value = _first(generation, sources)
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if is_number and isfinite(number := float(value)) and abs(number) < 1e38:  # type: ignore[arg-type]
            keys[prefix + name] = np.float32(number)
    return keys


def _first(table: Mapping[str, object], keys: tuple[str, ...]) -> object:
    return next((table[key] for key in keys if key in table), None)


def size_label(shapes: Mapping[str, tuple[int, ...]]) -> str:
    """Return how large a model is in a few characters: "135M", "8x7B"."""
    from gguf import size_label as label

    total = shared = per_expert = 0
    counts = []
    for name, shape in shapes.items():
        total += prod(shape)
        if "_exps." in name and len(shape) >= 3:
            counts.append(shape[-3])
            per_expert += prod(shape) // shape[-3]
        else:
            shared += prod(shape)
    n_experts = sum(counts) // len(counts) if counts else 0
    return str(label(total, shared, per_expert, n_experts))


def _described(
    folder: Path, arch: str, shapes: Mapping[str, tuple[int, ...]]
) -> dict[str, WriteValue]:
    from gguf import GGUFWriter, Metadata

    n_params = sum(map(prod, shapes.values()))
    with _quiet():
        found = _guess(folder, n_params)
        if found.name is None:
            found.name = folder.resolve().name
        if found.size_label is None:
            found.size_label = size_label(shapes)
        for name in vars(Metadata()):  # sampling is read above, by rules that do not age
            if name.startswith("sampling_"):
                setattr(found, name, None)
        _only_texts(found)
        writer = GGUFWriter(None, arch)
        found.set_gguf_meta_model(writer)
        return {
            key: _value(entry.value)
            for key, entry in writer.kv_data[0].items()
            if key != "general.architecture"
        }


def _guess(folder: Path, n_params: int):  # type: ignore[no-untyped-def]
    """Return the package's guess, without the card if that one is malformed."""
    from gguf import Metadata
    from yaml import YAMLError

    broken = (
        ValueError,
        TypeError,
        KeyError,
        AttributeError,
        IndexError,
        OSError,
        RecursionError,
        YAMLError,
    )
    if _is_harmless(folder / "README.md"):
        try:
            return Metadata.load(None, folder.resolve(), None, n_params)
        except broken:
            pass
    try:
        params = Metadata.load_hf_parameters(folder)
        return Metadata.apply_metadata_heuristic(Metadata(), {}, params, folder.resolve(), n_params)
    except broken:
        return Metadata()


def _is_harmless(card: Path) -> bool:
    """Return whether a card can be parsed: not huge, no aliases that multiply when expanded."""
    try:
        if card.stat().st_size > _MAX_CARD_NBYTES:
            return False
        return not _ALIAS.search(card.read_text(encoding="utf-8").partition("\n---")[0])
    except FileNotFoundError:
        return True
    except (OSError, ValueError):
        return False


def _only_texts(found: object) -> None:
    """Turn what YAML took for numbers or dates into the text it was, and drop what is neither."""
    for name, value in vars(found).items():
        if name in ("base_models", "datasets") and isinstance(value, list):
            tables = [entry for entry in value if isinstance(entry, dict)]
            texts = [{str(k): str(v) for k, v in t.items() if not _is_nested(v)} for t in tables]
            setattr(found, name, texts)
        elif isinstance(value, list):
            setattr(found, name, [str(item) for item in value if not _is_nested(item)] or None)
        elif value is not None:
            setattr(found, name, None if _is_nested(value) else str(value))


def _is_nested(value: object) -> bool:
    return isinstance(value, list | dict | set)


def _value(value: object) -> WriteValue:
    return np.uint32(value) if isinstance(value, int) else value  # type: ignore[return-value]


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep the package's remarks off standard error."""
    loggers = [logging.getLogger(name) for name in ("gguf", "metadata", "gguf.gguf_writer")]
    before = [logger.disabled for logger in loggers]
    try:
        for logger in loggers:
            logger.disabled = True
        yield
    finally:
        for logger, was in zip(loggers, before, strict=True):
            logger.disabled = was
