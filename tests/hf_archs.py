"""What Hugging Face folders of further architectures are like, their tensors spelled out.

Names and shapes are those of transformers 4.57's classes, or of a model's own code where there is
none; scripts/make_goldens_convert checks them against the classes.
"""

from __future__ import annotations

from hf_cases import BOS, CASES, EOS, FACTORS, Case

ATTENTION = "self_attn.q_proj:q,d self_attn.k_proj:k,d self_attn.v_proj:k,d self_attn.o_proj:d,q "
BIASED = "self_attn.q_proj:q,d+ self_attn.k_proj:k,d+ self_attn.v_proj:k,d+ self_attn.o_proj:d,q "
ALL_BIASED = BIASED.rstrip() + "+ "
NORMS = "input_layernorm:d post_attention_layernorm:d "
MLP = "mlp.gate_proj:f,d mlp.up_proj:f,d mlp.down_proj:d,f "
EXPERTS = "mlp.gate:e,d " + "".join(
    f"mlp.experts.*.{part} " for part in ("gate_proj:m,d", "up_proj:m,d", "down_proj:d,m")
)
TIED = "model.embed_tokens:v,d model.norm:d"
NORMS_BIASED = "input_layernorm:d+ post_attention_layernorm:d+ "
TOP_BIASED = "model.embed_tokens:v,d model.norm:d+ lm_head:v,d"
PLAIN_MLP = "mlp.up_proj:f,d mlp.down_proj:d,f "

MOE = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 48}
# As JSON has it: null where a class computes a value, or has none.
NO_HEAD_DIM = {"head_dim": None}
NO_RMS = {"rms_norm_eps": None, "head_dim": None}
LONG = {
    "type": "longrope",
    "long_factor": [1.5 + 0.5 * i for i in range(8)],
    "short_factor": [1.0 + 0.25 * i for i in range(8)],
}
YARN = {
    "rope_type": "yarn",
    "factor": 8.0,
    "beta_fast": 32.0,
    "beta_slow": 1.0,
    "original_max_position_embeddings": 64,
}
ADDED = [
    {"id": 266 + i, "content": text, "special": True, "normalized": False,
     "single_word": False, "lstrip": False, "rstrip": False}
    for i, text in enumerate((BOS, EOS, "<|endoftext|>", "<|user|>"))
]  # fmt: skip
MLA = {
    "kv_lora_rank": 32,
    "qk_nope_head_dim": 32,
    "qk_rope_head_dim": 8,
    "v_head_dim": 16,
    "head_dim": None,
    "n_routed_experts": 4,
    "n_shared_experts": 1,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 48,
    "first_k_dense_replace": 0,
}


def folder(class_name: str, model_type: str, layer: str, **changes: object) -> Case:
    """Return a case of two layers; `config` may be given in part."""
    config = {"model_type": model_type, **changes.pop("config", {})}  # type: ignore[dict-item]
    return Case(class_name, config=config, layer=layer, **{"n_layers": 2, **changes})  # type: ignore[arg-type]


CASES |= {
    "mixtral": folder(
        "MixtralForCausalLM", "mixtral",
        ATTENTION + NORMS + "block_sparse_moe.gate:e,d block_sparse_moe.experts.*.w1:f,d "
        "block_sparse_moe.experts.*.w2:d,f block_sparse_moe.experts.*.w3:f,d",
        config={"num_local_experts": 4, "num_experts_per_tok": 2, "head_dim": None},
        vocabulary="spm",
    ),
    "qwen3moe": folder(
        "Qwen3MoeForCausalLM", "qwen3_moe",
        ATTENTION + NORMS + EXPERTS + "self_attn.q_norm:w self_attn.k_norm:w", config=MOE,
    ),
    "qwen2moe": folder(
        "Qwen2MoeForCausalLM", "qwen2_moe",
        BIASED + NORMS + EXPERTS + "mlp.shared_expert.gate_proj:80,d mlp.shared_expert_gate:1,d "
        "mlp.shared_expert.up_proj:80,d mlp.shared_expert.down_proj:d,80",
        config=MOE | NO_HEAD_DIM | {"shared_expert_intermediate_size": 80},
    ),
    "smollm3": folder("SmolLM3ForCausalLM", "smollm3", ATTENTION + NORMS + MLP, top=TIED,
                      config={"tie_word_embeddings": True}),
    "granite3": folder("GraniteForCausalLM", "granite", ATTENTION + NORMS + MLP, config=FACTORS),
    "granitemoe": folder(
        "GraniteMoeSharedForCausalLM", "granitemoeshared",
        ATTENTION + NORMS + "block_sparse_moe.router.layer:e,d "
        "block_sparse_moe.input_linear:e,2f,d block_sparse_moe.output_linear:e,d,f "
        "shared_mlp.input_linear:96,d shared_mlp.output_linear:d,48",
        config=FACTORS | NO_HEAD_DIM
        | {"num_local_experts": 4, "num_experts_per_tok": 2, "shared_intermediate_size": 48},
    ),
    "olmo2": folder(
        "Olmo2ForCausalLM", "olmo2",
        ATTENTION + MLP + "self_attn.q_norm:q self_attn.k_norm:k post_attention_layernorm:d "
        "post_feedforward_layernorm:d", config=NO_HEAD_DIM,
    ),
    "olmo3": folder(
        "Olmo3ForCausalLM", "olmo3",
        ATTENTION + MLP + "self_attn.q_norm:q self_attn.k_norm:k post_attention_layernorm:d "
        "post_feedforward_layernorm:d", n_layers=4,
        config=NO_HEAD_DIM | {"sliding_window": 8, "rope_scaling": YARN},
    ),
    "seed_oss": folder("SeedOssForCausalLM", "seed_oss", BIASED + NORMS + MLP),
    "gemma": folder("GemmaForCausalLM", "gemma", ATTENTION + NORMS + MLP, top=TIED, shifted=True,
                    vocabulary="spm"),
    "gemma2": folder(
        "Gemma2ForCausalLM", "gemma2",
        ATTENTION + NORMS + MLP + "pre_feedforward_layernorm:d post_feedforward_layernorm:d",
        top=TIED, shifted=True, vocabulary="spm", config={"sliding_window": 8},
    ),
    "phi2": folder(
        "PhiForCausalLM", "phi",
        ALL_BIASED.replace("o_proj", "dense").replace(":k,d", ":q,d")
        + "input_layernorm:d+ mlp.fc1:f,d+ mlp.fc2:d,f+",
        top="model.embed_tokens:v,d model.final_layernorm:d+ lm_head:v,d+", d_ff=256,
        config=NO_RMS | {"layer_norm_eps": 1e-5, "partial_rotary_factor": 0.5,
                         "num_key_value_heads": 4},
    ),
    "phi3": folder(
        "Phi3ForCausalLM", "phi3",
        "self_attn.qkv_proj:128,d self_attn.o_proj:d,q mlp.gate_up_proj:2f,d mlp.down_proj:d,f "
        + NORMS, vocabulary="spm",
        config=NO_HEAD_DIM | {"rope_scaling": LONG, "original_max_position_embeddings": 128},
    ),
    "phi4": folder(
        "Phi3ForCausalLM", "phi3",
        "self_attn.qkv_proj:128,d self_attn.o_proj:d,q mlp.gate_up_proj:2f,d mlp.down_proj:d,f "
        + NORMS, tokenizer={"tokenizer_class": "GPT2Tokenizer"}, pipeline={"added_tokens": ADDED},
        config=NO_HEAD_DIM | {"partial_rotary_factor": 0.75, "sliding_window": 64},
    ),
    "gpt_oss": folder(
        "GptOssForCausalLM", "gpt_oss",
        ALL_BIASED + NORMS + "self_attn.sinks=h mlp.router:e,d+ "
        "mlp.experts.gate_up_proj_blocks=e,2f,2,16 mlp.experts.gate_up_proj_scales=e,2f,2 "
        "mlp.experts.gate_up_proj_bias=e,2f mlp.experts.down_proj_blocks=e,d,2,16 "
        "mlp.experts.down_proj_scales=e,d,2 mlp.experts.down_proj_bias=e,d",
        d_ff=64,
        config={"num_local_experts": 4, "num_experts_per_tok": 2,
                "sliding_window": 8, "rope_scaling": YARN | {"truncate": False},
                "quantization_config": {"quant_method": "mxfp4"}},
    ),
    "gpt_oss_bf16": folder(
        "GptOssForCausalLM", "gpt_oss",
        ALL_BIASED + NORMS + "self_attn.sinks=h mlp.router:e,d+ "
        "mlp.experts.gate_up_proj=e,d,2f mlp.experts.gate_up_proj_bias=e,2f "
        "mlp.experts.down_proj=e,f,d mlp.experts.down_proj_bias=e,d",
        n_layers=1,
        config={"num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": 8},
    ),
    "ernie4_5": folder("Ernie4_5ForCausalLM", "ernie4_5", ATTENTION + NORMS + MLP, top=TIED,
                       vocabulary="spm", config={"tie_word_embeddings": True},
                       tokenizer={"add_prefix_space": False}),
    "ernie4_5_old": folder(
        "Ernie4_5_ForCausalLM", "ernie4_5_",
        "self_attn.qkv_proj:128,d self_attn.o_proj:d,q mlp.up_gate_proj:2f,d mlp.down_proj:d,f "
        + NORMS, vocabulary="spm", n_layers=1,
    ),
    "ernie4_5_moe": folder(
        "Ernie4_5_MoeForCausalLM", "ernie4_5_moe",
        ATTENTION + NORMS + EXPERTS + "mlp.moe_statics.e_score_correction_bias=1,e "
        "mlp.shared_experts.gate_proj:m,d mlp.shared_experts.up_proj:m,d "
        "mlp.shared_experts.down_proj:d,m", vocabulary="spm",
        config={"moe_num_experts": 4, "moe_k": 2, "moe_intermediate_size": 48,
                "moe_num_shared_experts": 1, "moe_layer_start_index": 0, "head_dim": None,
                "intermediate_size": 96},
    ),
    "exaone4": folder(
        "Exaone4ForCausalLM", "exaone4",
        ATTENTION + MLP + "self_attn.q_norm:w self_attn.k_norm:w post_attention_layernorm:d "
        "post_feedforward_layernorm:d", n_layers=4,
        config={"sliding_window": 8, "sliding_window_pattern": 4},
    ),
    "command_r": folder(
        "CohereForCausalLM", "cohere", ATTENTION + MLP + "input_layernorm:d", top=TIED,
        config=NO_RMS | {"layer_norm_eps": 1e-5, "model_max_length": 1024, "logit_scale": 0.25},
    ),
    "cohere2": folder(
        "Cohere2ForCausalLM", "cohere2", ATTENTION + MLP + "input_layernorm:d", top=TIED,
        config=NO_RMS | {"layer_norm_eps": 1e-5, "rotary_pct": 1.0,
                                           "sliding_window": 8},
    ),
    "glm4": folder(
        "Glm4ForCausalLM", "glm4",
        BIASED + NORMS + "post_self_attn_layernorm:d post_mlp_layernorm:d mlp.gate_up_proj:2f,d "
        "mlp.down_proj:d,f", pipeline={"added_tokens": ADDED},
    ),
    "hunyuan": folder(
        "HunYuanDenseV1ForCausalLM", "hunyuan_v1_dense",
        ATTENTION + NORMS + MLP + "self_attn.query_layernorm:w self_attn.key_layernorm:w",
        files={"generation_config.json": '{"eos_token_id": [267, 269], "top_k": 20}'},
        config={"rope_scaling": {"type": "dynamic", "alpha": 1000.0, "factor": 1.0},
                "max_position_embeddings": 32768, "tie_word_embeddings": True,
                "eod_token_id": 268},
    ),
    "starcoder2": folder(
        "Starcoder2ForCausalLM", "starcoder2",
        ALL_BIASED + NORMS_BIASED + "mlp.c_fc:f,d+ mlp.c_proj:d,f+",
        top="model.embed_tokens:v,d model.norm:d+", config=NO_RMS | {"norm_epsilon": 1e-5},
    ),
    "stablelm": folder(
        "StableLmForCausalLM", "stablelm", ATTENTION + NORMS_BIASED + MLP, top=TOP_BIASED,
        config=NO_RMS | {"layer_norm_eps": 1e-5, "partial_rotary_factor": 0.25},
    ),
    "gptneox": folder(
        "GPTNeoXForCausalLM", "gpt_neox",
        NORMS_BIASED + "attention.query_key_value:3q,d+ attention.dense:d,q+ "
        "mlp.dense_h_to_4h:f,d+ mlp.dense_4h_to_h:d,f+",
        layers="gpt_neox.layers",
        top="gpt_neox.embed_in:v,d gpt_neox.final_layer_norm:d+ embed_out:v,d",
        config=NO_RMS | {"layer_norm_eps": 1e-5, "rotary_pct": 0.25, "rotary_emb_base": 10000,
                         "num_key_value_heads": None, "rope_theta": None},
    ),
    "minicpm": folder(
        "MiniCPMForCausalLM", "minicpm", ATTENTION + NORMS + MLP, vocabulary="spm",
        config=NO_HEAD_DIM | {"scale_emb": 12, "scale_depth": 1.4, "dim_model_base": 32,
                              "rope_scaling": LONG | {"original_max_position_embeddings": 128}},
    ),
    "nemotron": folder(
        "NemotronForCausalLM", "nemotron", ATTENTION + NORMS_BIASED + PLAIN_MLP, top=TOP_BIASED,
        shifted=True, vocabulary="spm",
        config=NO_RMS | {"norm_eps": 1e-5, "partial_rotary_factor": 0.5},
    ),
    "arcee": folder("ArceeForCausalLM", "arcee", ATTENTION + NORMS + PLAIN_MLP,
                    config={"rope_scaling": YARN}),
    "mistral3": folder(
        "Ministral3ForCausalLM", "ministral3", ATTENTION + NORMS + MLP,
        config={"rope_theta": None,
                "rope_parameters": YARN | {"mscale_all_dim": 1.0, "llama_4_scaling_beta": 0.1,
                                           "rope_theta": 1e6}},
    ),
    "deepseek2": folder(
        "DeepseekV2ForCausalLM", "deepseek_v2",
        "self_attn.q_proj:160,d self_attn.kv_a_proj_with_mqa:40,d self_attn.kv_a_layernorm:32 "
        "self_attn.kv_b_proj:192,32 self_attn.o_proj:d,q mlp.shared_experts.gate_proj:m,d "
        "mlp.shared_experts.up_proj:m,d mlp.shared_experts.down_proj:d,m " + NORMS + EXPERTS,
        config=MLA | {"q_lora_rank": None, "num_key_value_heads": 4,
                      "rope_scaling": YARN | {"mscale": 0.707, "mscale_all_dim": 0.707}},
    ),
    "deepseek3": folder(
        "DeepseekV3ForCausalLM", "deepseek_v3",
        "self_attn.q_a_proj:32,d self_attn.q_a_layernorm:32 self_attn.q_b_proj:160,32 "
        "self_attn.kv_a_proj_with_mqa:40,d self_attn.kv_a_layernorm:32 "
        "self_attn.kv_b_proj:192,32 self_attn.o_proj:d,q mlp.shared_experts.gate_proj:m,d "
        "mlp.shared_experts.up_proj:m,d mlp.shared_experts.down_proj:d,m "
        "mlp.gate.e_score_correction_bias=e " + NORMS + EXPERTS,
        n_layers=1, config=MLA | {"q_lora_rank": 32, "scoring_func": "sigmoid", "n_group": 1,
                                  "topk_group": 1, "num_key_value_heads": 4},
    ),
}  # fmt: skip
