"""Arcee AFM: llama with squared ReLU without a gate."""

from __future__ import annotations

from quantcli.arch.blocks import Decoder
from quantcli.arch.hf_config import Default
from quantcli.arch.hf_keys import head_width, llama3_factors, n_heads
from quantcli.arch.hugging_face import HuggingFace
from quantcli.arch.llama import llama_keys, llama_tokenizer_keys

ARCH = Decoder(name="arcee", rope_style="norm", freq_factors=True, gate="no", act="relu_squared")

_DEFAULTS: dict[str, Default] = {
    "vocab_size": 32000,
    "max_position_embeddings": 4096,
    "hidden_size": 2560,
    "intermediate_size": 18432,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": n_heads,
    "head_dim": head_width,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
}

HF = HuggingFace(
    classes={"ArceeForCausalLM": _DEFAULTS},
    permutes_qk=True,
    keys=llama_keys,
    tokenizer_keys=llama_tokenizer_keys,
    extra_tensors=llama3_factors,
)
