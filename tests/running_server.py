"""A server on a free port with a model that says what a test wants, in threads of this process."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import httpx
import numpy as np
from fakes import F32, FakeModel, History
from tiny_vocab import CHATML, byte_level_bpe

from quantcli.engine.loop import Engine
from quantcli.server.runner import Runner
from quantcli.server.served import Served
from quantcli.server.service import Service
from quantcli.server.serving import Server, address, bound
from quantcli.server.settings import Limits, Settings
from quantcli.text import Tokenizer, from_metadata
from quantcli.text.chat import ChatTemplate

TURN = "<|im_start|>assistant\n"


def tokenizer(*control: str) -> Tokenizer:
    """Return the tiny byte-level tokenizer, with more control tokens."""
    vocabulary = byte_level_bpe()
    for text in control:
        vocabulary.add(text, 3)
    return from_metadata(vocabulary.metadata())


def saying(tokens: Tokenizer, answer: str, after: str = TURN) -> Callable[[History], F32]:
    """Return what makes a FakeModel say an answer after the last such text, then end."""
    start = tokens.encode(after, add_special=False, parse_special=True)
    words = [*tokens.encode(answer, add_special=False, parse_special=True), min(tokens.eog)]

    def say(history: History) -> F32:
        n, word = len(start), words[0]
        for i in range(len(history) - n, -1, -1):
            if list(history[i : i + n]) == start:
                word = words[min(len(history) - i - n, len(words) - 1)]
                break
        row = np.zeros(tokens.n_vocab, np.float32)
        row[word] = 40  # certain whatever the temperature
        return row

    return say


@dataclass
class Running:
    """A server that runs, and what it is made of."""

    url: str
    service: Service
    model: FakeModel
    server: Server
    log: list[dict[str, object]] = field(default_factory=list)

    def client(self, **options: object) -> httpx.Client:
        """Return a client for it."""
        settings = {"timeout": 20, "trust_env": False, "verify": False} | options
        return httpx.Client(base_url=self.url, **settings)  # type: ignore[arg-type]

    def post(self, path: str, body: object, **options: object) -> httpx.Response:
        """Send JSON and return the response."""
        with self.client() as client:
            return client.post(path, json=body, **options)  # type: ignore[arg-type]

    def get(self, path: str, **options: object) -> httpx.Response:
        """Return the response of a GET."""
        with self.client() as client:
            return client.get(path, **options)  # type: ignore[arg-type]

    def chat(self, text: str = "Hi", **fields: object) -> httpx.Response:
        """Ask for an answer to one message."""
        messages = [{"role": "user", "content": text}]
        return self.post("/v1/chat/completions", {"messages": messages, **fields})

    def is_empty(self) -> bool:
        """Return whether nothing of any request is left."""
        self.model.kv.check()
        return (
            self.service.runner.n_open == 0 and self.model.kv.n_free_pages == self.model.kv.n_pages
        )


@contextmanager
def running(
    answer: str | Callable[[History], int | F32] | None = "Hello!",
    *,
    tokens: Tokenizer | None = None,
    template: str | None = CHATML,
    settings: dict[str, object] | None = None,
    limits: dict[str, object] | None = None,
    n_parallel: int = 4,
    engine_options: dict[str, object] | None = None,
    **model: object,
) -> Iterator[Running]:
    """Run a server whose model gives an answer; yield it, and stop it afterwards."""
    tokens = tokens or tokenizer()
    say = saying(tokens, answer) if isinstance(answer, str) else answer
    options: dict[str, object] = {"context": 512, "max_rows": 64, "n_vocab": tokens.n_vocab}
    fake = FakeModel(say, **(options | model))  # type: ignore[arg-type]
    engine = Engine(fake, tokens, sampler="reference", **(engine_options or {}))  # type: ignore[arg-type]
    chat = None if template is None else ChatTemplate(template, {"eos_token": "<|im_end|>"})
    served = Served("tiny", tokens, chat, {}, fake.context, fake.kv.n_pages * fake.kv.page_size)
    log: list[dict[str, object]] = []
    chosen = Settings(
        port=0,
        log=lambda entry: log.append(dict(entry)),
        limits=Limits(**(limits or {})),  # type: ignore[arg-type]
        **({"grace_s": 1.0} | (settings or {})),  # type: ignore[arg-type]
    )
    service = Service(served, Runner(engine), chosen, n_parallel)
    listener = bound("127.0.0.1", 0)
    url = address(listener)
    server = Server(service, listener)
    ready = threading.Event()
    computing = threading.Thread(target=service.runner.run, name="engine", daemon=True)
    serving = threading.Thread(target=server.run, args=(ready.set,), daemon=True)
    computing.start()
    serving.start()
    assert ready.wait(10)
    try:
        yield Running(url, service, fake, server, log)
    finally:
        server.stop()
        serving.join(20)
        computing.join(20)
        assert not serving.is_alive()
        assert not computing.is_alive()
