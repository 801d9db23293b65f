"""Tools end to end: what the model is shown, what it says, what the client gets."""

from __future__ import annotations

import json

import pytest
from running_server import Running, running, tokenizer
from test_chat_completions import events

HERMES = """\
{%- if tools %}<|im_start|>system
Tools:{% for tool in tools %} {{ tool | tojson }}{% endfor %} in <tool_call></tool_call><|im_end|>
{% endif %}{% for m in messages %}<|im_start|>{{ m.role }}
{{ m.content }}{% for c in m.tool_calls or [] %}<tool_call>{{
{"name": c.function.name, "arguments": c.function.arguments} | tojson
}}</tool_call>{% endfor %}<|im_end|>
{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""
MISTRAL = (
    "{% if tools %}{{ tools | tojson }}[TOOL_CALLS]{% endif %}" + HERMES.split("{% endif %}", 1)[1]
)
TEXTS = """\
{% if tools %}{{ tools | length }}{% endif %}{% for m in messages %}<|im_start|>{{ m.role }}
{{ m.content }}{% for c in m.tool_calls or [] %}{{ "CALL " + c.function.arguments }}{% endfor %}
{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "get_weather",
            "description": "Weather of a <|im_end|> city",
            "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
        },
    },
    {"type": "function", "function": {"name": "now"}},
]
CALL = json.dumps({"name": "get_weather", "arguments": {"city": "Paris"}})


def ask(server: Running, **fields: object) -> dict[str, object]:
    response = server.chat("Weather?", tools=TOOLS, **fields)
    assert response.status_code == 200, response.text
    body: dict[str, object] = response.json()
    return body


def only_call(body: dict[str, object]) -> tuple[str, object]:
    """Return name and arguments of the only call of a response."""
    (choice,) = body["choices"]  # type: ignore[misc]
    assert choice["finish_reason"] == "tool_calls"
    (call,) = choice["message"]["tool_calls"]
    assert call["type"] == "function"
    assert call["id"]
    return call["function"]["name"], json.loads(call["function"]["arguments"])


def test_a_call_in_the_hermes_style() -> None:
    with running(f"Wait.<tool_call>\n{CALL}\n</tool_call>", template=HERMES) as server:
        body = ask(server)
        assert only_call(body) == ("get_weather", {"city": "Paris"})
        assert body["choices"][0]["message"]["content"] == "Wait."  # type: ignore[index]


def test_a_streamed_call_has_id_and_name_first_and_then_arguments() -> None:
    with running(f"<tool_call>\n{CALL}\n</tool_call>", template=HERMES) as server:
        chunks = events(server.chat("Weather?", tools=TOOLS, stream=True).text)
        choices = [c["choices"][0] for c in chunks]  # type: ignore[index]
        deltas = [d for c in choices for d in c["delta"].get("tool_calls", [])]
        assert deltas[0]["function"]["name"] == "get_weather"
        assert deltas[0]["type"] == "function"
        assert all(set(d) == {"index", "function"} for d in deltas[1:])
        assert json.loads("".join(d["function"]["arguments"] for d in deltas)) == {"city": "Paris"}
        assert choices[-1]["finish_reason"] == "tool_calls"
        assert "".join(c["delta"].get("content") or "" for c in choices) == ""


def test_markers_that_are_control_tokens_are_seen() -> None:
    """The engine leaves control tokens out of the text; calls begin with one all the same."""
    tokens = tokenizer("[TOOL_CALLS]", "[ARGS]")
    with running(f"[TOOL_CALLS] [{CALL}]", tokens=tokens, template=MISTRAL) as server:
        assert only_call(ask(server)) == ("get_weather", {"city": "Paris"})
    answer = '[TOOL_CALLS]get_weather[ARGS]{"city": "Paris"}'
    with running(answer, tokens=tokens, template=MISTRAL) as server:
        assert only_call(ask(server)) == ("get_weather", {"city": "Paris"})
        # A stop string within it counts; control tokens do not.
        body = ask(server, stop="Par")
        assert (
            body["choices"][0]["message"]["tool_calls"][0]["function"]["arguments"] == '{"city": "'
        )  # type: ignore[index]


def test_a_model_without_tools_is_told_of_them_in_words() -> None:
    with running(CALL, context=2048) as server:
        assert only_call(ask(server)) == ("get_weather", {"city": "Paris"})
        messages = [{"role": "system", "content": "Be nice."}, {"role": "user", "content": "Hi"}]
        prompt = server.post("/apply-template", {"messages": messages, "tools": TOOLS}).json()
        assert prompt["prompt"].startswith("<|im_start|>system\nBe nice.\n\nYou can call functions")
        assert "get_weather" in prompt["prompt"]


def test_a_conversation_with_calls_and_results_goes_on() -> None:
    messages = [
        {"role": "user", "content": "Weather?"},
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [
                {
                    "id": "call_1",
                    "type": "function",
                    "function": {"name": "get_weather", "arguments": '{"city": "Paris"}'},
                }
            ],
        },
        {"role": "tool", "tool_call_id": "call_1", "content": "Sunny"},
    ]
    body = {"messages": messages, "tools": TOOLS}
    with running("It is sunny.", template=HERMES) as server:
        assert server.post("/v1/chat/completions", body).status_code == 200
        prompt = server.post("/apply-template", body).json()["prompt"]
        assert '<tool_call>{"name": "get_weather", "arguments": {"city": "Paris"}}' in prompt
        assert "<|im_start|>tool\nSunny" in prompt
    with running("It is sunny.", template=TEXTS) as server:
        assert server.post("/v1/chat/completions", body).status_code == 200
    with running("It is sunny.", context=2048) as server:
        assert server.post("/v1/chat/completions", body).status_code == 200


def test_what_a_tool_says_of_itself_makes_no_control_token() -> None:
    with running("x", template=HERMES) as server:
        plain = [{"type": "function", "function": {"name": "f", "description": d}} for d in "ab"]
        n_plain = server.chat(tools=plain[:1]).json()["usage"]["prompt_tokens"]
        plain[0]["function"]["description"] = "<|im_end|>"  # type: ignore[index]
        n_spelled = server.chat(tools=plain[:1]).json()["usage"]["prompt_tokens"]
        assert n_spelled == n_plain - 1 + len(tokenizer().encode("<|im_end|>"))


def test_none_forbids_calls_and_shows_no_tools() -> None:
    with running(f"<tool_call>{CALL}</tool_call>", template=HERMES) as server:
        choice = ask(server, tool_choice="none")["choices"][0]  # type: ignore[index]
        assert choice["finish_reason"] == "stop"
        assert choice["message"]["content"].startswith("<tool_call>")


def test_one_call_at_a_time_if_that_is_wanted() -> None:
    two = f"<tool_call>{CALL}</tool_call><tool_call>{CALL}</tool_call>"
    with running(two, template=HERMES) as server:
        assert len(ask(server)["choices"][0]["message"]["tool_calls"]) == 2  # type: ignore[index]
        only_call(ask(server, parallel_tool_calls=False))


@pytest.mark.parametrize(
    ("template", "choice"),
    [
        (HERMES, "required"),
        (HERMES, {"type": "function", "function": {"name": "now"}}),
        (MISTRAL, "required"),
        (None, "required"),
        (None, {"type": "function", "function": {"name": "get_weather"}}),
    ],
)
def test_a_demanded_call_is_made_whatever_the_model_wants(
    template: str | None, choice: object
) -> None:
    pytest.importorskip("llguidance")
    options: dict[str, object] = {} if template is None else {"template": template}
    with running(None, context=2048, **options) as server:  # type: ignore[arg-type]
        fields = {"tool_choice": choice, "max_tokens": 400, "temperature": 0.5, "seed": 1}
        body = server.chat("Hi", tools=TOOLS, **fields).json()
        (answer,) = body["choices"]
        calls = answer["message"].get("tool_calls", [])
        assert calls, answer
        names = {"get_weather", "now"} if choice == "required" else {choice["function"]["name"]}  # type: ignore[index]
        assert calls[0]["function"]["name"] in names
        if answer["finish_reason"] != "length":
            assert answer["finish_reason"] == "tool_calls"
            assert isinstance(json.loads(calls[0]["function"]["arguments"]), dict)


def test_thoughts_are_told_apart() -> None:
    template = HERMES + "{# <think> #}"
    with running("<think>\nHm.\n</think>\n\nYes.", template=template) as server:
        message = server.chat().json()["choices"][0]["message"]
        assert (message["reasoning_content"], message["content"]) == ("Hm.", "Yes.")
        chunks = events(server.chat(stream=True).text)
        deltas = [c["choices"][0]["delta"] for c in chunks]  # type: ignore[index]
        assert "".join(d.get("reasoning_content", "") for d in deltas) == "Hm."
        assert "".join(d.get("content", "") for d in deltas) == "Yes."
        message = server.chat(reasoning_format="none").json()["choices"][0]["message"]
        assert message["content"] == "<think>\nHm.\n</think>\n\nYes."


def test_thoughts_that_the_prompt_begins_and_a_call_after_them() -> None:
    template = HERMES.replace("assistant\n{% endif %}", "assistant\n<think>\n{% endif %}")
    answer = f"Hm.\n</think>\n<tool_call>{CALL}</tool_call>"
    turn = "<|im_start|>assistant\n<think>\n"
    from running_server import saying

    with running(saying(tokenizer(), answer, turn), template=template) as server:
        body = ask(server)
        assert only_call(body) == ("get_weather", {"city": "Paris"})
        assert body["choices"][0]["message"]["reasoning_content"] == "Hm."  # type: ignore[index]
