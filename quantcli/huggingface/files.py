"""The small files of a Hugging Face folder: configuration, tokenizer, chat template."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from quantcli.checkpoint.json_file import parse_object, read_bytes, read_object, wrong
from quantcli.errors import CheckpointError
from quantcli.text.hf_vocabulary import TokenizerFiles

CONFIG = "config.json"
GENERATION = "generation_config.json"
_MAX_TOKENIZER_NBYTES = 128 << 20  # the largest tokenizer.json, of 262,144 tokens, is 33 MB
_MAX_TEMPLATE_NBYTES = 4 << 20


def read_config(folder: Path) -> dict[str, object]:
    """Return config.json; raise CheckpointError if it is missing or malformed."""
    path = folder / CONFIG
    if not path.is_file():
        raise CheckpointError(f"{folder}: has no {CONFIG}; fetch the whole model.")
    return read_object(path)


def class_name(config: Mapping[str, object], folder: Path) -> str:
    """Return the model's class: the first of `architectures`, a text model's own before it."""
    nested = config.get("text_config")
    for table in (nested, config):
        named = table.get("architectures") if isinstance(table, dict) else None
        if isinstance(named, list) and named and isinstance(named[0], str):
            return named[0]
    raise wrong(config, "architectures", "a list with the model's class", str(folder / CONFIG))


def quantization_of(config: Mapping[str, object], folder: Path) -> Mapping[str, object]:
    """Return how the weights are packed, empty if they are not.

    Older programs say so in a file of its own.
    """
    nested = config.get("text_config")
    for table in (config, nested):
        found = table.get("quantization_config") if isinstance(table, dict) else None
        if isinstance(found, dict):
            return found
    for name, method in (("quantize_config.json", "gptq"), ("quant_config.json", "awq")):
        if (folder / name).is_file():
            return {"quant_method": method, **read_object(folder / name)}
    return {}


def read_generation(folder: Path) -> dict[str, object]:
    """Return generation_config.json, empty if it is missing or malformed: it is advice."""
    try:
        return read_object(folder / GENERATION)
    except CheckpointError:
        return {}


def read_tokenizer(folder: Path) -> TokenizerFiles:
    """Return what a folder says about its vocabulary.

    Raises CheckpointError for a file that is malformed or absurdly large.
    """
    pipeline = _bytes(folder / "tokenizer.json") or b""
    return TokenizerFiles(
        model=_bytes(folder / "tokenizer.model"),
        pipeline=pipeline,
        table=parse_object(pipeline, str(folder / "tokenizer.json")) if pipeline else {},
        config=_object(folder / "tokenizer_config.json"),
        added=_object(folder / "added_tokens.json"),  # type: ignore[arg-type]
        merges=_text(folder / "merges.txt", _MAX_TOKENIZER_NBYTES) or "",
        chat_template=_chat_template(folder),
    )


def _chat_template(folder: Path) -> object:
    main = _text(folder / "chat_template.jinja", _MAX_TEMPLATE_NBYTES)
    if main is None:
        return _object(folder / "chat_template.json").get("chat_template")
    others = sorted((folder / "additional_chat_templates").glob("*.jinja"))
    if not others:
        return main
    named = [{"name": path.stem, "template": _text(path, _MAX_TEMPLATE_NBYTES)} for path in others]
    return [{"name": "default", "template": main}, *named]


def _bytes(path: Path, limit: int = _MAX_TOKENIZER_NBYTES) -> bytes | None:
    return read_bytes(path, limit) if path.is_file() else None


def _object(path: Path) -> dict[str, object]:
    return read_object(path, _MAX_TOKENIZER_NBYTES) if path.is_file() else {}


def _text(path: Path, limit: int) -> str | None:
    data = _bytes(path, limit)
    if data is None:
        return None
    try:
        # As text files are read: line ends of Windows become "\n".
        return data.decode().replace("\r\n", "\n")
    except UnicodeDecodeError as error:
        raise CheckpointError(f"{path}: is not UTF-8 text: {error}.") from error
