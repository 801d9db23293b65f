"""What is wrong with a request is its sender's to know: 4xx in OpenAI's shape, never 5xx."""

from __future__ import annotations

import json
from collections.abc import Iterator

import httpx
import pytest
from jsonschema import validate
from running_server import TURN, Running, running

ERROR = {
    "type": "object",
    "required": ["error"],
    "properties": {
        "error": {
            "type": "object",
            "required": ["message", "type", "param", "code"],
            "properties": {
                "message": {"type": "string", "minLength": 1},
                "type": {"type": "string"},
                "param": {"type": ["string", "null"]},
                "code": {"type": ["string", "null"]},
            },
        }
    },
}
JSON = {"content-type": "application/json"}
MESSAGES = [{"role": "user", "content": "Hi"}]
CHAT, LEGACY = "/v1/chat/completions", "/v1/completions"

# Optional fields of each endpoint.
INTEGERS = (
    *("max_tokens", "max_completion_tokens", "n_predict", "n", "seed", "top_k", "repeat_last_n"),
    *("min_tokens", "priority", "best_of"),
)
NUMBERS = (
    *("temperature", "top_p", "min_p", "typical_p", "presence_penalty", "frequency_penalty"),
    *("repeat_penalty", "repetition_penalty"),
)
OTHERS = (
    *("model", "stream", "stream_options", "stop", "logit_bias", "response_format", "user"),
    *("cache_salt", "ignore_eos", "stop_token_ids", "metadata", "store", "grammar", "json_schema"),
)
CHAT_ONLY = (
    *("tools", "tool_choice", "parallel_tool_calls", "logprobs", "top_logprobs"),
    *("chat_template_kwargs", "reasoning_effort", "reasoning_format", "modalities"),
)
LEGACY_ONLY = ("echo", "suffix", "parse_special", "logprobs")
ODD_INTEGERS = (-1, 2**31, 2**64, "7", 0.5)
ODD = (-(2**63), 10**400, 1e308, "", [], {}, True, [[1]], {"a": 1})


@pytest.fixture(scope="module")
def server() -> Iterator[Running]:
    with running("Hello!") as started:
        yield started


@pytest.fixture(scope="module")
def client(server: Running) -> Iterator[httpx.Client]:
    with server.client() as opened:
        yield opened


def refused(response: httpx.Response, status: int = 400) -> dict[str, object]:
    """Return the error of a response, after checking its shape."""
    assert response.status_code == status, response.text
    validate(response.json(), ERROR)
    error: dict[str, object] = response.json()["error"]
    assert "Traceback" not in str(error["message"])
    return error


def bodies(path: str) -> dict[str, object]:
    if path == CHAT:
        return {"messages": MESSAGES, "max_tokens": 1}
    return {"prompt": TURN, "max_tokens": 1}


def fields(path: str) -> tuple[str, ...]:
    return (*INTEGERS, *NUMBERS, *OTHERS, *(CHAT_ONLY if path == CHAT else LEGACY_ONLY))


@pytest.mark.parametrize("path", [CHAT, LEGACY])
def test_null_is_the_same_as_absent_for_every_optional_field(
    client: httpx.Client, path: str
) -> None:
    body = bodies(path) | dict.fromkeys(fields(path))
    body["max_tokens"] = 1
    assert client.post(path, json=body).status_code == 200


@pytest.mark.parametrize("path", [CHAT, LEGACY])
def test_odd_values_of_every_field_are_taken_or_refused(
    server: Running, client: httpx.Client, path: str
) -> None:
    for i, name in enumerate(fields(path)):
        # Each of the other values comes to every third field.
        for value in (*(ODD_INTEGERS if name in INTEGERS else ()), *ODD[i % 3 :: 3]):
            body = {**bodies(path), "max_tokens": 1, name: value}
            response = client.post(path, content=json.dumps(body), headers=JSON)
            assert response.status_code < 500, (name, value, response.text)
            if response.status_code != 200:
                error = refused(response, response.status_code)
                assert len(str(error["message"])) < 600
    assert server.is_empty()


@pytest.mark.parametrize("name", INTEGERS)
def test_integers_that_no_machine_word_holds_are_refused(client: httpx.Client, name: str) -> None:
    error = refused(client.post(CHAT, json=bodies(CHAT) | {name: 2**64}))
    assert error["param"] == name


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({}, "messages"),
        ({"messages": []}, "messages"),
        ({"messages": "Hi"}, "messages"),
        ({"messages": [1]}, "messages[0]"),
        ({"messages": [{}]}, "messages[0].role"),
        ({"messages": [{"role": 1}]}, "messages[0].role"),
        ({"messages": [{"role": "user", "content": 1}]}, "messages[0].content"),
        (
            {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]},
            "messages[0].content[0].type",
        ),
        (
            {"messages": [{"role": "user", "content": [{"type": "text"}]}]},
            "messages[0].content[0].text",
        ),
        ({"messages": MESSAGES * 3000}, "messages"),
        ({"messages": MESSAGES, "n": 10**9}, "n"),
        ({"messages": MESSAGES, "n": 0}, "n"),
        ({"messages": MESSAGES, "best_of": 4}, "best_of"),
        ({"messages": MESSAGES, "top_logprobs": 21, "logprobs": True}, "top_logprobs"),
        ({"messages": MESSAGES, "top_logprobs": 2}, "top_logprobs"),
        ({"messages": MESSAGES, "logit_bias": {"x": 1}}, "logit_bias"),
        ({"messages": MESSAGES, "logit_bias": {str(i): 1 for i in range(2000)}}, "logit_bias"),
        ({"messages": MESSAGES, "stop": ["a"] * 17}, "stop"),
        ({"messages": MESSAGES, "stop": [""]}, "stop"),
        ({"messages": MESSAGES, "stop": "x" * 300}, "stop"),
        ({"messages": MESSAGES, "temperature": -0.1}, "temperature"),
        ({"messages": MESSAGES, "response_format": {"type": "xml"}}, "response_format.type"),
        ({"messages": MESSAGES, "response_format": {"type": "json_schema"}}, None),
        ({"messages": MESSAGES, "chat_template": "{{ 1 }}"}, "chat_template"),
        ({"messages": MESSAGES, "chat_template_kwargs": {"messages": 1}}, "chat_template_kwargs"),
        ({"messages": MESSAGES, "chat_template_kwargs": {"a": [1]}}, "chat_template_kwargs"),
        ({"messages": MESSAGES, "tools": [{}]}, None),
        (
            {"messages": MESSAGES, "tools": [{"type": "function", "function": {"name": "a b"}}]},
            None,
        ),
        ({"messages": MESSAGES, "tool_choice": "required"}, "tool_choice"),
        (
            {"messages": MESSAGES, "tool_choice": {"type": "function", "function": {"name": "x"}}},
            "tool_choice",
        ),
    ],
)
def test_what_is_wrong_is_named(client: httpx.Client, body: object, param: str | None) -> None:
    error = refused(client.post(CHAT, json=body))
    assert param is None or error["param"] == param


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"prompt": []},
        {"prompt": {"a": 1}},
        {"prompt": [1, "a"]},
        {"prompt": [-1]},
        {"prompt": [10**9]},
        {"prompt": [2**70]},
        {"prompt": [True]},
        {"prompt": [[1], [2.5]]},
        {"prompt": ["a"] * 17},
        {"prompt": ["a"] * 9, "n": 2},
        {"prompt": "a", "suffix": "b"},
        {"prompt": "a", "lora": [{"id": 0, "scale": 0.5}]},
        {"prompt": "a", "logprobs": 21},
        {"prompt": [10**6], "echo": True},
    ],
)
def test_prompts_that_are_none_are_refused(client: httpx.Client, body: object) -> None:
    refused(client.post(LEGACY, json=body))


def test_a_million_prompts_are_refused(client: httpx.Client) -> None:
    refused(client.post(LEGACY, json={"prompt": ["a"] * 10**6}))
    refused(client.post(LEGACY, json={"prompt": ["abc"] * 10**6}), 413)
    text = '{"prompt":[' + ",".join(['""'] * 10**6) + "]}"
    refused(client.post(LEGACY, content=text, headers=JSON))


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        '"a"',
        "null",
        "{'messages': []}",
        '{"messages": NaN}',
        '{"temperature": Infinity}',
        '{"a": 1' + "0" * 5000 + "}",
        "\x00",
        '{"a": "\ud800"',
        "[" * 10_000,
        "[" * 2_000_000,
        '{"messages":' + "[" * 10_000 + "]" * 10_000 + "}",
        '{"a":' * 10_000 + "1" + "}" * 10_000,
    ],
    ids=range(15),
)
def test_what_is_no_json_object_is_refused(client: httpx.Client, text: str) -> None:
    data = text.encode("utf-8", "surrogatepass")
    refused(client.post(CHAT, content=data, headers=JSON))


def test_a_schema_of_ten_thousand_levels_is_refused(client: httpx.Client) -> None:
    text = '{"type":"object","properties":{"a":' * 10_000 + "{}" + "}}" * 10_000
    body = '{"messages":[{"role":"user","content":"Hi"}],"json_schema":' + text + "}"
    refused(client.post(CHAT, content=body, headers=JSON))


@pytest.mark.parametrize(
    ("fields", "status"),
    [
        ({"regex": "(a+)+b"}, 200),  # a backtracking matcher would never end
        ({"regex": "(a"}, 400),
        ({"regex": "a{100000000}"}, 400),
        ({"regex": "x" * 70_000}, 400),
        ({"lark": "start: start"}, 400),
        ({"lark": "nonsense ((("}, 400),
        ({"grammar": "root ::= root root"}, 400),
        ({"json_schema": {"type": "nothing"}}, 400),
        ({"json_schema": {"type": "object", "properties": {"a": {"pattern": "(a+)+b"}}}}, 200),
        ({"json_schema": {"$ref": "#/nowhere"}}, 400),
        ({"json_schema": {"$ref": "http://127.0.0.1:1/schema"}}, 400),
        ({"json_schema": {"not": {"type": "string"}}}, 400),
        ({"json_schema": {"enum": ["x" * 80_000]}}, 400),
        ({"regex": "a", "lark": "start: A"}, 400),
    ],
    ids=range(14),
)
def test_forms_that_are_hostile_or_not_understood_are_refused(
    server: Running, client: httpx.Client, fields: dict[str, object], status: int
) -> None:
    pytest.importorskip("llguidance")
    response = client.post(CHAT, json=bodies(CHAT) | fields)
    if status == 400:
        refused(response)
    else:
        assert response.status_code == 200, response.text
    assert server.is_empty()


def test_fifty_megabytes_are_refused_declared_or_not(client: httpx.Client) -> None:
    data = b" " * 50_000_000
    refused(client.post(CHAT, content=data, headers=JSON), 413)
    pieces = (data[i : i + 1_000_000] for i in range(0, len(data), 1_000_000))
    refused(client.post(CHAT, content=pieces, headers=JSON), 413)


def test_a_prompt_longer_than_the_context_has_openais_code(client: httpx.Client) -> None:
    messages = [{"role": "user", "content": "x" * 1000}]
    error = refused(client.post(CHAT, json={"messages": messages}))
    assert error["code"] == "context_length_exceeded"
    assert error["n_ctx"] == 512
    assert int(str(error["n_prompt_tokens"])) > 1000


def test_unknown_fields_are_ignored(client: httpx.Client) -> None:
    body = bodies(CHAT) | {"user": "u", "service_tier": "auto", "x": {"y": [1]}}
    assert client.post(CHAT, json=body).status_code == 200


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", CHAT, 405),
        ("DELETE", "/v1/models", 405),
        ("POST", "/v1/nothing", 404),
        ("GET", "/v1/models/other", 404),
        ("GET", "/v1/models/../../etc/passwd", 404),
        ("GET", "/static/index.html", 404),
    ],
)
def test_routes_and_methods_that_are_none(
    client: httpx.Client, method: str, path: str, status: int
) -> None:
    refused(client.request(method, path), status)


def test_lone_surrogates_pass_through_every_text(client: httpx.Client) -> None:
    for body in (
        {"messages": [{"role": "user", "content": "\ud800 a"}]},
        {"messages": MESSAGES, "stop": ["\udfff"]},
        {"messages": MESSAGES, "model": "\ud800"},
        {"messages": [{"role": "\ud800", "content": "a"}]},
    ):
        text = json.dumps(body | {"max_tokens": 1})
        response = client.post(CHAT, content=text, headers=JSON)
        assert response.status_code in (200, 400), response.text
    body = {"prompt": "\ud800", "echo": True, "max_tokens": 1}
    response = client.post(LEGACY, content=json.dumps(body), headers=JSON)
    assert response.json()["choices"][0]["text"].startswith("\ufffd")
