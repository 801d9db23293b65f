"""A Hugging Face folder as a checkpoint, which looks like the GGUF file it would become."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from math import prod
from pathlib import Path

import numpy as np

from quantcli import arch
from quantcli.arch.hf_config import HFConfig, completed
from quantcli.arch.hf_keys import decoder_keys
from quantcli.arch.hugging_face import HuggingFace, TokenizerFacts, is_f32
from quantcli.arch.hyper import EMBEDDING
from quantcli.checkpoint import Checkpoint, TensorInfo, Value
from quantcli.checkpoint.gguf_layout import MAX_DIMS, MAX_STRINGS, quoted
from quantcli.checkpoint.gguf_write import WriteValue
from quantcli.checkpoint.made_metadata import made_metadata
from quantcli.checkpoint.model_card import general_keys
from quantcli.checkpoint.safetensors import SafetensorsFiles, open_safetensors
from quantcli.errors import CheckpointError, ModelError, ShapeError, UnsupportedModel
from quantcli.huggingface.files import (
    class_name,
    quantization_of,
    read_config,
    read_generation,
    read_tokenizer,
)
from quantcli.huggingface.pieces import piece_of
from quantcli.huggingface.quantized import read_packed
from quantcli.huggingface.rows import (
    AsF32,
    Cut,
    InMemory,
    Permuted,
    RowSource,
    Stacked,
    Stored,
    decoded,
    n_rows,
    row_nbytes,
)
from quantcli.qtensor import U8
from quantcli.text.hf_special import special_keys
from quantcli.text.hf_vocabulary import TokenizerFiles, vocabulary_keys
from quantcli.text.vocabulary import PREFIX, TOKENS

FILE_TYPES = {"f32": 0, "f16": 1, "q8_0": 7, "bf16": 32}  # general.file_type of llama.cpp
_MXFP4_EXPERTS = 38
_SLAB_NBYTES = 1 << 20  # read and changed at once; bounds the temporary arrays


class FolderCheckpoint(Checkpoint):
    """An open folder. Tensors bear GGUF's names and are as GGUF wants them; nothing is copied.

    files     its weight files
    folder    where it lies
    declared  how its architecture lies in such folders
    config    config.json, completed
    sources   where the rows of each tensor come from
    hf_names  the folder's name of each tensor that is one tensor there
    packed    tensors that the folder holds as integers: what they stand for was rounded before
    """

    def __init__(
        self,
        files: SafetensorsFiles,
        metadata: Mapping[str, WriteValue],
        sources: dict[str, RowSource],
        *,
        folder: Path,
        declared: HuggingFace,
        config: HFConfig,
        hf_names: dict[str, str],
    ) -> None:
        """Take over open files, and what they mean."""
        packed = tuple(n for n, hf_name in hf_names.items() if hf_name not in files.tensors)
        infos = {
            name: TensorInfo(
                name, source.shape, source.format, n_rows(source.shape) * row_nbytes(source), 0, 0
            )
            for name, source in sources.items()
        }
        notes = tuple(_note(folder, name) for name in packed[:1])
        super().__init__(files.files, made_metadata(folder, metadata), infos, notes)
        self.files = files
        self.folder, self.declared, self.config = folder, declared, config
        self.sources, self.hf_names, self.packed = sources, hf_names, packed

    def read_into(self, name: str, buffer: U8, start: int = 0) -> None:
        """Fill a buffer with a tensor's bytes from `start` on; as `Checkpoint.read_into`."""
        info = self._info(name)
        assert buffer.flags.c_contiguous, name
        assert 0 <= start <= start + buffer.nbytes <= info.nbytes, (name, start, buffer.nbytes)
        source = self.sources[name]
        if isinstance(source, Stored) and source.tensor.nbytes == info.nbytes:
            source.files.read_into(source.tensor, buffer.data.cast("B"), start)
            return
        row = row_nbytes(source)
        slab = max(1, _SLAB_NBYTES // row // source.unit) * source.unit
        out = buffer.view(np.uint8).reshape(-1)
        stop = start + out.size
        first = start // row // source.unit * source.unit
        for row_start in range(first, n_rows(info.shape), slab):
            if row_start * row >= stop:
                break
            row_stop = min(row_start + slab, n_rows(info.shape))
            data = source.read(row_start, row_stop)
            left, right = max(start, row_start * row), min(stop, row_stop * row)
            out[left - start : right - start] = data[
                left - row_start * row : right - row_start * row
            ]


def _note(folder: Path, name: str) -> str:
    return f"{folder}: {name} and others are quantized in the folder; they are read as f32."


def open_model(path: Path, *, pre: str | None = None) -> FolderCheckpoint:
    """Open a folder; only headers and small files are read.

    pre   `tokenizer.ggml.pre`, for a tokenizer.json that splits words in no known way

    Raises CheckpointError for what is malformed, missing or does not fit, and UnsupportedModel for
    an architecture, a tokenizer or a type of weights that quantcli does not have.
    """
    table = read_config(path)
    with ExitStack() as stack:
        try:
            name = arch.of_class(class_name(table, path))
            declared = arch.in_folders(name)
            assert declared is not None
            config = completed(table, declared.classes[class_name(table, path)])
            files = open_safetensors(path)
            stack.callback(files.close)
            sources, hf_names = _sources(files, declared, config, table)
            generation = read_generation(path)
            tokenizer, n_vocab = read_tokenizer(path), _n_vocab(config, sources)
            vocabulary = _vocabulary(tokenizer, declared, config, n_vocab, pre, generation)
            if declared.trims_embedding:
                _trim(sources, len(vocabulary[TOKENS]))  # type: ignore[arg-type]
            keys = _keys(path, name, declared, config, sources, generation) | vocabulary
            checkpoint = FolderCheckpoint(
                files,
                keys,
                sources,
                folder=path,
                declared=declared,
                config=config,
                hf_names=hf_names,
            )
            _require_whole(checkpoint)
        except ModelError as error:
            raise _in_folder(error, path) from error
        stack.pop_all()  # the checkpoint closes the files now
    return checkpoint


def _in_folder(error: ModelError, path: Path) -> ModelError:
    """Return an error that says which folder it is about."""
    message = str(error)
    kind = CheckpointError if isinstance(error, CheckpointError) else type(error)
    return error if message.startswith(str(path)) else kind(f"{path}: {message}")


def _keys(
    path: Path,
    name: str,
    declared: HuggingFace,
    config: HFConfig,
    sources: dict[str, RowSource],
    generation: Mapping[str, object],
) -> dict[str, WriteValue]:
    shapes = {tensor: source.shape for tensor, source in sources.items()}
    keys = general_keys(path, name, shapes, generation)
    usual = decoder_keys(config, longrope=declared.longrope)
    numbers = {key: value for key, value in usual.items() if key not in declared.drops}
    numbers |= declared.keys(config)
    keys |= {f"{name}.{key}": value for key, value in numbers.items()}
    keys["general.file_type"] = file_type(sources, main_format(sources))
    return keys


def file_type(sources: Mapping[str, RowSource], name: str) -> np.uint32:
    """Return `general.file_type` of a file in some format; experts in MXFP4 stay what they are."""
    is_mxfp4 = name != "q8_0" and any(s.format.name == "mxfp4" for s in sources.values())
    return np.uint32(_MXFP4_EXPERTS if is_mxfp4 else FILE_TYPES[name])


def main_format(sources: Mapping[str, RowSource]) -> str:
    """Return the format of the first matrix in f32, f16 or bf16."""
    names = (s.format.name for name, s in sources.items() if not is_f32(name, s.shape))
    return next((name for name in names if name in FILE_TYPES), "f32")


def _n_vocab(config: HFConfig, sources: Mapping[str, RowSource]) -> int | None:
    """Return how many tokens there are to be; the embedding bounds what a file may ask for."""
    n_vocab = config.integer("vocab_size")
    n_rows = sources[EMBEDDING].shape[0] if EMBEDDING in sources else MAX_STRINGS
    if n_vocab is not None and not 1 <= n_vocab <= n_rows:
        raise ShapeError(
            f"config.json: vocab_size is {n_vocab}; it must be from 1 to {n_rows}, the rows of the "
            "embedding."
        )
    return n_vocab


def _vocabulary(
    files: TokenizerFiles,
    declared: HuggingFace,
    config: HFConfig,
    n_vocab: int | None,
    pre: str | None,
    generation: Mapping[str, object],
) -> dict[str, WriteValue]:
    keys = vocabulary_keys(files, n_vocab, pre, as_listed=declared.lists_added)
    is_pieces = PREFIX + "scores" in keys
    keys |= special_keys(files, config.table, len(keys[TOKENS]) if is_pieces else None)
    tokens = {text: token for token, text in enumerate(keys[TOKENS])}
    named = frozenset(key.removeprefix(PREFIX) for key in keys)
    facts = TokenizerFacts(files.config, generation, tokens, named)
    more = declared.tokenizer_keys(config, facts)
    return keys | {PREFIX + name: value for name, value in more.items()}


def _sources(
    files: SafetensorsFiles, declared: HuggingFace, config: HFConfig, table: Mapping[str, object]
) -> tuple[dict[str, RowSource], dict[str, str]]:
    """Return where each GGUF tensor comes from, and its name in the folder."""
    stored = read_packed(files, quantization_of(table, files.paths[0].parent))
    plain: dict[str, RowSource] = {}
    experts: dict[str, dict[int, RowSource]] = {}
    hf_names: dict[str, str] = {}
    for hf_name, source in stored.items():
        if declared.passes_over(config, hf_name) or _holds_zeros(declared, hf_name, source):
            continue
        for place in declared.places(hf_name):
            if place.expert is not None:
                experts.setdefault(place.name, {})[place.expert] = source
            elif place.name in plain:
                first = quoted(hf_names.get(place.name, place.name))
                raise CheckpointError(f"tensors {first} and {quoted(hf_name)} are the same one.")
            elif place.piece is None:
                plain[place.name], hf_names[place.name] = source, hf_name
            else:
                try:
                    plain[place.name] = piece_of(source, place.piece, config)
                except CheckpointError as error:
                    raise CheckpointError(f"tensor {quoted(hf_name)}: {error}") from error
    sources = {name: _as_gguf(name, s, declared, config) for name, s in plain.items()}
    for name, parts in experts.items():
        sources[name] = _as_gguf(name, _stacked(name, parts), declared, config)
    for name, values in declared.extra_tensors(config).items():
        sources[name] = InMemory(values)
    return _in_order(sources, declared), hf_names


def _holds_zeros(declared: HuggingFace, name: str, source: RowSource) -> bool:
    """Return whether a tensor is one that holds zeros only; raise UnsupportedModel if it does not.

    llama.cpp has no place for biases that models carry and never trained.
    """
    if not declared.zeros or not name.endswith(declared.zeros):
        return False
    if decoded(source, 0, n_rows(source.shape)).any():
        raise UnsupportedModel(
            f"tensor {quoted(name)} is not zero; models of this class have no {declared.zeros[1:]}."
        )
    return True


def _stacked(name: str, parts: dict[int, RowSource]) -> RowSource:
    n = len(parts)
    missing = next((i for i in range(n) if i not in parts), None)
    shapes = {(part.shape, part.format.name) for part in parts.values()}
    if missing is not None or len(shapes) != 1:
        why = f"expert {missing} is missing" if missing is not None else "their shapes differ"
        raise CheckpointError(f"the experts of {name} do not fit each other: {why}.")
    return Stacked(tuple(parts[i] for i in range(n)))


def _as_gguf(name: str, source: RowSource, declared: HuggingFace, config: HFConfig) -> RowSource:
    """Return a tensor's rows as GGUF wants them."""
    shape = source.shape
    if not 1 <= len(shape) <= MAX_DIMS or not prod(shape):
        raise CheckpointError(f"tensor {name} has shape {list(shape)}; no weights can have that.")
    n_heads = declared.n_permuted_heads(name, config)
    if n_heads:
        if shape[0] % (2 * n_heads):
            raise CheckpointError(
                f"tensor {name} has {shape[0]} rows; {n_heads} heads of even width need a multiple "
                f"of {2 * n_heads}."
            )
        source = Permuted(source, n_heads)
    shift = declared.shift(name)
    return AsF32(source, shift) if shift or _widens(name, source) else source


def _widens(name: str, source: RowSource) -> bool:
    return is_f32(name, source.shape) and source.format.name != "f32"


def _in_order(sources: dict[str, RowSource], declared: HuggingFace) -> dict[str, RowSource]:
    """Return tensors in the order of computing: embedding, layers by number, output."""
    ranks = {name.rpartition("{}.")[2]: i for i, name in enumerate(declared.stems())}

    def place(name: str) -> tuple[int, int, int, str]:
        layer, _, part = name.removeprefix("blk.").partition(".")
        if name.startswith("blk.") and layer.isdigit():
            return 1, int(layer), ranks.get(part.rpartition(".")[0], len(ranks)), name
        return 0 if name.startswith(("token_embd.", "rope_")) else 2, 0, 0, name

    return {name: sources[name] for name in sorted(sources, key=place)}


def _trim(sources: dict[str, RowSource], n_tokens: int) -> None:
    """Leave out rows of the embedding that no token has."""
    embedding = sources.get(EMBEDDING)
    if embedding is not None and embedding.shape[0] > n_tokens:
        sources[EMBEDDING] = Cut(embedding, n_tokens)


def _require_whole(checkpoint: FolderCheckpoint) -> None:
    """Refuse a folder whose tensors are not what its configuration calls for."""
    metadata: Mapping[str, Value] = checkpoint.metadata
    hyper = arch.Hyper.from_metadata(metadata, checkpoint.tensors)
    plan = arch.get(hyper.arch).build(hyper)
    missing = next((name for name in plan.weights if name not in checkpoint.tensors), None)
    if missing is not None:
        theirs = checkpoint.declared.source(missing) or missing
        raise CheckpointError(f"has no tensor {theirs}; the download is not complete.")
    arch.check_tensors(plan, checkpoint.tensors)
