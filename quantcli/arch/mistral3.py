"""Ministral 3: llama with YaRN of its own magnitude, and queries that grow with their position."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from quantcli.arch.hf_config import HFConfig
from quantcli.arch.hf_keys import llama3_factors
from quantcli.arch.hugging_face import HuggingFace, Keys
from quantcli.arch.hyper import Hyper
from quantcli.arch.llama import ARCH as LLAMA
from quantcli.arch.llama import MISTRAL_DEFAULTS, llama_keys, llama_tokenizer_keys
from quantcli.errors import CheckpointError, UnsupportedModel


def temperature(hyper: Hyper) -> float:
    """Return by how much q grows with its position; 0 if the file does not say."""
    return hyper.keys.number("attention.temperature_scale", 0.0, 1e3, 0.0)


ARCH = replace(LLAMA, name="mistral3", yarn_log_mul=True, temperature=temperature)


def _keys(config: HFConfig) -> Keys:
    """Return llama's keys, with YaRN's magnitude and the growth of queries if it is Ministral 3."""
    kind, keys = config.word("model_type"), llama_keys(config)
    if kind not in ("mistral", "ministral3"):
        raise UnsupportedModel(
            f"config.json: the text model is of type {(kind or '')[:40]!r}; supported are mistral "
            "and ministral3."
        )
    if kind == "ministral3":
        rope = config.rope().full
        for name, source in _ROPE.items():
            if (value := rope.number(source)) is None:
                raise CheckpointError(f"config.json: {source} of RoPE is missing.")
            keys[name] = np.float32(value)
    return keys


_ROPE = {
    "rope.scaling.yarn_log_multiplier": "mscale_all_dim",
    "attention.temperature_scale": "llama_4_scaling_beta",
}

HF = HuggingFace(
    classes={
        "Mistral3ForConditionalGeneration": MISTRAL_DEFAULTS,
        "Ministral3ForCausalLM": MISTRAL_DEFAULTS,
    },
    permutes_qk=True,
    keys=_keys,
    tokenizer_keys=llama_tokenizer_keys,
    extra_tensors=llama3_factors,
)
