"""Texts to calibrate on: the one that comes along, a file, or what the model writes itself.

The built-in text is a mixture, since a model meets more than prose: addresses in English, a
declaration in twenty languages, Python, and conversations in the model's own chat template.
`data/README.md` says where each comes from.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from importlib.resources import files
from itertools import cycle

import numpy as np

from quantcli.checkpoint import Checkpoint
from quantcli.engine.loop import Engine
from quantcli.engine.request import Request, SamplingParams
from quantcli.errors import UnsupportedModel, UsageError
from quantcli.evaluate.corpus import read_text
from quantcli.quantize.calibrate import CHUNK, Calibration
from quantcli.runtime.model import Model
from quantcli.text import Tokenizer
from quantcli.text.chat import ChatTemplate, encode_chat

Progress = Callable[[str, int, int], None]
Tokens = list[int]

BUILTIN, SELF = "builtin", "self"
BUILTIN_TITLE = "built-in mixture of prose, languages, code and chats"

# How many chunks of each part follow each other. A part that is used up starts over, in other
# chunks: its tokens are the same, but what stands before them is not.
_TURNS = ("prose", "languages", "prose", "code", "prose", "chats", "languages", "code")
_SELF_SEQUENCES = 16  # written side by side
_SELF_SEED = 1


def calibration(
    source: str,
    checkpoint: Checkpoint,
    tokenizer: Tokenizer,
    n_tokens: int,
    *,
    n_threads: int | None = None,
    progress: Progress | None = None,
) -> Calibration:
    """Return the tokens of a text to calibrate on.

    source     "builtin", "self" for text that the model writes, or the path of a file
    n_tokens   about how many; whole chunks of 512

    Raises UsageError for a text that is too short, what `read_text` raises for a file and what
    `Model.load` raises for a model that cannot write.
    """
    if n_tokens < CHUNK:
        raise UsageError(f"{n_tokens} tokens are too few to calibrate on. Use {CHUNK} or more.")
    if source == BUILTIN:
        return Calibration(BUILTIN_TITLE, builtin(checkpoint, tokenizer, n_tokens // CHUNK))
    if source == SELF:
        chunks = written(checkpoint, tokenizer, n_tokens // CHUNK, n_threads, progress)
        return Calibration("text that the model wrote", chunks)
    text = read_text(source)
    return Calibration.of(text.content, text.title, tokenizer, n_tokens)


def builtin(
    checkpoint: Checkpoint, tokenizer: Tokenizer, n_chunks: int
) -> tuple[tuple[int, ...], ...]:
    """Return chunks of the built-in mixture, each of one part of it."""
    parts: dict[str, Tokens] = {
        name: tokenizer.encode(_read(f"{name}.txt"), add_special=False)
        for name in ("prose", "languages", "code")
    }
    parts["chats"] = _chats(checkpoint, tokenizer)
    bos = [tokenizer.bos] if tokenizer.add_bos and tokenizer.bos is not None else []
    streams = {name: _chunks(tokens, bos) for name, tokens in parts.items()}
    turns = (name for name in cycle(_TURNS) if parts[name])
    return tuple(next(streams[next(turns)]) for _ in range(n_chunks))


def _read(name: str) -> str:
    return files("quantcli").joinpath("data", "calibration", name).read_text(encoding="utf-8")


def _chunks(tokens: Tokens, bos: Tokens) -> Iterator[tuple[int, ...]]:
    """Yield chunks for ever; the end of a text runs on into its beginning."""
    step, at = CHUNK - len(bos), 0
    while True:
        places = np.arange(at, at + step) % len(tokens)
        yield (*bos, *(tokens[i] for i in places.tolist()))
        at += step


def _chats(checkpoint: Checkpoint, tokenizer: Tokenizer) -> Tokens:
    """Return the conversations in the model's template, or one after the other without it."""
    conversations = json.loads(_read("chats.json"))
    template = ChatTemplate.from_metadata(checkpoint.metadata)
    tokens: Tokens = []
    for messages in conversations:
        if template is None:
            text = "\n\n".join(message["content"] for message in messages)
            tokens += tokenizer.encode(text + "\n\n", add_special=False)
            continue
        try:
            tokens += encode_chat(tokenizer, template, messages, add_generation_prompt=False)
        except UsageError:  # a template may refuse what it does not know, system messages above all
            continue
    return tokens


def written(
    checkpoint: Checkpoint,
    tokenizer: Tokenizer,
    n_chunks: int,
    n_threads: int | None = None,
    progress: Progress | None = None,
) -> tuple[tuple[int, ...], ...]:
    """Return chunks that the model writes, each after a token of its own.

    The same model writes the same on one machine. Raises UnsupportedModel for a model without
    words to begin with, and what `Model.load` raises.
    """
    starts = _starts(tokenizer, n_chunks)
    params = SamplingParams(temperature=1.0, top_k=0, top_p=1.0, min_p=0.02, ignore_eos=True)
    model = Model.load(
        checkpoint,
        context=CHUNK,
        n_threads=n_threads,
        n_sequences=min(n_chunks, _SELF_SEQUENCES),
        progress=progress,
    )
    try:
        engine = Engine(model, tokenizer)
        chunks: dict[int, Tokens] = {}
        for i, start in enumerate(starts):
            wanted = replace(params, max_tokens=CHUNK - len(start), seed=_SELF_SEED + i)
            chunks[engine.submit(Request(tuple(start), wanted))] = list(start)
        n_done, n_all = 0, n_chunks * CHUNK
        while not engine.is_idle:
            for event in engine.step():
                if event.error is not None:
                    raise event.error
                if event.token is not None:
                    chunks[event.request].append(event.token)
                    n_done += 1
            if progress:
                progress("writing text to calibrate on", n_done, n_all)
    finally:
        model.close()
    return tuple(tuple(tokens) for tokens in chunks.values())


def _starts(tokenizer: Tokenizer, n_chunks: int) -> Sequence[Tokens]:
    """Return how each chunk begins: with BOS where the model wants it, and some word."""
    random = np.random.default_rng(_SELF_SEED)
    words = [
        token
        for token in random.permutation(tokenizer.n_vocab).tolist()
        if tokenizer.token_bytes(token).strip().isalpha()
    ]
    if not words:
        raise UnsupportedModel(
            "the vocabulary has no word to begin a text with. Use --calib builtin or a file."
        )
    bos = [tokenizer.bos] if tokenizer.add_bos and tokenizer.bos is not None else []
    return [[*bos, words[i % len(words)]] for i in range(n_chunks)]
