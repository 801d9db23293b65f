"""StarCoder2: layer norms and biases everywhere, and an MLP without a gate."""

from __future__ import annotations

from quantcli.arch.blocks import Decoder
from quantcli.arch.hf_config import Default
from quantcli.arch.hugging_face import DECODER, HuggingFace

ARCH = Decoder(
    name="starcoder2",
    rope_style="neox",
    norm="layer",
    norm_bias=True,
    gate="no",
    act="gelu_tanh",
)

_MLP = {
    "model.layers.{}.mlp.c_fc": "blk.{}.ffn_up",
    "model.layers.{}.mlp.c_proj": "blk.{}.ffn_down",
}
_DEFAULTS: dict[str, Default] = {
    "vocab_size": 49152,
    "max_position_embeddings": 4096,
    "hidden_size": 3072,
    "intermediate_size": 12288,
    "num_hidden_layers": 30,
    "num_attention_heads": 24,
    "num_key_value_heads": 2,
    "norm_epsilon": 1e-5,
    "rope_theta": 10000.0,
}

HF = HuggingFace(classes={"Starcoder2ForCausalLM": _DEFAULTS}, tensors=DECODER | _MLP)
