"""Granite 3 and 4 with experts, and perhaps one that every token goes to. All layers rotate."""

from __future__ import annotations

from dataclasses import replace

from quantcli.arch.granite import ARCH as GRANITE
from quantcli.arch.granite import HF_DEFAULTS, granite_keys
from quantcli.arch.hf_config import HFConfig
from quantcli.arch.hf_keys import u32
from quantcli.arch.hugging_face import (
    DECODER,
    HuggingFace,
    Keys,
    Piece,
    Tensors,
    first_half,
    second_half,
)
from quantcli.arch.llama import llama_tokenizer_keys
from quantcli.arch.switches import every_layer

ARCH = replace(GRANITE, name="granitemoe", rope_layers=every_layer)

_EXPERTS: Tensors = {
    "model.layers.{}.block_sparse_moe.router.layer": "blk.{}.ffn_gate_inp",
    "model.layers.{}.block_sparse_moe.input_linear": (
        Piece("blk.{}.ffn_gate_exps", first_half),
        Piece("blk.{}.ffn_up_exps", second_half),
    ),
    "model.layers.{}.block_sparse_moe.output_linear": "blk.{}.ffn_down_exps",
    "model.layers.{}.shared_mlp.input_linear": (
        Piece("blk.{}.ffn_gate_shexp", first_half),
        Piece("blk.{}.ffn_up_shexp", second_half),
    ),
    "model.layers.{}.shared_mlp.output_linear": "blk.{}.ffn_down_shexp",
}
_DEFAULTS = HF_DEFAULTS | {"num_local_experts": 8, "num_experts_per_tok": 2}


def _keys(config: HFConfig) -> Keys:
    keys = granite_keys(config)
    if width := config.integer("shared_intermediate_size"):
        keys["expert_shared_feed_forward_length"] = u32("shared_intermediate_size", width)
    return keys


HF = HuggingFace(
    classes={"GraniteMoeForCausalLM": _DEFAULTS, "GraniteMoeSharedForCausalLM": _DEFAULTS},
    tensors=DECODER | _EXPERTS,
    permutes_qk=True,
    keys=_keys,
    drops=("attention.key_length", "attention.value_length"),
    tokenizer_keys=llama_tokenizer_keys,
)
