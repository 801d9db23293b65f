"""OpenAI's own client: what it reads, what it raises, what it streams."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterator
from contextlib import contextmanager

import openai
import pytest
from openai import AsyncOpenAI, OpenAI
from pydantic import BaseModel
from running_server import TURN, Running, running
from test_tools import CALL, HERMES, TOOLS

MESSAGES = [{"role": "user", "content": "Hi"}]


@pytest.fixture(scope="module")
def server() -> Iterator[Running]:
    with running("Hello!", context=1024) as started:
        yield started


@pytest.fixture(scope="module")
def client(server: Running) -> Iterator[OpenAI]:
    with client_of(server) as opened:
        yield opened


@contextmanager
def client_of(server: Running, key: str = "none") -> Iterator[OpenAI]:
    url = f"{server.url}/v1"
    with (
        server.client() as http,
        OpenAI(base_url=url, api_key=key, http_client=http, max_retries=0) as client,
    ):
        yield client


def test_models(client: OpenAI) -> None:
    assert [model.id for model in client.models.list()] == ["tiny"]
    assert client.models.retrieve("tiny").owned_by == "quantcli"
    with pytest.raises(openai.NotFoundError) as raised:
        client.models.retrieve("gpt-4o")
    assert raised.value.code == "model_not_found"


def test_chat(client: OpenAI) -> None:
    answer = client.chat.completions.create(
        model="tiny", messages=MESSAGES, logprobs=True, top_logprobs=3, n=2, seed=1
    )
    assert [choice.message.content for choice in answer.choices] == ["Hello!"] * 2
    assert answer.choices[0].logprobs is not None
    assert answer.usage is not None
    assert answer.usage.prompt_tokens_details is not None


def test_chat_streamed(client: OpenAI) -> None:
    stream = client.chat.completions.create(
        model="tiny", messages=MESSAGES, stream=True, stream_options={"include_usage": True}, n=2
    )
    texts = {0: "", 1: ""}
    usage = None
    for chunk in stream:
        usage = chunk.usage or usage
        for choice in chunk.choices:
            texts[choice.index] += choice.delta.content or ""
    assert texts == {0: "Hello!", 1: "Hello!"}
    assert usage is not None
    assert usage.completion_tokens == 14


def test_chat_with_the_streaming_helper(client: OpenAI) -> None:
    with client.chat.completions.stream(model="tiny", messages=MESSAGES) as stream:
        for _ in stream:
            pass
        assert stream.get_final_completion().choices[0].message.content == "Hello!"


def test_chat_from_many_tasks(server: Running) -> None:
    async def ask_all() -> list[str | None]:
        async with AsyncOpenAI(base_url=f"{server.url}/v1", api_key="x", max_retries=0) as client:

            async def ask(stream: bool) -> str | None:
                if not stream:
                    answer = await client.chat.completions.create(model="m", messages=MESSAGES)
                    return answer.choices[0].message.content
                text = ""
                async for chunk in await client.chat.completions.create(
                    model="m", messages=MESSAGES, stream=True
                ):
                    text += chunk.choices[0].delta.content or ""
                return text

            return await asyncio.gather(*(ask(i % 2 == 0) for i in range(12)))

    assert asyncio.run(ask_all()) == ["Hello!"] * 12


def test_a_stream_that_is_closed_stops_the_engine(server: Running, client: OpenAI) -> None:
    stream = client.chat.completions.create(
        model="m", messages=MESSAGES, stream=True, extra_body={"ignore_eos": True}
    )
    next(iter(stream))
    stream.close()
    end = time.monotonic() + 10
    while not server.is_empty():
        assert time.monotonic() < end
        time.sleep(0.01)


def test_completions(client: OpenAI) -> None:
    answer = client.completions.create(
        model="m", prompt=[TURN, "x" + TURN], echo=True, logprobs=2, max_tokens=3
    )
    assert [choice.text for choice in answer.choices] == [TURN + "Hel", "x" + TURN + "Hel"]
    logprobs = answer.choices[0].logprobs
    assert logprobs is not None
    assert logprobs.tokens is not None
    assert logprobs.tokens[-3:] == ["H", "e", "l"]
    chunks = client.completions.create(model="m", prompt=TURN, stream=True)
    assert "".join(chunk.choices[0].text for chunk in chunks) == "Hello!"


def test_a_schema() -> None:
    pytest.importorskip("llguidance")

    class Point(BaseModel):
        x: int
        tag: bool

    with running(None, context=1024) as random_server, client_of(random_server) as client:
        parsed = client.chat.completions.parse(
            model="m", messages=MESSAGES, response_format=Point, temperature=0.3, seed=3
        )
        assert isinstance(parsed.choices[0].message.parsed, Point)


def test_json_object() -> None:
    pytest.importorskip("llguidance")
    with running(None, context=1024) as random_server, client_of(random_server) as client:
        answer = client.chat.completions.create(
            model="m",
            messages=MESSAGES,
            response_format={"type": "json_object"},
            max_tokens=200,
            seed=2,
        )
        (choice,) = answer.choices
        assert choice.message.content is not None
        assert choice.message.content.lstrip().startswith("{")
        if choice.finish_reason == "stop":
            assert isinstance(json.loads(choice.message.content), dict)


def test_tools_whole_and_streamed() -> None:
    answer_text = f"<tool_call>\n{CALL}\n</tool_call>"
    with running(answer_text, template=HERMES) as server, client_of(server) as client:
        answer = client.chat.completions.create(model="m", messages=MESSAGES, tools=TOOLS)
        calls = answer.choices[0].message.tool_calls
        assert calls is not None
        assert calls[0].type == "function"
        assert json.loads(calls[0].function.arguments) == {"city": "Paris"}
        with client.chat.completions.stream(model="m", messages=MESSAGES, tools=TOOLS) as stream:
            for _ in stream:
                pass
            (choice,) = stream.get_final_completion().choices
        assert choice.finish_reason == "tool_calls"
        assert choice.message.tool_calls is not None
        assert choice.message.tool_calls[0].function.name == "get_weather"


@pytest.mark.parametrize(
    ("fields", "error", "code"),
    [
        ({"temperature": -1}, openai.BadRequestError, None),
        ({"n": 10**9}, openai.BadRequestError, None),
        (
            {"messages": [{"role": "user", "content": "x" * 3000}]},
            openai.BadRequestError,
            "context_length_exceeded",
        ),
    ],
)
def test_errors(
    client: OpenAI, fields: dict[str, object], error: type[openai.APIStatusError], code: str | None
) -> None:
    with pytest.raises(error) as raised:
        client.chat.completions.create(**({"model": "m", "messages": MESSAGES} | fields))  # type: ignore[call-overload]
    assert raised.value.code == code


def test_a_wrong_key() -> None:
    with running(settings={"api_keys": ("right",)}) as server:
        with client_of(server) as client, pytest.raises(openai.AuthenticationError):
            client.models.list()
        with client_of(server, "right") as client:
            assert client.models.list().data


def test_a_full_queue_is_a_rate_limit() -> None:
    limits = {"n_waiting": 0}
    with (
        running("Hello!", n_parallel=1, limits=limits) as server,
        client_of(server) as client,
    ):
        server.service.runner._inboxes[-1] = None  # type: ignore[assignment]
        with pytest.raises(openai.RateLimitError):
            client.chat.completions.create(model="m", messages=MESSAGES)
        del server.service.runner._inboxes[-1]
        assert client.chat.completions.create(model="m", messages=MESSAGES).choices
