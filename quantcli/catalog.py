"""Every name a user can type, in one table: formats, architectures, caches, commands.

Standard library only, so that help, completion and "did you mean" cost no imports. An addition
is one new file and one row here; tests, help, docs and errors follow from the row.
"""

from __future__ import annotations

from importlib import import_module
from types import ModuleType
from typing import NamedTuple

from quantcli.errors import UnknownName


class Row(NamedTuple):
    """One name of one kind: where it lives and what it is."""

    name: str
    module: str
    summary: str


FORMATS = (
    Row("bf16", "quantcli.formats.bf16", "bfloat16, 16 bits per weight"),
    Row("f16", "quantcli.formats.f16", "IEEE half, 16 bits per weight"),
    Row("f32", "quantcli.formats.f32", "IEEE single, 32 bits per weight"),
    Row("iq1_m", "quantcli.formats.iq1_m", "1-bit, codebook of 2048, 1.75 bits per weight"),
    Row("iq1_s", "quantcli.formats.iq1_s", "1-bit, codebook of 2048, 1.5625 bits per weight"),
    Row("iq2_s", "quantcli.formats.iq2_s", "2-bit, codebook of 1024, 2.5625 bits per weight"),
    Row("iq2_xs", "quantcli.formats.iq2_xs", "2-bit, codebook of 512, 2.3125 bits per weight"),
    Row("iq2_xxs", "quantcli.formats.iq2_xxs", "2-bit, codebook of 256, 2.0625 bits per weight"),
    Row("iq3_s", "quantcli.formats.iq3_s", "3-bit, codebook of 512, 3.4375 bits per weight"),
    Row("iq3_xxs", "quantcli.formats.iq3_xxs", "3-bit, codebook of 256, 3.0625 bits per weight"),
    Row("iq4_nl", "quantcli.formats.iq4_nl", "4-bit, uneven levels, 4.5 bits per weight"),
    Row("iq4_xs", "quantcli.formats.iq4_xs", "4-bit, uneven levels, 4.25 bits per weight"),
    Row("mxfp4", "quantcli.formats.mxfp4", "4-bit floats, blocks of 32, 4.25 bits per weight"),
    Row("nvfp4", "quantcli.formats.nvfp4", "4-bit floats, blocks of 64, 4.5 bits per weight"),
    Row("q2_k", "quantcli.formats.q2_k", "2-bit k-quant, 2.625 bits per weight"),
    Row("q3_k", "quantcli.formats.q3_k", "3-bit k-quant, 3.4375 bits per weight"),
    Row("q4_0", "quantcli.formats.q4_0", "4-bit, symmetric, blocks of 32, 4.5 bits per weight"),
    Row("q4_1", "quantcli.formats.q4_1", "4-bit, with minimum, blocks of 32, 5 bits per weight"),
    Row("q4_k", "quantcli.formats.q4_k", "4-bit k-quant, 4.5 bits per weight"),
    Row("q5_0", "quantcli.formats.q5_0", "5-bit, symmetric, blocks of 32, 5.5 bits per weight"),
    Row("q5_1", "quantcli.formats.q5_1", "5-bit, with minimum, blocks of 32, 6 bits per weight"),
    Row("q5_k", "quantcli.formats.q5_k", "5-bit k-quant, 5.5 bits per weight"),
    Row("q6_k", "quantcli.formats.q6_k", "6-bit k-quant, 6.5625 bits per weight"),
    Row("q8_0", "quantcli.formats.q8_0", "8-bit, symmetric, blocks of 32, 8.5 bits per weight"),
    Row("tq1_0", "quantcli.formats.tq1_0", "ternary, 1.6875 bits per weight"),
    Row("tq2_0", "quantcli.formats.tq2_0", "ternary in 2 bits each, 2.0625 bits per weight"),
)

ARCHS = (
    Row("arcee", "quantcli.arch.arcee", "Arcee AFM 4.5B"),
    Row("cohere2", "quantcli.arch.cohere2", "Command R7B, Command A"),
    Row("command-r", "quantcli.arch.command_r", "Command R, Aya"),
    Row("deepseek2", "quantcli.arch.deepseek2", "DeepSeek-V2-Lite, GLM-4.7-Flash"),
    Row("ernie4_5", "quantcli.arch.ernie4_5", "ERNIE 4.5 dense, 0.3B"),
    Row(
        "ernie4_5-moe",
        "quantcli.arch.ernie4_5_moe",
        "ERNIE 4.5 with experts, 21B-A3B and 300B-A47B",
    ),
    Row("exaone4", "quantcli.arch.exaone4", "EXAONE 4, 1.2B and 32B"),
    Row("gemma", "quantcli.arch.gemma", "Gemma 1, 2B and 7B"),
    Row("gemma2", "quantcli.arch.gemma2", "Gemma 2, 2B to 27B"),
    Row("gemma3", "quantcli.arch.gemma3", "Gemma 3, 270M to 27B"),
    Row("glm4", "quantcli.arch.glm4", "GLM-4 0414 and GLM-Z1, 9B and 32B"),
    Row("gpt-oss", "quantcli.arch.gpt_oss", "gpt-oss 20B and 120B"),
    Row("gptneox", "quantcli.arch.gptneox", "GPT-NeoX, Pythia, Dolly"),
    Row("granite", "quantcli.arch.granite", "Granite 3 and 4, dense"),
    Row(
        "granitemoe",
        "quantcli.arch.granitemoe",
        "Granite 3 and 4 with experts, 1B-A400M and 3B-A800M",
    ),
    Row("hunyuan-dense", "quantcli.arch.hunyuan_dense", "Hunyuan dense, 0.5B to 7B"),
    Row(
        "llama", "quantcli.arch.llama", "Llama 2 and 3, Mistral 7B, Mixtral, SmolLM2, TinyLlama, Yi"
    ),
    Row("minicpm", "quantcli.arch.minicpm", "MiniCPM 1B and 2B"),
    Row("mistral3", "quantcli.arch.mistral3", "Ministral 3, 3B to 14B"),
    Row("nemotron", "quantcli.arch.nemotron", "Nemotron 3 and Minitron"),
    Row("olmo2", "quantcli.arch.olmo2", "OLMo 2 and OLMo 3"),
    Row("phi2", "quantcli.arch.phi2", "Phi-1.5 and Phi-2"),
    Row("phi3", "quantcli.arch.phi3", "Phi-3, Phi-3.5 and Phi-4"),
    Row("qwen2", "quantcli.arch.qwen2", "Qwen2, Qwen2.5, DeepSeek-R1-Distill-Qwen"),
    Row("qwen2moe", "quantcli.arch.qwen2moe", "Qwen1.5-MoE-A2.7B and Qwen2-57B-A14B"),
    Row("qwen3", "quantcli.arch.qwen3", "Qwen3 dense, 0.6B to 32B"),
    Row("qwen3moe", "quantcli.arch.qwen3moe", "Qwen3 with experts, 30B-A3B and 235B-A22B"),
    Row("seed_oss", "quantcli.arch.seed_oss", "Seed-OSS 36B"),
    Row("smollm3", "quantcli.arch.smollm3", "SmolLM3 3B"),
    Row("stablelm", "quantcli.arch.stablelm", "StableLM 2 1.6B, StableLM 3B"),
    Row("starcoder2", "quantcli.arch.starcoder2", "StarCoder2, 3B to 15B"),
)

CONTAINERS = (
    Row("folder", "quantcli.huggingface.folder", "a Hugging Face folder: config.json, safetensors"),
)

CACHES = (
    Row("contiguous", "quantcli.kvcache.contiguous", "one span of the whole context a sequence"),
    Row("paged", "quantcli.kvcache.paged", "fixed pages handed out as a sequence grows"),
)

KV_TYPES = (
    Row("f16", "quantcli.kernels.kv_cache", "half precision keys and values"),
    Row("q8_0", "quantcli.kernels.kv_cache", "8-bit keys and values, half the memory of f16"),
)

COMMANDS = (
    Row("bench", "quantcli.cli.bench", "Measure prompt processing and generation speed."),
    Row(
        "compare",
        "quantcli.cli.compare",
        "Compare two models' answers to a prompt, token by token.",
    ),
    Row(
        "convert",
        "quantcli.cli.convert",
        "Convert a Hugging Face folder to a GGUF file.",
    ),
    Row(
        "doctor", "quantcli.cli.doctor", "Show what this machine offers and what quantcli will use."
    ),
    Row(
        "eval",
        "quantcli.cli.eval",
        "Measure perplexity, KL divergence or multiple-choice accuracy.",
    ),
    Row(
        "imatrix",
        "quantcli.cli.imatrix",
        "Measure which inputs of a model's matrices matter, for quantizing.",
    ),
    Row(
        "inspect", "quantcli.cli.inspect", "Show a model's metadata, tensors, plan and memory need."
    ),
    Row("list", "quantcli.cli.list", "List the models on this machine."),
    Row("pull", "quantcli.cli.pull", "Download a model."),
    Row("quantize", "quantcli.cli.quantize", "Make a model smaller."),
    Row("rm", "quantcli.cli.rm", "Remove a downloaded model."),
    Row("run", "quantcli.cli.run", "Generate text from a prompt, or chat."),
    Row("serve", "quantcli.cli.serve", "Serve a model over HTTP: OpenAI's API and a chat page."),
    Row("tokenize", "quantcli.cli.tokenize", "Show how text becomes tokens."),
)

QUANTIZERS = (
    Row("awq", "quantcli.quantize.awq", "scale what matters before rounding, and undo it for free"),
    Row("gptq", "quantcli.quantize.gptq", "let later weights make good what rounding got wrong"),
    Row("plain", "quantcli.quantize.plain", "search for the best codes, matrix by matrix"),
)

_KINDS = {
    "format": FORMATS,
    "architecture": ARCHS,
    "container": CONTAINERS,
    "cache": CACHES,
    "KV cache type": KV_TYPES,
    "command": COMMANDS,
    "quantizer": QUANTIZERS,
}


def names(kind: str) -> tuple[str, ...]:
    """Return the names of one kind, sorted."""
    return tuple(row.name for row in _KINDS[kind])


def lookup(kind: str, name: str) -> Row:
    """Return the row of a name, or raise UnknownName with what is known and what is closest."""
    for row in _KINDS[kind]:
        if row.name == name:
            return row
    raise UnknownName(kind, name, names(kind))


def load(kind: str, name: str) -> ModuleType:
    """Import and return the module that holds a name."""
    return import_module(lookup(kind, name).module)
