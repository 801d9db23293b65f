"""Every kind of response has the shape that OpenAI's API reference gives it."""

from __future__ import annotations

import pytest
from jsonschema import validate
from openai_schemas import CHAT, CHAT_CHUNK, COMPLETION, MODELS
from running_server import TURN, running
from test_chat_completions import events
from test_tools import CALL, HERMES, TOOLS

KINDS: dict[str, dict[str, object]] = {
    "plain": {},
    "n": {"n": 3},
    "length": {"max_tokens": 1},
    "nothing": {"max_tokens": 0},
    "stop": {"stop": ["l"]},
    "logprobs": {"logprobs": True, "top_logprobs": 2},
    "usage": {"stream_options": {"include_usage": True}},
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("calls", [False, True])
def test_chats(kind: str, calls: bool) -> None:
    answer = f"So: <tool_call>{CALL}</tool_call>" if calls else "Hello, é!"
    fields = KINDS[kind] | ({"tools": TOOLS} if calls else {})
    with running(answer, template=HERMES) as server:
        validate(server.chat(**fields).json(), CHAT)
        chunks = events(server.chat(**fields, stream=True).text)
        for chunk in chunks:
            validate(chunk, CHAT_CHUNK)
        ends = [c["finish_reason"] for chunk in chunks for c in chunk["choices"]]  # type: ignore[attr-defined]
        assert len([end for end in ends if end]) == fields.get("n", 1)
        last = [chunk for chunk in chunks if not chunk["choices"]]
        assert len(last) == ("stream_options" in fields)


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"n": 2, "prompt": [TURN, TURN]},
        {"logprobs": 3, "echo": True},
        {"logprobs": 0},
        {"echo": True, "max_tokens": 0, "logprobs": 1},
        {"stream_options": {"include_usage": True}, "max_tokens": 2},
    ],
    ids=str,
)
def test_completions(fields: dict[str, object]) -> None:
    with running("Hello, é!") as server:
        body = {"prompt": TURN, **fields}
        whole = server.post("/v1/completions", body).json()
        validate(whole, COMPLETION)
        assert all(choice["finish_reason"] for choice in whole["choices"])
        chunks = events(server.post("/v1/completions", body | {"stream": True}).text)
        texts = {choice["index"]: "" for choice in whole["choices"]}
        for chunk in chunks:
            validate(chunk, COMPLETION)
            for choice in chunk["choices"]:  # type: ignore[attr-defined]
                texts[choice["index"]] += choice["text"]
        assert texts == {choice["index"]: choice["text"] for choice in whole["choices"]}


def test_models() -> None:
    with running() as server:
        validate(server.get("/v1/models").json(), MODELS)
