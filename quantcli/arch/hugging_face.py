"""How an architecture lies in a Hugging Face folder: names, numbers and what a converter changes.

An architecture's file holds a `HuggingFace` as `HF`. It says what llama.cpp's converter does, so
that a folder looks to all of quantcli like the GGUF file that one would convert it to.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np

from quantcli.arch.hf_config import Default, HFConfig, Table
from quantcli.errors import UnsupportedModel
from quantcli.formats import F32

Scalar = np.generic | bool | str
Keys = dict[str, Scalar]

# Hugging Face's name and GGUF's, both less ".weight" or ".bias"; {} is the number of the layer, and
# a second {} the number of the expert, whose matrices GGUF stacks into one tensor.
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
    """Where a tensor of a folder goes: GGUF's name, and which expert it is of a stacked one."""

    name: str
    expert: int | None = None


def no_keys(config: HFConfig) -> Keys:
    """Return no keys."""
    return {}


def no_tokenizer_keys(config: HFConfig, tokenizer_config: Table) -> Keys:
    """Return no keys."""
    return {}


def no_tensors(config: HFConfig) -> dict[str, F32]:
    """Return no tensors."""
    return {}


@dataclass(frozen=True, slots=True)
class HuggingFace:
    """One architecture's folders.

    classes         name of a model class in config.json's `architectures` -> what the class takes
                    for keys that the file leaves out; functions are for those that are null, too
    tensors         Hugging Face's name -> GGUF's, as in `DECODER`
    permutes_qk     rows of q and k are permuted, head by head, for "norm" RoPE
    norm_shift      added to the weights of norms
    trims_embedding rows of the embedding past the vocabulary are left out
    keys            GGUF keys beyond those of `hf_keys.decoder_keys`, less the architecture's name
    tokenizer_keys  GGUF keys of the vocabulary beyond what its own files say, from config.json and
                    tokenizer_config.json
    extra_tensors   tensors that GGUF has and the folder has not, f32
    """

    classes: Mapping[str, Mapping[str, Default]]
    tensors: Mapping[str, str] = field(default_factory=lambda: DECODER)
    permutes_qk: bool = False
    norm_shift: float = 0.0
    trims_embedding: bool = False
    keys: Callable[[HFConfig], Keys] = no_keys
    tokenizer_keys: Callable[[HFConfig, Table], Keys] = no_tokenizer_keys
    extra_tensors: Callable[[HFConfig], dict[str, F32]] = no_tensors

    def place(self, name: str) -> Place | None:
        """Return where a tensor goes, None if it is of no use.

        Raises UnsupportedModel for a tensor that quantcli does not know.
        """
        if _BUFFERS.fullmatch(name) or _OTHER_TOWERS.fullmatch(name):
            return None
        suffix = _SUFFIX.search(name)
        stem = name[: suffix.start()] if suffix else name
        stem = stem.replace("language_model.", "").replace("text_model.", "")
        numbers = [int(number) for number in _NUMBER.findall(f"{stem}.")]
        pattern = _NUMBER.sub("{}", f"{stem}.")[:-1]
        for candidate in (pattern, f"model.{pattern}"):  # a bare model has no "model." before it
            if suffix and (found := self.tensors.get(candidate)) is not None:
                n_used = found.count("{}")
                expert = numbers[n_used] if len(numbers) > n_used else None
                return Place(found.format(*numbers) + suffix[0], expert)
        raise UnsupportedModel(
            f"tensor {name[:80]!r} has no place in this architecture; quantcli does not know this "
            "kind of model."
        )

    def source(self, name: str) -> str | None:
        """Return Hugging Face's name of a GGUF tensor, None if it has none of its own."""
        suffix = _SUFFIX.search(name)
        stem = name[: suffix.start()] if suffix else name
        numbers = _NUMBER.findall(stem)
        pattern = _NUMBER.sub("{}", stem)
        for theirs, ours in self.tensors.items():
            if ours == pattern and theirs.count("{}") == len(numbers) and suffix:
                return theirs.format(*numbers) + suffix[0]
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


def is_f32(name: str, shape: tuple[int, ...]) -> bool:
    """Return whether GGUF files hold a tensor as f32 whatever type the others have."""
    is_router = name.endswith("ffn_gate_inp.weight")
    return len(shape) < 2 or is_router or name.endswith("_norm.weight") or name[-7:] != ".weight"
