"""How an architecture lies in a Hugging Face folder: names, numbers and what a converter changes.

An architecture's file holds a `HuggingFace` as `HF`. It says what llama.cpp's converter does, so
that a folder looks to all of quantcli like the GGUF file that one would convert it to.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np

from quantcli.arch.hf_config import Default, HFConfig, Table
from quantcli.errors import CheckpointError, UnsupportedModel
from quantcli.formats import F32

KeyValue = np.generic | bool | str | list[bool]
Keys = dict[str, KeyValue]


@dataclass(frozen=True, slots=True)
class Take:
    """Which rows are taken: of each `period` of them `count`, from `start` on every `step`-th."""

    period: int
    start: int
    count: int
    step: int = 1


@dataclass(frozen=True, slots=True)
class Piece:
    """A GGUF tensor that is a part of a tensor in a folder.

    name        GGUF's name
    takes       which rows, joined in order; called with config.json and their number: of a stack of
                matrices the rows of one, of a vector its weights
    of_columns  the same, but of the weights of a row
    apart       whether the rows of each period become a matrix of their own
    transposed  whether matrices are transposed afterwards
    """

    name: str
    takes: Callable[[HFConfig, int], tuple[Take, ...]]
    of_columns: bool = False
    apart: bool = False
    transposed: bool = False


def everything(config: HFConfig, n: int) -> tuple[Take, ...]:
    """Take all rows."""
    return (Take(n, 0, n),)


def first_half(config: HFConfig, n: int) -> tuple[Take, ...]:
    """Take the first half; raise CheckpointError if there is none."""
    return (Take(n, 0, _half(n)),)


def second_half(config: HFConfig, n: int) -> tuple[Take, ...]:
    """Take the second half; raise CheckpointError if there is none."""
    return (Take(n, _half(n), _half(n)),)


def even(config: HFConfig, n: int) -> tuple[Take, ...]:
    """Take rows 0, 2 and so on; raise CheckpointError if not half of them are."""
    return (Take(n, 0, _half(n), 2),)


def odd(config: HFConfig, n: int) -> tuple[Take, ...]:
    """Take rows 1, 3 and so on; raise CheckpointError if not half of them are."""
    return (Take(n, 1, _half(n), 2),)


def _half(n: int) -> int:
    if n % 2 or not n:
        raise CheckpointError(f"holds gates and ups in {n} rows; it must be an even number.")
    return n // 2


# Hugging Face's name and GGUF's, both less ".weight" or ".bias"; {} is the number of the layer, and
# a second {} the number of the expert, whose matrices GGUF stacks into one tensor. A name that has
# no such ending, or another meaning with it, is written out, on both sides.
Tensors = dict[str, str | tuple[Piece, ...]]
DECODER = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
    "model.layers.{}.input_layernorm": "blk.{}.attn_norm",
    "model.layers.{}.self_attn.q_proj": "blk.{}.attn_q",
    "model.layers.{}.self_attn.k_proj": "blk.{}.attn_k",
    "model.layers.{}.self_attn.v_proj": "blk.{}.attn_v",
    "model.layers.{}.self_attn.o_proj": "blk.{}.attn_output",
    "model.layers.{}.self_attn.q_norm": "blk.{}.attn_q_norm",
    "model.layers.{}.self_attn.k_norm": "blk.{}.attn_k_norm",
    "model.layers.{}.post_attention_layernorm": "blk.{}.ffn_norm",
    "model.layers.{}.mlp.gate_proj": "blk.{}.ffn_gate",
    "model.layers.{}.mlp.up_proj": "blk.{}.ffn_up",
    "model.layers.{}.mlp.down_proj": "blk.{}.ffn_down",
}
# The same block with norms behind attention and MLP as well.
POST_NORM_DECODER = DECODER | {
    "model.layers.{}.post_attention_layernorm": "blk.{}.post_attention_norm",
    "model.layers.{}.pre_feedforward_layernorm": "blk.{}.ffn_norm",
    "model.layers.{}.post_feedforward_layernorm": "blk.{}.post_ffw_norm",
}
EXPERTS = {
    "model.layers.{}.mlp.gate": "blk.{}.ffn_gate_inp",
    "model.layers.{}.mlp.experts.{}.gate_proj": "blk.{}.ffn_gate_exps",
    "model.layers.{}.mlp.experts.{}.up_proj": "blk.{}.ffn_up_exps",
    "model.layers.{}.mlp.experts.{}.down_proj": "blk.{}.ffn_down_exps",
}

_SUFFIX = re.compile(r"\.(weight|bias)$")
_NUMBER = re.compile(r"(?<=\.)\d{1,6}(?=\.)")
# Copies of RoPE's frequencies and causal masks that old checkpoints carry.
_BUFFERS = re.compile(r".*\.(attention\.masked_bias|attention\.bias|rotary_emb\.inv_freq)")
# What multimodal checkpoints hold beside the text model.
_OTHER_TOWERS = re.compile(
    r"(vision_tower|vision_model|visual|audio_tower|multi_modal_projector|mm_projector"
    r"|model\.(vision_tower|vision_model|visual|audio_tower|multi_modal_projector|connector))\..*"
)


@dataclass(frozen=True, slots=True)
class Place:
    """Where a tensor of a folder goes.

    name     GGUF's
    expert   which matrix it is of a stacked one
    piece    what is taken of it, None for all as it is
    """

    name: str
    expert: int | None = None
    piece: Piece | None = None


@dataclass(frozen=True, slots=True)
class TokenizerFacts:
    """What a folder says of its vocabulary beyond the tokens.

    config       tokenizer_config.json
    generation   generation_config.json
    tokens       the number of each token by its text
    named        keys that the files give a value, less their prefix
    """

    config: Table
    generation: Table
    tokens: Mapping[str, int]
    named: frozenset[str] = frozenset()


def no_keys(config: HFConfig) -> Keys:
    """Return no keys."""
    return {}


def no_tokenizer_keys(config: HFConfig, facts: TokenizerFacts) -> Keys:
    """Return no keys."""
    return {}


def no_tensors(config: HFConfig) -> dict[str, F32]:
    """Return no tensors."""
    return {}


def none_over(config: HFConfig, name: str) -> bool:
    """Return False: every tensor counts."""
    return False


@dataclass(frozen=True, slots=True)
class HuggingFace:
    """One architecture's folders.

    classes         name of a model class in config.json's `architectures` -> what the class takes
                    for keys that the file leaves out; functions are for those that are null, too
    tensors         Hugging Face's name -> GGUF's, as in `DECODER`, or pieces of it
    permutes_qk     rows of q and k are permuted, head by head, for "norm" RoPE
    norm_shift      added to the weights of norms
    trims_embedding rows of the embedding past the vocabulary are left out
    passes_over     whether a tensor is left out
    zeros           how names of tensors end that hold zeros, and are left out
    lists_added     whether added tokens keep the kind and the spelling that they are listed with
    longrope        whether RoPE may be scaled by two lists of factors
    keys            GGUF keys beyond those of `hf_keys.decoder_keys`, less the architecture's name
    drops           keys of `hf_keys.decoder_keys` that there are none of
    tokenizer_keys  GGUF keys of the vocabulary beyond what its own files say
    extra_tensors   tensors that GGUF has and the folder has not, f32
    """

    classes: Mapping[str, Mapping[str, Default]]
    tensors: Mapping[str, str | tuple[Piece, ...]] = field(default_factory=lambda: DECODER)
    permutes_qk: bool = False
    norm_shift: float = 0.0
    trims_embedding: bool = False
    passes_over: Callable[[HFConfig, str], bool] = none_over
    zeros: str | None = None
    lists_added: bool = False
    longrope: bool = False
    keys: Callable[[HFConfig], Keys] = no_keys
    drops: tuple[str, ...] = ()
    tokenizer_keys: Callable[[HFConfig, TokenizerFacts], Keys] = no_tokenizer_keys
    extra_tensors: Callable[[HFConfig], dict[str, F32]] = no_tensors

    def places(self, name: str) -> tuple[Place, ...]:
        """Return where a tensor goes, nowhere if it is of no use.

        Raises UnsupportedModel for a tensor that quantcli does not know.
        """
        if _BUFFERS.fullmatch(name) or _OTHER_TOWERS.fullmatch(name):
            return ()
        plain = name.replace("language_model.", "").replace("text_model.", "")
        for full, ending in _spellings(plain):
            pattern, numbers = _pattern(full)
            for candidate in (pattern, f"model.{pattern}"):  # a bare model has no "model." before
                found = self.tensors.get(candidate)
                if found is not None and _is_whole(found) == (not ending):
                    return _places(found, numbers, ending)
        raise UnsupportedModel(
            f"tensor {name[:80]!r} has no place in this architecture; quantcli does not know this "
            "kind of model."
        )

    def stems(self) -> list[str]:
        """Return GGUF's names in the order of declaring, less their endings."""
        return [_SUFFIX.sub("", name) for ours in self.tensors.values() for name in _names(ours)]

    def source(self, name: str) -> str | None:
        """Return Hugging Face's name of a GGUF tensor, None if it is of several."""
        for full, ending in _spellings(name):
            pattern, numbers = _pattern(full)
            for theirs, ours in self.tensors.items():
                if pattern in _names(ours) and theirs.count("{}") == len(numbers):
                    return theirs.format(*numbers) + ending
        return None

    def n_permuted_heads(self, name: str, config: HFConfig) -> int:
        """Return the heads whose rows are permuted in a GGUF tensor; 0 if they are not."""
        if not self.permutes_qk:
            return 0
        part = name.split(".")[2] if name.startswith("blk.") else ""
        n_heads = config.needed_integer("num_attention_heads")
        return {"attn_q": n_heads, "attn_k": config.integer("num_key_value_heads") or n_heads}.get(
            part, 0
        )

    def shift(self, name: str) -> float:
        """Return what is added to a GGUF tensor's weights."""
        return self.norm_shift if name.endswith("norm.weight") else 0.0


def _spellings(name: str) -> Iterator[tuple[str, str]]:
    """Yield a tensor's name as it may be declared, and what that leaves out: its ending."""
    yield name, ""
    if suffix := _SUFFIX.search(name):
        yield name[: suffix.start()], suffix[0]


def _pattern(name: str) -> tuple[str, list[int]]:
    """Return a name with {} for each number, and the numbers."""
    full = f"{name}."
    return _NUMBER.sub("{}", full)[:-1], [int(number) for number in _NUMBER.findall(full)]


def _names(found: str | tuple[Piece, ...]) -> list[str]:
    return [found] if isinstance(found, str) else [piece.name for piece in found]


def _is_whole(found: str | tuple[Piece, ...]) -> bool:
    """Return whether a declaration spells out the endings."""
    return _SUFFIX.search(_names(found)[0]) is not None


def _places(found: str | tuple[Piece, ...], numbers: list[int], ending: str) -> tuple[Place, ...]:
    names, pieces = _names(found), (None,) if isinstance(found, str) else found
    n_used = names[0].count("{}")
    expert = numbers[n_used] if len(numbers) > n_used else None
    return tuple(
        Place(name.format(*numbers[:n_used]) + ending, expert, piece)
        for name, piece in zip(names, pieces, strict=True)
    )


def is_f32(name: str, shape: tuple[int, ...]) -> bool:
    """Return whether GGUF files hold a tensor as f32 whatever type the others have."""
    is_router = name.endswith(("ffn_gate_inp.weight", "ffn_gate_inp_shexp.weight"))
    return len(shape) < 2 or is_router or name.endswith("_norm.weight") or name[-7:] != ".weight"
