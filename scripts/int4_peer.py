"""What scripts/bench_int4 runs in another environment: llm-compressor, and transformers to measure.

    int4_peer.py quantize FOLDER METHOD TEXT OUT      gptq, gptq-imatrix or awq
    int4_peer.py measure TEXT N_CHUNKS BASE FOLDER [FOLDER ...]

Chunks are those of `quantcli quantize --calib` and `quantcli eval --no-bos`: 512 tokens, of which
the second half is scored. Measuring prints JSON: perplexity and divergence from the base, in order.
"""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path

import torch
from torch.nn import functional
from transformers import AutoModelForCausalLM, AutoTokenizer

CHUNK = 512
if not torch.cuda.is_available():  # without a GPU there is nothing to pin memory for
    torch.Tensor.pin_memory = lambda self, device=None: self
N_CALIBRATION_TOKENS = 32768


def chunks_of(folder: str, text: str, n_chunks: int) -> torch.Tensor:
    """Return the first tokens of a text, i64 (n_chunks, 512)."""
    tokenizer = AutoTokenizer.from_pretrained(folder)
    ids = tokenizer(Path(text).read_text(encoding="utf-8"), add_special_tokens=False)["input_ids"]
    n = min(n_chunks, len(ids) // CHUNK)
    return torch.tensor(ids[: n * CHUNK]).reshape(n, CHUNK)


def quantize(folder: str, method: str, text: str, out: str) -> None:
    """Write a folder in INT4, groups of 128, with llm-compressor's defaults."""
    from datasets import Dataset
    from llmcompressor import oneshot
    from llmcompressor.modifiers.quantization import GPTQModifier, QuantizationModifier
    from llmcompressor.modifiers.transform.awq import AWQModifier

    common = {"targets": "Linear", "scheme": "W4A16", "ignore": ["lm_head"]}
    if method.endswith("imatrix"):
        common["weight_observer"] = "imatrix_mse"
    if method.startswith("gptq"):
        recipe = [GPTQModifier(**common)]
    else:
        recipe = [AWQModifier(duo_scaling="both"), QuantizationModifier(**common)]
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    chunks = chunks_of(folder, text, N_CALIBRATION_TOKENS // CHUNK)
    data = Dataset.from_dict(
        {"input_ids": chunks.tolist(), "attention_mask": torch.ones_like(chunks).tolist()}
    )
    oneshot(
        model=model,
        dataset=data,
        recipe=recipe,
        max_seq_length=CHUNK,
        num_calibration_samples=len(chunks),
    )
    model.save_pretrained(out, save_compressed=True)
    AutoTokenizer.from_pretrained(folder).save_pretrained(out)


def measure(text: str, n_chunks: int, base: str, folders: list[str]) -> None:
    """Print what each folder's predictions are worth, as JSON."""
    chunks = chunks_of(base, text, n_chunks)
    exact = _log_probabilities(base, chunks)
    found = {}
    for folder in [base, *folders]:
        logs = _log_probabilities(folder, chunks)
        targets = chunks[:, CHUNK // 2 + 1 :].unsqueeze(-1)
        nats = -logs[:, :-1].gather(-1, targets).mean().item()
        kl = functional.kl_div(logs, exact, reduction="none", log_target=True).sum(-1)
        found[folder] = {"perplexity": math.exp(nats), "kl": kl[:, :-1].mean().item()}
    print(json.dumps(found))


def _log_probabilities(folder: str, chunks: torch.Tensor) -> torch.Tensor:
    """Return f32 (n_chunks, 256, n_vocab) of the second halves."""
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    with torch.no_grad():
        logits = [model(chunk[None]).logits[0, CHUNK // 2 :].float() for chunk in chunks]
    return functional.log_softmax(torch.stack(logits), dim=-1)


if __name__ == "__main__":
    if sys.argv[1] == "quantize":
        quantize(*sys.argv[2:])
    else:
        measure(sys.argv[2], int(sys.argv[3]), sys.argv[4], sys.argv[5:])
