"""Qwen2 and Qwen2.5: the plain block with NEOX RoPE and biases on q, k and v."""

from __future__ import annotations

from quantcli.arch.blocks import Decoder
from quantcli.arch.hf_config import Default
from quantcli.arch.hf_keys import n_heads
from quantcli.arch.hugging_face import HuggingFace

ARCH = Decoder(name="qwen2", rope_style="neox")

HF_DEFAULTS: dict[str, Default] = {
    "vocab_size": 151936,
    "max_position_embeddings": 32768,
    "hidden_size": 4096,
    "intermediate_size": 22016,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": n_heads,
    "rms_norm_eps": 1e-6,
    "rope_theta": 10000.0,
}

HF = HuggingFace(classes={"Qwen2ForCausalLM": HF_DEFAULTS, "Qwen2Model": HF_DEFAULTS})
