"""POST /v1/embeddings: a prompt's last hidden states as one vector of length 1."""

from __future__ import annotations

import asyncio
import base64
import math
import struct
from collections.abc import Sequence
from typing import cast

from starlette.requests import Request
from starlette.responses import Response

from quantcli.engine.request import POOLINGS, SamplingParams
from quantcli.engine.request import Request as EngineRequest
from quantcli.server.asking import Asked, attended
from quantcli.server.body import read_fields
from quantcli.server.chat import salt_of
from quantcli.server.fields import refuse
from quantcli.server.prompts import check_length, prompt_tokens, read_prompts
from quantcli.server.replies import JsonReply
from quantcli.server.service import Service

# What a file says of its pooling: llama.cpp's numbers.
_FILE_POOLINGS = {1: "mean", 3: "last"}


async def embeddings(request: Request) -> Response:
    """Return the embeddings of texts."""
    service = cast("Service", request.app.state.service)
    served, limits = service.served, service.settings.limits
    fields = await read_fields(request, limits)
    fields.text("model")
    inputs = read_prompts(fields, "input", limits.n_embeddings)
    coding = fields.one_of("encoding_format", ("float", "base64"), "float")
    if "dimensions" in fields:
        refuse("dimensions: this model's embeddings cannot be cut to a length.", "dimensions")
    number = served.metadata.get(f"{served.metadata.get('general.architecture')}.pooling_type")
    default = _FILE_POOLINGS.get(number, "mean") if isinstance(number, int) else "mean"
    pooling = fields.one_of("pooling", POOLINGS, default)
    salt = salt_of(service, request)

    none = SamplingParams(max_tokens=0)

    def requests() -> list[EngineRequest]:
        asked = []
        for text in inputs:
            tokens = prompt_tokens(served, text, parse_special=False)
            check_length(served, tokens, "input")
            asked.append(EngineRequest(tuple(tokens), none, pooling=pooling, cache_salt=salt))
        return asked

    asked = await attended(request, service.in_pool(requests))
    vectors = await attended(request, _all(service, asked))
    n_tokens = sum(max(1, len(one.tokens)) for one in asked)
    data = [
        {"object": "embedding", "index": i, "embedding": coded(vector, coding)}
        for i, vector in enumerate(vectors)
    ]
    usage = {"prompt_tokens": n_tokens, "total_tokens": n_tokens}
    return JsonReply({"object": "list", "data": data, "model": served.name, "usage": usage})


async def _all(service: Service, requests: Sequence[EngineRequest]) -> list[tuple[float, ...]]:
    """Return the embeddings of requests, a few at a time, so that others get their turn."""
    vectors: list[tuple[float, ...]] = []
    n = max(1, service.n_parallel)
    for start in range(0, len(requests), n):
        vectors += await _some(service, requests[start : start + n])
        await asyncio.sleep(0)
    return vectors


async def _some(service: Service, requests: Sequence[EngineRequest]) -> list[tuple[float, ...]]:
    found: dict[int, tuple[float, ...]] = {}
    asked = Asked(service.runner)
    try:
        service.check_room()
        await service.in_pool(lambda: asked.submit(requests))
        async for batch in asked.events():
            for key, event in batch:
                if event.embedding is not None:
                    found[key] = event.embedding
    finally:
        asked.cancel()
    if len(found) < len(requests):
        refuse("this model gives no embeddings.")
    return [found[key] for key in range(len(requests))]


def coded(vector: Sequence[float], coding: str) -> list[float] | str:
    """Return a vector scaled to length 1, as numbers or as base64 of little-endian f32."""
    length = math.sqrt(math.fsum(x * x for x in vector)) or 1.0
    unit = [x / length for x in vector]
    if coding == "float":
        return unit
    return base64.b64encode(struct.pack(f"<{len(unit)}f", *unit)).decode()
