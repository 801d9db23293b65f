#!/usr/bin/env python3
"""Write tests/goldens/logits: what llama.cpp computes, for tests that never run it.

    scripts/make_goldens_logits.py tiny
    scripts/make_goldens_logits.py model smollm2 MODEL.gguf
    scripts/make_goldens_logits.py check      report how far our reference is, write nothing

Needs llama-cpp-python beside quantcli. `tiny` stores logits of the F32 models of
tests/logit_cases.py with an F32 cache; `model` stores, for a fixed text, llama.cpp's likeliest
tokens, its greedy continuations, and its KL divergence to our f32 reference, with its defaults.
"""

from __future__ import annotations

import argparse
import ctypes
import hashlib
import json
import platform
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import numpy.typing as npt

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

import llama_cpp  # noqa: E402
from logit_cases import CASES, ROWS, prompt  # noqa: E402
from reference_model import load, logits  # noqa: E402
from tiny import write_model  # noqa: E402

F32 = npt.NDArray[np.float32]
F64 = npt.NDArray[np.float64]

GOLDENS = ROOT / "tests" / "goldens" / "logits"
TEXT = GOLDENS / "text.txt"
N_TEXT_TOKENS = 600  # beyond the longest sliding window among the models
N_POSITIONS = 128  # that are compared, evenly spread; every second keeps its likeliest tokens
N_TOP = 20
N_GREEDY = 64
# Continuations that no rounding turns: every token leads by at least 0.8. The last is free text.
PROMPTS = {
    "smollm2": (
        "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face"
        "<|im_end|>\n<|im_start|>user\nCount from 1 to 20.<|im_end|>\n<|im_start|>assistant\n",
        "10, 20, 30, 40, 50,",
        "Once upon a time",
    ),
    "gemma3": (
        "SELECT * FROM users WHERE id = 1;\nSELECT * FROM users WHERE id = 2;\n"
        "SELECT * FROM users WHERE id = 3;\n",
        "10, 20, 30, 40, 50,",
        "Once upon a time",
    ),
}


@ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_char_p, ctypes.c_void_p)
def _quiet(level: int, text: bytes, data: object) -> None:
    """Swallow llama.cpp's log."""


class LlamaCpp:
    """A model in llama.cpp, with logits for every position."""

    def __init__(self, path: Path, context: int, *, exact: bool) -> None:
        """Open a model; `exact` keeps keys and values in f32 and turns flash attention off."""
        llama_cpp.llama_log_set(_quiet, ctypes.c_void_p(0))
        self.model = llama_cpp.llama_model_load_from_file(
            str(path).encode(), llama_cpp.llama_model_default_params()
        )
        assert self.model, f"llama.cpp cannot load {path}"
        params = llama_cpp.llama_context_default_params()
        params.n_ctx = params.n_batch = params.n_ubatch = context
        params.n_threads = params.n_threads_batch = 2
        if exact:
            params.type_k = params.type_v = llama_cpp.GGML_TYPE_F32
            params.flash_attn_type = llama_cpp.LLAMA_FLASH_ATTN_TYPE_DISABLED
        self.context = llama_cpp.llama_init_from_model(self.model, params)
        assert self.context, f"llama.cpp cannot run {path}"
        self.vocab = llama_cpp.llama_model_get_vocab(self.model)
        self.n_vocab = llama_cpp.llama_vocab_n_tokens(self.vocab)

    def tokenize(self, text: str) -> list[int]:
        """Return the ids of a text, with the special tokens that the model wants."""
        data = text.encode()
        ids = (ctypes.c_int32 * (len(data) + 8))()
        n = llama_cpp.llama_tokenize(self.vocab, data, len(data), ids, len(ids), True, True)
        return list(ids[:n])

    def forward(self, tokens: list[int], rows: Iterable[int], start: int = 0) -> F32:
        """Run tokens from position `start`; return f32 (len(rows), n_vocab)."""
        rows = list(rows)
        batch = llama_cpp.llama_batch_init(len(tokens), 0, 1)
        batch.n_tokens = len(tokens)
        for i, token in enumerate(tokens):
            batch.token[i], batch.pos[i] = token, start + i
            batch.n_seq_id[i], batch.seq_id[i][0], batch.logits[i] = 1, 0, i in rows
        assert llama_cpp.llama_decode(self.context, batch) == 0
        logits = np.empty((len(rows), self.n_vocab), np.float32)
        for out, i in zip(logits, rows, strict=True):
            address = llama_cpp.llama_get_logits_ith(self.context, i)
            out[:] = np.ctypeslib.as_array(address, shape=(self.n_vocab,))
        llama_cpp.llama_batch_free(batch)
        return logits

    def greedy(self, tokens: list[int], n: int) -> tuple[list[int], list[float]]:
        """Return n tokens, each the likeliest, and by how much its logit led over the next."""
        ids: list[int] = []
        leads: list[float] = []
        logits = self.forward(tokens, [len(tokens) - 1])[0]
        while True:
            second, first = np.partition(logits, -2)[-2:]
            leads.append(round(float(first - second), 2))
            ids.append(int(logits.argmax()))
            if len(ids) == n:
                return ids, leads
            logits = self.forward(ids[-1:], [0], len(tokens) + len(ids) - 1)[0]

    def clear(self) -> None:
        """Forget all keys and values."""
        llama_cpp.llama_memory_clear(llama_cpp.llama_get_memory(self.context), True)

    def close(self) -> None:
        """Free the model."""
        llama_cpp.llama_free(self.context)
        llama_cpp.llama_model_free(self.model)


def log_softmax(logits: F32) -> F64:
    """Return log-probabilities in f64."""
    x = logits.astype(np.float64)
    x -= x.max(axis=-1, keepdims=True)
    return x - np.log(np.exp(x).sum(axis=-1, keepdims=True))


def kl(p: F64, q: F64) -> F64:
    """Return KL(p || q) of each row, from log-probabilities."""
    return np.sum(np.exp(p) * (p - q), axis=-1)


def tiny_logits(folder: Path) -> dict[str, tuple[F32, F32]]:
    """Return llama.cpp's and our logits of every tiny model, at every position."""
    found = {}
    for name, tiny in CASES.items():
        path = write_model(folder / f"{name}.gguf", tiny)
        model = LlamaCpp(path, tiny.context, exact=True)
        tokens = prompt(model.n_vocab)
        rows = range(len(tokens))
        found[name] = model.forward(tokens, rows), logits(load(path), tokens, list(rows))
        model.close()
    return found


def report(found: dict[str, tuple[F32, F32]]) -> None:
    """Print how far we are from llama.cpp."""
    for name, (theirs, ours) in found.items():
        error = np.abs(theirs - ours).max()
        same = float((theirs.argmax(-1) == ours.argmax(-1)).mean())
        divergence = kl(log_softmax(theirs), log_softmax(ours)).max()
        print(
            f"{name:24} max |error| {error:.2e}  of {theirs.std():5.2f}   "
            f"KL {divergence:.1e}   same argmax {same:.4f}"
        )


def make_tiny() -> None:
    """Store rows of llama.cpp's logits for every tiny model."""
    with tempfile.TemporaryDirectory() as folder:
        found = tiny_logits(Path(folder))
    report(found)
    rows = {name: theirs[list(ROWS)] for name, (theirs, _) in found.items()}
    np.savez_compressed(GOLDENS / "tiny.npz", **rows)
    (GOLDENS / "tiny.json").write_text(
        json.dumps({"tool": tool(), "cache": "f32", "rows": ROWS, "cases": list(rows)}, indent=1)
        + "\n",
        encoding="utf-8",
    )


def make_model(name: str, path: Path) -> None:
    """Store what llama.cpp says on a fixed text, with its own defaults."""
    model = LlamaCpp(path, 1024, exact=False)
    tokens = model.tokenize(TEXT.read_text(encoding="utf-8"))[:N_TEXT_TOKENS]
    positions = np.linspace(1, len(tokens) - 1, N_POSITIONS).astype(int)
    theirs = log_softmax(model.forward(tokens, positions.tolist()))
    ours = log_softmax(logits(load(path), tokens, positions.tolist()))
    divergence = kl(ours, theirs)
    same = float((theirs.argmax(-1) == ours.argmax(-1)).mean())
    kept = theirs[::2]
    top = np.argsort(-kept, axis=-1, kind="stable")[:, :N_TOP]
    greedy = []
    for text in PROMPTS[name]:
        model.clear()
        ids = model.tokenize(text)
        answer, leads = model.greedy(ids, N_GREEDY)
        greedy.append({"text": text, "prompt": ids, "ids": answer, "leads": leads})
    model.close()
    golden = {
        "tool": tool(),
        "settings": "defaults: f16 cache, flash attention auto, 2 threads",
        "sha256": hashlib.sha256(path.read_bytes()).hexdigest(),
        "kl_to_f32_mean": float(f"{divergence.mean():.4g}"),
        "kl_to_f32_max": float(f"{divergence.max():.4g}"),
        "same_top": round(same, 4),
        "greedy": greedy,
        "tokens": tokens,
        "positions": positions.tolist(),
        "top_ids": top.tolist(),
        "top_logprobs": np.round(np.take_along_axis(kept, top, -1), 4).tolist(),
    }
    print(json.dumps({key: golden[key] for key in list(golden)[:6]}, indent=1))
    lines = [f" {json.dumps(key)}: {json.dumps(value)}" for key, value in golden.items()]
    (GOLDENS / f"{name}.json").write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")


def tool() -> str:
    """Return what made a golden."""
    return (
        f"llama.cpp as vendored in llama-cpp-python {llama_cpp.__version__}, {platform.machine()}"
    )


def main() -> None:
    """Run one of the three subcommands."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("tiny")
    commands.add_parser("check")
    model = commands.add_parser("model")
    model.add_argument("name", choices=PROMPTS)
    model.add_argument("path", type=Path)
    args = parser.parse_args()
    GOLDENS.mkdir(parents=True, exist_ok=True)
    if args.command == "model":
        make_model(args.name, args.path)
    elif args.command == "tiny":
        make_tiny()
    else:
        with tempfile.TemporaryDirectory() as folder:
            report(tiny_logits(Path(folder)))


if __name__ == "__main__":
    main()
