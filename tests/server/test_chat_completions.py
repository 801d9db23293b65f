"""Answers to conversations: shapes, ends, choices, log-probabilities, usage."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
from running_server import Running, running, tokenizer


@pytest.fixture(scope="module")
def server() -> Iterator[Running]:
    with running("Hello!") as started:
        yield started


def events(text: str) -> list[dict[str, object]]:
    """Return the JSON of a stream's events; the last one must be [DONE]."""
    frames = [frame for frame in text.split("\n\n") if frame and not frame.startswith(":")]
    assert all(frame.startswith("data: ") and "\n" not in frame for frame in frames)
    assert frames[-1] == "data: [DONE]"
    return [json.loads(frame[6:]) for frame in frames[:-1]]


def test_an_answer_has_openais_shape(server: Running) -> None:
    response = server.chat()
    body = response.json()
    assert response.status_code == 200
    assert body["object"] == "chat.completion"
    assert body["id"].startswith("chatcmpl-")
    assert body["model"] == "tiny"
    (choice,) = body["choices"]
    assert choice["message"]["content"] == "Hello!"
    assert choice["message"]["role"] == "assistant"
    assert choice["finish_reason"] == "stop"
    assert choice["logprobs"] is None
    usage = body["usage"]
    assert usage["completion_tokens"] == 7  # with the end
    assert usage["total_tokens"] == usage["prompt_tokens"] + 7


def test_a_stream_adds_up_to_the_same_answer(server: Running) -> None:
    chunks = events(server.chat(stream=True).text)
    assert len({chunk["id"] for chunk in chunks}) == 1
    assert len({chunk["created"] for chunk in chunks}) == 1
    choices = [chunk["choices"][0] for chunk in chunks]  # type: ignore[index]
    assert choices[0]["delta"] == {"role": "assistant", "content": ""}
    assert sum("role" in choice["delta"] for choice in choices) == 1
    assert "".join(choice["delta"].get("content", "") for choice in choices) == "Hello!"
    assert choices[-1]["delta"] == {}
    assert [c["finish_reason"] for c in choices if c["finish_reason"]] == ["stop"]
    assert all("usage" not in chunk for chunk in chunks)


def test_usage_comes_in_a_chunk_of_its_own_if_asked_for(server: Running) -> None:
    chunks = events(server.chat(stream=True, stream_options={"include_usage": True}).text)
    assert chunks[-1]["choices"] == []
    assert chunks[-1]["usage"]["completion_tokens"] == 7  # type: ignore[index]
    assert all(chunk["choices"] for chunk in chunks[:-1])


def test_max_tokens_ends_with_length(server: Running) -> None:
    for name in ("max_tokens", "max_completion_tokens", "n_predict"):
        (choice,) = server.chat(**{name: 2}).json()["choices"]
        assert (choice["message"]["content"], choice["finish_reason"]) == ("He", "length")


def test_no_part_of_a_stop_string_comes_out(server: Running) -> None:
    for stop in ("lo", ["x", "lo!"]):
        (choice,) = server.chat(stop=stop).json()["choices"]
        assert (choice["message"]["content"], choice["finish_reason"]) == ("Hel", "stop")
    chunks = events(server.chat(stop="lo!", stream=True).text)
    text = "".join(c["choices"][0]["delta"].get("content", "") for c in chunks)  # type: ignore[index]
    assert text == "Hel"


def test_log_probabilities_spell_the_answer(server: Running) -> None:
    (choice,) = server.chat(logprobs=True, top_logprobs=2).json()["choices"]
    content = choice["logprobs"]["content"]
    assert "".join(entry["token"] for entry in content) == "Hello!"
    assert bytes(b for entry in content for b in entry["bytes"]) == b"Hello!"
    for entry in content:
        assert len(entry["top_logprobs"]) == 2
        assert entry["top_logprobs"][0]["token"] == entry["token"]
        assert entry["logprob"] == pytest.approx(0, abs=1e-6)


def test_streamed_log_probabilities_are_the_same(server: Running) -> None:
    whole = server.chat(logprobs=True, top_logprobs=1).json()["choices"][0]["logprobs"]["content"]
    chunks = events(server.chat(logprobs=True, top_logprobs=1, stream=True).text)
    pieces = [c["choices"][0]["logprobs"] for c in chunks]  # type: ignore[index]
    assert [entry for piece in pieces if piece for entry in piece["content"]] == whole


def test_content_may_be_parts_and_roles_may_be_developer(server: Running) -> None:
    parts = [{"type": "text", "text": "Hi"}]
    messages = [
        {"role": "developer", "content": "Be brief."},
        {"role": "user", "content": parts},
        {"role": "assistant", "content": None, "tool_calls": []},
        {"role": "user", "content": "Again"},
    ]
    response = server.post("/v1/chat/completions", {"messages": messages})
    assert response.json()["choices"][0]["message"]["content"] == "Hello!"
    rendered = server.post("/apply-template", {"messages": messages}).json()["prompt"]
    assert rendered.startswith("<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHi<|im")


def test_the_route_works_without_v1(server: Running) -> None:
    body = {"messages": [{"role": "user", "content": "Hi"}]}
    assert server.post("/chat/completions", body).status_code == 200


def test_any_model_name_is_served_under_its_own(server: Running) -> None:
    assert server.chat(model="gpt-4o").json()["model"] == "tiny"


def test_a_users_text_never_becomes_a_control_token(server: Running) -> None:
    plain = server.chat("a").json()["usage"]["prompt_tokens"]
    spelled = server.chat("<|im_end|>").json()["usage"]["prompt_tokens"]
    n_plain = len(tokenizer().encode("<|im_end|>"))
    assert n_plain > 1
    assert spelled == plain - 1 + n_plain


def test_nothing_is_left_of_requests(server: Running) -> None:
    server.chat()
    assert server.service.runner.n_open == 0
    server.model.kv.check()
