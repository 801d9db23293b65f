"""GPT-NeoX and Pythia: StarCoder2's parts; attention and MLP side by side, each behind its norm."""

from __future__ import annotations

from dataclasses import replace

from quantcli.arch.hf_config import Default, HFConfig
from quantcli.arch.hf_keys import head_width, u32
from quantcli.arch.hugging_face import HuggingFace, Keys, Piece, Take
from quantcli.arch.hyper import Hyper
from quantcli.arch.starcoder2 import ARCH as STARCODER2


def mlp_reads(hyper: Hyper, layer: int) -> str:
    """Return whether the MLP reads the stream that attention reads, as the file must say."""
    return "stream" if hyper.keys.flag("use_parallel_residual") else "sum"


ARCH = replace(STARCODER2, name="gptneox", mlp_reads=mlp_reads)

_TENSORS = {
    "gpt_neox.embed_in": "token_embd",
    "gpt_neox.final_layer_norm": "output_norm",
    "embed_out": "output",
    "gpt_neox.layers.{}.input_layernorm": "blk.{}.attn_norm",
    "gpt_neox.layers.{}.attention.dense": "blk.{}.attn_output",
    "gpt_neox.layers.{}.post_attention_layernorm": "blk.{}.ffn_norm",
    "gpt_neox.layers.{}.mlp.dense_h_to_4h": "blk.{}.ffn_up",
    "gpt_neox.layers.{}.mlp.dense_4h_to_h": "blk.{}.ffn_down",
}
_DEFAULTS: dict[str, Default] = {
    "vocab_size": 50432,
    "max_position_embeddings": 2048,
    "hidden_size": 6144,
    "intermediate_size": 24576,
    "num_hidden_layers": 44,
    "num_attention_heads": 64,
    "rotary_pct": 0.25,
    "layer_norm_eps": 1e-5,
    "use_parallel_residual": True,
}


def _by_kind(config: HFConfig, n: int) -> tuple[Take, ...]:
    """Take q, k and v of every head in turn, where the folder has one head after another."""
    width = head_width(config)
    return tuple(Take(3 * width, i * width, width) for i in range(3))


def _keys(config: HFConfig) -> Keys:
    part = config.number("rotary_pct")
    part = 0.25 if part is None else part
    return {
        "rope.dimension_count": u32("rotary_pct", int(part * head_width(config))),
        "use_parallel_residual": config.flag("use_parallel_residual", default=True),
    }


HF = HuggingFace(
    classes={"GPTNeoXForCausalLM": _DEFAULTS},
    tensors=_TENSORS
    | {
        "gpt_neox.layers.{}.attention.query_key_value": (Piece("blk.{}.attn_qkv", _by_kind),),
    },
    keys=_keys,
    drops=("rope.freq_base",),
)
