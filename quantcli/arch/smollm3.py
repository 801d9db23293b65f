"""SmolLM3: llama without rotation in every fourth layer. Source: arXiv:2501.18795 (NoPE layers)."""

from __future__ import annotations

from quantcli.arch.blocks import Decoder
from quantcli.arch.hf_config import Default
from quantcli.arch.hugging_face import HuggingFace
from quantcli.arch.hyper import Hyper
from quantcli.arch.llama import llama_keys, llama_tokenizer_keys

_PERIOD = 4


def rope_layers(hyper: Hyper, layer: int) -> bool:
    """Return whether a layer rotates: all but every fourth."""
    return (layer + 1) % _PERIOD != 0


ARCH = Decoder(name="smollm3", rope_style="norm", rope_layers=rope_layers)

_DEFAULTS: dict[str, Default] = {
    "vocab_size": 128256,
    "max_position_embeddings": 32768,
    "hidden_size": 2048,
    "intermediate_size": 11008,
    "num_hidden_layers": 36,
    "num_attention_heads": 16,
    "num_key_value_heads": 4,
    "rms_norm_eps": 1e-6,
    "rope_theta": 2e6,
}

HF = HuggingFace(
    classes={"SmolLM3ForCausalLM": _DEFAULTS},
    permutes_qk=True,
    keys=llama_keys,
    tokenizer_keys=llama_tokenizer_keys,
)
