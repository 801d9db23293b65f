"""What the tests' Hugging Face folders are like: architectures, tokenizers, number formats."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field

from tiny_vocab import CHATML, TURNS

Table = dict[str, object]
BOS, EOS, PAD = "<|begin|>", "<|end|>", "<|pad|>"


@dataclass(frozen=True)
class Case:
    """What a folder is like.

    config      on top of config.json's usual keys; None removes one
    vocabulary  "bpe", "spm" or "spm.json": SentencePiece's by tokenizer.json alone
    n_vocab     config.json's vocab_size, 0 for the number of tokens
    n_rows      rows of the embedding, 0 for vocab_size
    n_files     how many weight files there are
    tokenizer   on top of tokenizer_config.json's usual keys
    pipeline    on top of tokenizer.json's usual keys
    files       further files: name -> text
    prefix      before the names of tensors
    layer, top  tensors of a layer and of the whole, where not the usual ones: words such as
                "self_attn.q_proj:q,d" for a matrix, with "+" behind it for one with a bias, and "="
                for ":" where nothing goes after the name; "*" is each of four experts. Sizes are
                d_model, q and k/v rows, d_ff f, heads h of width w, experts e of width m, rows v,
                and numbers; "2f" is twice f
    shifted     whether the model adds 1 to the weights of norms
    zero_biases whether biases are 0
    """

    class_name: str
    dtype: str = "BF16"
    config: Table = field(default_factory=dict)
    vocabulary: str = "bpe"
    n_vocab: int = 0
    n_rows: int = 0
    n_layers: int = 3
    n_files: int = 1
    tied: bool = False
    biases: bool = False
    qk_norm: bool = False
    post_norms: bool = False
    d_model: int = 64
    d_ff: int = 96
    n_heads: int = 4
    n_kv_heads: int = 2
    head_dim: int = 16
    tokenizer: Table = field(default_factory=dict)
    pipeline: Table = field(default_factory=dict)
    files: Mapping[str, str] = field(default_factory=dict)
    prefix: str = ""
    layer: str = ""
    top: str = "model.embed_tokens:v,d model.norm:d lm_head:v,d"
    layers: str = "model.layers"
    shifted: bool = False
    zero_biases: bool = False
    other_tensors: Mapping[str, tuple[int, ...]] = field(default_factory=dict)


CARD = """---
license: apache-2.0
language:
- en
- no
tags: [chat, tiny]
base_model: org/Tiny-Base-1B
datasets:
- org/words
pipeline_tag: text-generation
---
# Tiny
"""
GENERATION = json.dumps(
    {"temperature": 0.6, "top_p": 0.95, "top_k": 20, "repetition_penalty": 1.05, "do_sample": True}
)
LLAMA3_ROPE = {
    "rope_type": "llama3",
    "factor": 32.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}
YARN = {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 256}
NAMED = [{"name": "default", "template": CHATML}, {"name": "tool use", "template": TURNS}]
TEMPLATE_PROCESSING = {
    "type": "TemplateProcessing",
    "single": [{"SpecialToken": {"id": BOS, "type_id": 0}},
               {"Sequence": {"id": "A", "type_id": 0}}],
    "pair": [{"Sequence": {"id": "A", "type_id": 0}},
             {"Sequence": {"id": "B", "type_id": 1}}],
    "special_tokens": {BOS: {"id": BOS, "ids": [266], "tokens": [BOS]}},
}  # fmt: skip
BYTE_LEVEL = {
    "type": "ByteLevel",
    "add_prefix_space": False,
    "trim_offsets": True,
    "use_regex": True,
}
GEMMA = {
    "sliding_window": 8,
    "query_pre_attn_scalar": 16,
    "rope_local_base_freq": 10000.0,
    "rope_theta": 1000000.0,
    "hidden_activation": "gelu_pytorch_tanh",
}

FACTORS: Table = {
    "attention_multiplier": 0.25,
    "embedding_multiplier": 12.0,
    "residual_multiplier": 0.22,
    "logits_scaling": 8.0,
}

CASES: dict[str, Case] = {
    "llama3": Case(
        "LlamaForCausalLM",
        config={"rope_theta": 500000.0, "rope_scaling": LLAMA3_ROPE},
        n_files=2,
        tokenizer={"chat_template": CHATML},
        pipeline={"post_processor": TEMPLATE_PROCESSING},
        files={"README.md": CARD, "generation_config.json": GENERATION},
    ),
    "llama2": Case(
        "LlamaForCausalLM",
        "F16",
        config={"rope_scaling": {"type": "linear", "factor": 2.0}, "num_key_value_heads": None},
        vocabulary="spm",
        n_kv_heads=4,
        n_vocab=400,
        tokenizer={"add_prefix_space": True, "add_bos_token": True, "add_eos_token": False},
    ),
    "llama_biases": Case(
        "LlamaForCausalLM", "F32", config={"attention_bias": True}, biases=True, tied=True
    ),
    "codellama": Case("LlamaForCausalLM", vocabulary="spm", n_vocab=32016, n_layers=1, tied=True),
    "granite": Case("LlamaForCausalLM", n_vocab=49152, n_layers=1, tied=True, d_model=32),
    "mistral": Case(
        "MistralForCausalLM",
        "F32",
        config={"sliding_window": 4096, "head_dim": None},
        vocabulary="spm",
        files={"added_tokens.json": json.dumps({"<extra>": 330})},
    ),
    "qwen2": Case(
        "Qwen2ForCausalLM",
        config={"rope_scaling": YARN, "head_dim": None, "tie_word_embeddings": True},
        n_vocab=288,
        tied=True,
        biases=True,
        pipeline={"post_processor": BYTE_LEVEL | {"trim_offsets": False}},
        files={"chat_template.jinja": CHATML, "generation_config.json": GENERATION},
    ),
    "qwen3": Case(
        "Qwen3ForCausalLM",
        config={"rope_parameters": {"rope_theta": 1e6, "rope_type": "default"}, "rope_theta": None},
        head_dim=32,
        qk_norm=True,
        tokenizer={"chat_template": NAMED, "add_bos_token": False},
    ),
    "gemma3": Case(
        "Gemma3ForCausalLM",
        config=GEMMA,
        vocabulary="spm",
        n_layers=7,
        tied=True,
        qk_norm=True,
        post_norms=True,
        n_rows=384,
        tokenizer={"chat_template": TURNS, "add_bos_token": True},
        files={"generation_config.json": "{not json"},
    ),
    "gemma3_vision": Case(
        "Gemma3ForConditionalGeneration",
        config=GEMMA | {"rope_scaling": {"rope_type": "linear", "factor": 8.0}},
        vocabulary="spm",
        tied=True,
        qk_norm=True,
        post_norms=True,
        prefix="language_model.",
        other_tensors={
            "vision_tower.vision_model.embeddings.patch_embedding.bias": (8,),
            "multi_modal_projector.mm_soft_emb_norm.weight": (8,),
        },
    ),
}
