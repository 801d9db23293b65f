"""Llama 2 and 3, and the many models of the same shape: Mistral 7B, SmolLM2, TinyLlama, Yi.

Llama 3.1's long context is a tensor, `rope_freqs.weight`, not a key. The sliding window that
Mistral 7B v0.1 files name is not applied, as nowhere else. Mixtral is a llama with experts.
"""

from __future__ import annotations

import numpy as np

from quantcli.arch.blocks import Decoder
from quantcli.arch.hf_config import Default, HFConfig
from quantcli.arch.hf_keys import head_width, llama3_factors, n_heads, u32
from quantcli.arch.hugging_face import DECODER, HuggingFace, Keys, TokenizerFacts
from quantcli.arch.routing import Mixture, all_of_d_ff

ARCH = Decoder(
    name="llama",
    rope_style="norm",
    freq_factors=True,
    long_factors="key",
    experts=Mixture(d_ff=all_of_d_ff),
)

_LLAMA: dict[str, Default] = {
    "vocab_size": 32000,
    "max_position_embeddings": 2048,
    "hidden_size": 4096,
    "intermediate_size": 11008,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": n_heads,
    "head_dim": head_width,
    "rms_norm_eps": 1e-6,
    "rope_theta": 10000.0,
}
MISTRAL_DEFAULTS: dict[str, Default] = {
    **{key: value for key, value in _LLAMA.items() if key != "head_dim"},
    "max_position_embeddings": 131072,
    "intermediate_size": 14336,
    "num_key_value_heads": 8,
}
_MIXTRAL = MISTRAL_DEFAULTS | {
    "vocab_size": 32000,
    "rope_theta": 1e6,
    "rms_norm_eps": 1e-5,
    "num_local_experts": 8,
    "num_experts_per_tok": 2,
}
_EXPERTS = {
    "model.layers.{}.block_sparse_moe.gate": "blk.{}.ffn_gate_inp",
    "model.layers.{}.block_sparse_moe.experts.{}.w1": "blk.{}.ffn_gate_exps",
    "model.layers.{}.block_sparse_moe.experts.{}.w2": "blk.{}.ffn_down_exps",
    "model.layers.{}.block_sparse_moe.experts.{}.w3": "blk.{}.ffn_up_exps",
}
_CODE_LLAMA_VOCABULARY, _GRANITE_VOCABULARY = 32016, 49152
_CODE_LLAMA_EOT = 32010


def llama_keys(config: HFConfig) -> Keys:
    """Return the keys of llama and of what its converter converts as well."""
    n_rot = config.integer("head_dim") or head_width(config)
    n_vocab = config.needed_integer("vocab_size")
    return {
        "vocab_size": u32("vocab_size", n_vocab),
        "rope.dimension_count": u32("rope.dimension_count", n_rot),
    }


def llama_tokenizer_keys(config: HFConfig, facts: TokenizerFacts) -> Keys:
    """Return what depends on the size of the vocabulary, which tells families apart."""
    keys: Keys = {}
    if isinstance(prefix := facts.config.get("add_prefix_space"), bool):
        keys["add_space_prefix"] = prefix
    n_vocab = config.integer("vocab_size")
    if n_vocab == _CODE_LLAMA_VOCABULARY:
        keys["eot_token_id"] = np.uint32(_CODE_LLAMA_EOT)
    if n_vocab == _GRANITE_VOCABULARY:
        keys["add_bos_token"] = False
    return keys


HF = HuggingFace(
    classes={
        "LlamaForCausalLM": _LLAMA,
        "LLaMAForCausalLM": _LLAMA,
        "LlamaModel": _LLAMA,
        "MistralForCausalLM": MISTRAL_DEFAULTS,
        "MixtralForCausalLM": _MIXTRAL,
    },
    tensors=DECODER | _EXPERTS,
    permutes_qk=True,
    keys=llama_keys,
    tokenizer_keys=llama_tokenizer_keys,
    extra_tensors=llama3_factors,
)
