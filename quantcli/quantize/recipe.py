"""A recipe: which tensor becomes which format. Decided before any work, from shapes alone."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Literal, Protocol

from quantcli import catalog, formats
from quantcli.errors import UsageError
from quantcli.formats import BlockFormat
from quantcli.quantize import fallback
from quantcli.quantize.mixes import (
    EMBEDDINGS,
    OUTPUT,
    Mix,
    Place,
    choose,
    kind_of,
    refuse_unwritten,
    uniform,
)

Reason = Literal["mix", "kept", "override", "fallback", "size"]

# What stays as it is, beside vectors: parts of names. They are small, and what they steer is large.
# Source: tensor_allows_quantization in llama.cpp's src/llama-quant.cpp.
_KEPT = (
    "_norm.weight",
    "ffn_gate_inp.weight",
    "ffn_gate_tid2eid.weight",
    "altup",
    "laurel",
    "per_layer_model_proj",
    "ssm_conv1d",
    "shortconv.conv.weight",
    "attn_rel_b.weight",
    "position_embd",
    "token_types.weight",
)
_LAYER = re.compile(r"blk\.(\d+)\.")


class Stored(Protocol):
    """A tensor of the source, as far as a recipe looks at it."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Its axes in NumPy order: (n_out, n_in), experts first."""
        ...

    @property
    def format(self) -> BlockFormat:
        """What it is stored in."""
        ...


@dataclass(frozen=True, slots=True)
class Override:
    """A user's choice for the tensors whose names a pattern finds."""

    pattern: re.Pattern[str]
    format: str

    @classmethod
    def parse(cls, text: str) -> Override:
        """Read REGEX=TYPE, as llama-quantize does. Raises UsageError or UnknownName."""
        pattern, equals, name = text.rpartition("=")
        if not equals or not pattern or not name:
            raise UsageError(
                f"--tensor-type {text!r} is not REGEX=TYPE, such as ffn_down=q6_k or "
                "'blk\\.[0-3]\\.attn_v=q8_0'."
            )
        try:
            compiled = re.compile(pattern, re.IGNORECASE)
        except re.error as error:
            raise UsageError(
                f"--tensor-type {text!r}: {pattern!r} is not a regular expression: {error}."
            ) from None
        return cls(compiled, format_name(name))


@dataclass(frozen=True, slots=True)
class Recipe:
    """What the user asked for.

    mix          the file type
    overrides    the first whose pattern is found in a tensor's name decides
    output       format of the output matrix (or of the embedding where they are one), or None
    embedding    format of an embedding of its own, or None
    keep_output  whether the output matrix stays as it is
    pure         whether every matrix gets the mix's default
    policy       what takes a format's place where rows do not fit it
    bits         the size that was asked for in place of a type, or None
    exact        formats by name that `bpw` has chosen for a size, in place of the mix's
    """

    mix: Mix
    overrides: tuple[Override, ...] = ()
    output: str | None = None
    embedding: str | None = None
    keep_output: bool = False
    pure: bool = False
    policy: fallback.Policy = "llama.cpp"
    bits: float | None = None
    exact: Mapping[str, str] | None = None


@dataclass(frozen=True, slots=True)
class Facts:
    """The numbers of a model that mixes look at."""

    n_layers: int
    n_gqa: int = 1
    n_experts: int = 0
    is_70b: bool = False

    @classmethod
    def from_metadata(cls, metadata: Mapping[str, object]) -> Facts:
        """Read a file's metadata; the caller has checked it."""
        arch = metadata["general.architecture"]
        n_layers = _first(metadata[f"{arch}.block_count"])
        n_heads = _first(metadata.get(f"{arch}.attention.head_count", 1))
        n_kv_heads = _first(metadata.get(f"{arch}.attention.head_count_kv", n_heads))
        return cls(
            n_layers=n_layers,
            n_gqa=n_heads // n_kv_heads if n_kv_heads else 0,
            n_experts=_first(metadata.get(f"{arch}.expert_count", 0)),
            # what llama.cpp calls 70B, though it looks at the architecture as well
            is_70b=n_layers == 80 and n_heads != n_kv_heads,
        )


@dataclass(frozen=True, slots=True)
class Choice:
    """One tensor's fate.

    wanted   what it would have got if all rows fitted their formats
    """

    name: str
    shape: tuple[int, ...]
    source: BlockFormat
    format: BlockFormat
    reason: Reason
    wanted: str = ""

    @property
    def nbytes(self) -> int:
        """Bytes of its blocks."""
        return prod(self.shape[:-1]) * self.format.row_nbytes(self.shape[-1])

    @property
    def source_nbytes(self) -> int:
        """Bytes of its blocks in the source."""
        return prod(self.shape[:-1]) * self.source.row_nbytes(self.shape[-1])

    @property
    def n_weights(self) -> int:
        """Weights in it."""
        return prod(self.shape)

    @property
    def changes(self) -> bool:
        """Whether it is encoded anew rather than copied."""
        return self.format.name != self.source.name

    @property
    def loses_twice(self) -> bool:
        """Whether rounded weights are rounded again, which llama.cpp calls requantizing."""
        return self.changes and self.is_lossy

    @property
    def is_lossy(self) -> bool:
        """Whether the source's format is one that models are quantized to, not trained in."""
        return self.source.weights_per_block > 1


def format_name(text: str) -> str:
    """Return a format's name as the catalog spells it, from any case.

    Raises UnknownName, or UsageError for one that is only read.
    """
    name = catalog.lookup("format", text.lower()).name
    refuse_unwritten(name)
    return name


def layer_of(name: str) -> int | None:
    """Return the layer that a tensor belongs to, None for what is outside the layers."""
    found = _LAYER.match(name)
    return int(found[1]) if found else None


def assign(
    tensors: Mapping[str, Stored], facts: Facts, recipe: Recipe, *, has_imatrix: bool = False
) -> dict[str, Choice]:
    """Return each tensor's format, in the order of the source."""
    mixed = _mixed(tensors, facts, recipe, has_imatrix=has_imatrix)
    is_tied = OUTPUT not in tensors
    choices = {}
    reason: Reason
    for name, tensor in tensors.items():
        if name not in mixed or (recipe.keep_output and name == OUTPUT):
            chosen, reason = tensor.format.name, "kept"
        else:
            asked = _asked(name, recipe, is_tied=is_tied)
            chosen, reason = (asked, "override") if asked else (mixed[name], "mix")
        wanted = chosen
        if reason == "mix" and recipe.exact is not None and name in recipe.exact:
            chosen, reason = recipe.exact[name], "size"
        n_in = tensor.shape[-1]
        # a tensor that stays has the source's own rows, which fit
        final = chosen if reason == "kept" else fallback.replacement(chosen, n_in, recipe.policy)
        if final != chosen:
            reason = "fallback"
        choices[name] = Choice(
            name, tensor.shape, tensor.format, formats.get(final), reason, wanted=wanted
        )
    return choices


def quantizes(name: str, shape: Sequence[int]) -> bool:
    """Return whether a tensor is one that is quantized at all: a matrix, or one an expert."""
    is_matrix = len(shape) > 1 and prod(shape[:-1]) > 1
    return is_matrix and name.endswith("weight") and not any(part in name for part in _KEPT)


def _asked(name: str, recipe: Recipe, *, is_tied: bool) -> str | None:
    """Return the format that the user gave to a tensor, None if he left it to the mix."""
    for override in recipe.overrides:
        if override.pattern.search(name):
            return override.format
    if name in EMBEDDINGS:
        return recipe.embedding or (recipe.output if is_tied else None)
    return recipe.output if name == OUTPUT else None


def _mixed(
    tensors: Mapping[str, Stored], facts: Facts, recipe: Recipe, *, has_imatrix: bool
) -> dict[str, str]:
    """Return what the mix alone says of each tensor that is quantized."""
    row = uniform(recipe.mix.default, recipe.mix) if recipe.pure else recipe.mix
    is_tied = OUTPUT not in tensors
    n_attn_v = sum(kind_of(name) == "attn_v" for name in tensors)
    seen: dict[str, int] = {}
    chosen = {}
    for name in in_layer_order(tensors):
        shape = tensors[name].shape
        kind = kind_of(name)
        if not quantizes(name, shape):
            continue
        index = seen.get(kind, 0)
        seen[kind] = index + 1
        if kind.startswith("ffn") and facts.n_experts > 1:
            index = layer_of(name) or 0  # experts lie apart in some files
        place = Place(
            index=index,
            count=n_attn_v if kind == "attn_v" else facts.n_layers,
            n_gqa=facts.n_gqa,
            n_experts=facts.n_experts,
            has_imatrix=has_imatrix,
            is_70b=facts.is_70b,
        )
        if kind == "output" or (kind == "token_embd" and is_tied):
            chosen[name] = _output_format(row, shape[-1], recipe.policy)
        elif kind == "token_embd":
            chosen[name] = row.embedding or row.default
        else:
            chosen[name] = choose(row, kind, place, is_expert=len(shape) > 2)
    return chosen


def _output_format(row: Mix, n_in: int, policy: fallback.Policy) -> str:
    """Return the format of the output matrix. llama.cpp looks at the default's blocks for it."""
    if policy == "llama.cpp" and row.output != row.default and not fallback.fits(row.default, n_in):
        return "q8_0"
    return row.output


def in_layer_order(names: Iterable[str]) -> list[str]:
    """Return names layer by layer, those outside the layers first, then by name."""

    def key(name: str) -> tuple[int, str]:
        layer = layer_of(name)
        return (-1 if layer is None else layer, name)

    return sorted(names, key=key)


def _first(value: object) -> int:
    """Return a number of the metadata, of an array the first."""
    if isinstance(value, int):
        return value
    return int(value[0])  # type: ignore[index]
