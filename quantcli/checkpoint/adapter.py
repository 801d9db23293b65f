"""LoRA adapters: what one says of itself, its matrices in pairs, and a model that wears some.

    general.type            "adapter"
    general.architecture    that of the model it was trained for
    adapter.type            "lora"
    adapter.lora.alpha      f32; 0, or no such key, means that nothing is divided by the rank
    NAME.lora_a, .lora_b    A (rank, n_in) and B (n_out, rank) of the model's tensor NAME

What is added to y = W x is scale * alpha / rank * B (A x), where the user gives the scale. Of an
embedding, A is transposed: (n_vocab, rank). Source: llama.cpp, convert_lora_to_gguf.py and
src/llama-adapter.cpp.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from quantcli.checkpoint import Checkpoint, TensorInfo
from quantcli.checkpoint.gguf_layout import quoted
from quantcli.checkpoint.metadata import Metadata
from quantcli.errors import CheckpointError, QuantcliError, UnsupportedModel
from quantcli.qtensor import U8, QTensor

PEFT_CONFIG = "adapter_config.json"
_A, _B = ".lora_a", ".lora_b"
_CHECKED_ROWS_NBYTES = 4 << 20  # decoded at a time when looking for NaN


@dataclass(frozen=True, slots=True)
class Pair:
    """A and B of one tensor of the model, as they lie in the adapter's file."""

    target: str
    a: TensorInfo
    b: TensorInfo

    @property
    def rank(self) -> int:
        """What A brings the input down to: the row length of B, which is never transposed."""
        return self.b.shape[-1]


@dataclass(frozen=True, slots=True)
class Adapter:
    """An open adapter.

    checkpoint    its file
    architecture  of the model it was trained for
    alpha         0: nothing is divided by the rank
    scale         what the user asks for; 0: it is there, and does nothing
    pairs         by the name of the model's tensor
    ignored       tensors that llama.cpp ignores as well: norms that some tools leave there
    """

    checkpoint: Checkpoint
    architecture: str
    alpha: float
    scale: float
    pairs: dict[str, Pair]
    ignored: tuple[str, ...]

    @property
    def path(self) -> Path:
        """Its file, or the first of them."""
        return self.checkpoint.paths[0]

    def factor(self, pair: Pair) -> float:
        """Return what B (A x) is multiplied by."""
        return self.scale * (self.alpha / pair.rank if self.alpha else 1.0)

    def require_finite(self) -> None:
        """Read all matrices. Raises CheckpointError for one that holds NaN or an infinity."""
        for pair in self.pairs.values():
            for info in (pair.a, pair.b):
                if not _is_finite(self.checkpoint.tensor(info.name)):
                    raise CheckpointError(
                        f"{self.path}: tensor {quoted(info.name)} holds NaN or infinity; the "
                        "adapter is damaged, or its training failed. Fetch or make it again."
                    )


def _is_finite(tensor: QTensor) -> bool:
    step = max(1, _CHECKED_ROWS_NBYTES // (4 * tensor.shape[-1]))
    for start in range(0, tensor.n_rows, step):
        rows = tensor.rows(start, min(start + step, tensor.n_rows))
        if not np.isfinite(rows.dequantize()).all():
            return False
    return True


def is_adapter(path: Path) -> bool:
    """Return whether a path is that of a LoRA adapter, in GGUF or a folder of PEFT's.

    What cannot be read is none: whoever opens it says why.
    """
    from quantcli.checkpoint.gguf_read import read_head
    from quantcli.checkpoint.positional import PositionalFile

    try:
        if path.is_dir():
            return (path / PEFT_CONFIG).is_file()
        with PositionalFile(path) as file:
            metadata = read_head(file).metadata
            return _word(metadata, "general.type") == "adapter" or "adapter.type" in metadata
    except (QuantcliError, OSError):
        return False


def open_adapter(path: Path, scale: float = 1.0) -> Adapter:
    """Open an adapter in GGUF; only its head is read.

    Raises CheckpointError for what is malformed, missing or not paired, and UnsupportedModel for
    what is no LoRA adapter, or of a kind that is not supported.
    """
    from quantcli.checkpoint.gguf_split import open_gguf

    checkpoint = open_gguf(path, is_adapter=True)
    try:
        return as_adapter(checkpoint, scale)
    except BaseException:
        checkpoint.close()
        raise


def as_adapter(checkpoint: Checkpoint, scale: float) -> Adapter:
    """Return what an open file of an adapter holds; raises as `open_adapter`."""
    path, metadata = checkpoint.paths[0], checkpoint.metadata
    kind = _word(metadata, "adapter.type")
    if kind != "lora":
        got = "missing or no text" if kind is None else quoted(kind)
        raise UnsupportedModel(
            f"{path}: adapter.type is {got}; quantcli applies adapters of type 'lora' only."
        )
    activated = next((key for key in metadata if key.startswith("adapter.alora.")), None)
    if activated:
        raise UnsupportedModel(
            f"{path}: {activated} makes it an activated LoRA, which must change nothing before "
            "certain tokens; quantcli applies adapters to all tokens. Use a plain LoRA."
        )
    return Adapter(
        checkpoint,
        _word(metadata, "general.architecture") or "unnamed",
        _alpha(path, metadata),
        scale,
        _pairs(checkpoint),
        tuple(name for name in checkpoint.tensors if name.endswith("_norm.weight")),
    )


def _alpha(path: Path, metadata: Metadata) -> float:
    key = "adapter.lora.alpha"
    value = metadata.get(key, 0.0)
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not math.isfinite(value):  # type: ignore[arg-type]
        got = str(value) if is_number else f"of type {metadata.type_name(key)}"
        raise CheckpointError(f"{path}: {key} is {got}; it must be a finite number.")
    return float(value)  # type: ignore[arg-type]


def _word(metadata: Metadata, key: str) -> str | None:
    """Return a string, or None if the key is missing or holds anything else."""
    value = metadata.get(key)
    return value if isinstance(value, str) else None


def _pairs(checkpoint: Checkpoint) -> dict[str, Pair]:
    """Return the adapter's matrices by the tensor they are for."""
    path, tensors = checkpoint.paths[0], checkpoint.tensors
    found: dict[str, Pair] = {}
    for name in tensors:
        target, suffix = name[: -len(_A)], name[-len(_A) :]
        if name.endswith("_norm.weight"):
            continue
        if suffix not in (_A, _B):
            raise UnsupportedModel(
                f"{path}: tensor {quoted(name)} is no part of a LoRA adapter, whose tensors end in "
                f"{_A} or {_B}."
            )
        other = target + (_B if suffix == _A else _A)
        if other not in tensors:
            raise CheckpointError(
                f"{path}: tensor {quoted(other)} is missing, but {quoted(name)} is there; fetch or "
                "convert the adapter again."
            )
        found[target] = Pair(target, tensors[target + _A], tensors[target + _B])
    if not found:
        raise CheckpointError(f"{path}: holds no matrices; fetch or convert the adapter again.")
    return found


class AdaptedCheckpoint(Checkpoint):
    """A model with adapters beside it: their matrices are tensors like any others.

    adapters  in the order in which they are added; closed with it. Those of scale 0 are left out
    """

    def __init__(self, base: Checkpoint, adapters: Sequence[Adapter]) -> None:
        """Take over an open model and open adapters that fit it."""
        tensors = dict(base.tensors)
        self._homes: dict[str, tuple[Checkpoint, str]] = {}
        for number, adapter in enumerate(adapters):
            for pair in adapter.pairs.values() if adapter.scale else ():
                for info in (pair.a, pair.b):
                    name = adapted_name(number, info.name)
                    tensors[name] = replace(info, name=name)
                    self._homes[name] = adapter.checkpoint, info.name
        notes = [*base.notes, *(note for a in adapters for note in a.checkpoint.notes)]
        notes += [
            f"{a.path}: {', '.join(map(quoted, a.ignored[:1]))}"
            + (f" and {len(a.ignored) - 1} more norms" if len(a.ignored) > 1 else "")
            + " replace norms of the model; they are ignored, as llama.cpp does."
            for a in adapters
            if a.ignored
        ]
        super().__init__((), base.metadata, tensors, tuple(notes))
        self.paths, self.packed = base.paths, base.packed
        self.base, self.adapters = base, tuple(adapters)

    def close(self) -> None:
        """Close the model and its adapters."""
        self.base.close()
        for adapter in self.adapters:
            adapter.checkpoint.close()

    def read_into(self, name: str, buffer: U8, start: int = 0) -> None:
        """Fill a buffer with a tensor's bytes from `start` on; as `Checkpoint.read_into`."""
        home, own_name = self._homes.get(name, (self.base, name))
        home.read_into(own_name, buffer, start)


def adapted_name(number: int, name: str) -> str:
    """Return what a tensor of an adapter is called beside those of the model."""
    return f"lora{number}.{name}"
