"""Load for a server that speaks OpenAI's API: streams of answers, and when each piece came.

A bare socket and the least parsing, since the load shares the processor with what it measures.
"""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

_TIMEOUT_S = 600.0
_TEXT = (
    "the people of this country have asked their government for work that lasts and for peace that "
    "is earned and we have answered with laws that open schools and roads and ports to all of them"
)
_WORDS = _TEXT.split()


@dataclass(frozen=True, slots=True)
class Ask:
    """One request: its prompt, how long the answer is, and when it is sent."""

    prompt: str
    n_tokens: int
    at_s: float = 0.0


@dataclass(slots=True)
class Answer:
    """When things happened to a request, in seconds from the start of the load.

    pieces       when each piece of the answer came
    n_tokens     tokens of the answer, as the server counts them
    n_prompt     tokens of the prompt
    n_cached     of these, not computed again
    """

    sent_s: float
    pieces: list[float] = field(default_factory=list)
    n_tokens: int = 0
    n_prompt: int = 0
    n_cached: int = 0

    @property
    def first_s(self) -> float:
        """Time to the first piece."""
        return self.pieces[0] - self.sent_s

    @property
    def gaps(self) -> list[float]:
        """Times between pieces."""
        return [b - a for a, b in zip(self.pieces, self.pieces[1:], strict=False)]


def text_of(n_words: int, seed: object) -> str:
    """Return a text of words that is the same for a seed."""
    words = random.Random(repr(seed))
    return " ".join(words.choice(_WORDS) for _ in range(n_words))


def asks(n: int, n_words: int, n_tokens: int, seed: object) -> list[Ask]:
    """Return requests that are sent together, no two of which begin the same."""
    return [Ask(text_of(n_words, (seed, i)), n_tokens) for i in range(n)]


def poisson(n: int, per_s: float, n_tokens: int, seed: int) -> list[Ask]:
    """Return requests with prompts of 50 to 200 words that come at random, at a rate."""
    chance = random.Random(seed)
    at_s, found = 0.0, []
    for i in range(n):
        at_s += chance.expovariate(per_s)
        found.append(Ask(text_of(chance.randint(50, 200), (seed, i)), n_tokens, at_s))
    return found


def run(url: str, load: Sequence[Ask]) -> tuple[float, list[Answer]]:
    """Send requests when their time has come; return how long it all took, and the answers."""
    return asyncio.run(_run(url, load))


async def _run(url: str, load: Sequence[Ask]) -> tuple[float, list[Answer]]:
    start = time.perf_counter()
    async with asyncio.timeout(_TIMEOUT_S):
        answers = await asyncio.gather(*(_answer(url, ask, start) for ask in load))
    return time.perf_counter() - start, list(answers)


async def _answer(url: str, ask: Ask, start: float) -> Answer:
    """Send one request and follow its stream to the end."""
    host, port = url.removeprefix("http://").split(":")
    await asyncio.sleep(max(0.0, start + ask.at_s - time.perf_counter()))
    answer = Answer(time.perf_counter() - start)
    reader, writer = await asyncio.open_connection(host, int(port))
    try:
        writer.write(_request(host, ask))
        last = await _pieces(url, reader, answer, start)
    finally:
        writer.close()
        await writer.wait_closed()
    counts = json.loads(last.removeprefix(b"data: "))["usage"]
    answer.n_tokens, answer.n_prompt = counts["completion_tokens"], counts["prompt_tokens"]
    answer.n_cached = (counts.get("prompt_tokens_details") or {}).get("cached_tokens", 0)
    return answer


async def _pieces(url: str, reader: asyncio.StreamReader, answer: Answer, start: float) -> bytes:
    """Note when the pieces of an answer come; return the last one, which has the counts."""
    status = await reader.readline()
    if b" 200 " not in status:
        raise SystemExit(f"{url}: {status.decode().strip()} {(await reader.read(500)).decode()}")
    last = b""
    while line := await reader.readline():
        if line.startswith(b"data: {"):
            if b'"choices":[]' not in line:
                answer.pieces.append(time.perf_counter() - start)
            last = line
        elif line.startswith(b"data: [DONE]"):
            break
    return last


def _request(host: str, ask: Ask) -> bytes:
    body = json.dumps(
        {
            "prompt": ask.prompt,
            "max_tokens": ask.n_tokens,
            "temperature": 0,
            "ignore_eos": True,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
    ).encode()
    head = (
        f"POST /v1/completions HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    )
    return head.encode() + body


def quantile(values: Sequence[float], share: float) -> float:
    """Return the value that a share of all values does not exceed."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]
