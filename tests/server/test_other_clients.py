"""LangChain and LiteLLM against the server, where they are installed.

LangChain is in the extra `clients`, which .ci/run installs; LiteLLM is another 200 MB.
"""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
from running_server import Running, running
from test_tools import CALL, HERMES, TOOLS

pytestmark = pytest.mark.filterwarnings("ignore")
MESSAGES = [{"role": "user", "content": "Hi"}]


@pytest.fixture(scope="module")
def server() -> Iterator[Running]:
    with running("Hello!") as started:
        yield started


@pytest.fixture(scope="module")
def caller() -> Iterator[Running]:
    with running(f"<tool_call>\n{CALL}\n</tool_call>", template=HERMES) as started:
        yield started


def test_litellm(server: Running, caller: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LITELLM_LOCAL_MODEL_COST_MAP", "True")  # or it looks for one elsewhere
    litellm = pytest.importorskip("litellm", reason="litellm is not installed")
    ask = {"model": "openai/tiny", "api_key": "x", "messages": MESSAGES}
    answer = litellm.completion(**ask, api_base=f"{server.url}/v1")
    assert answer.choices[0].message.content == "Hello!"
    assert answer.usage.completion_tokens == 7
    chunks = litellm.completion(**ask, api_base=f"{server.url}/v1", stream=True)
    assert "".join(c.choices[0].delta.content or "" for c in chunks) == "Hello!"
    called = litellm.completion(**ask, api_base=f"{caller.url}/v1", tools=TOOLS)
    (call,) = called.choices[0].message.tool_calls
    assert json.loads(call.function.arguments) == {"city": "Paris"}
    long = [{"role": "user", "content": "x" * 3000}]
    with pytest.raises(litellm.ContextWindowExceededError):
        litellm.completion(**(ask | {"messages": long}), api_base=f"{server.url}/v1")


def test_langchain(server: Running, caller: Running) -> None:
    langchain = pytest.importorskip("langchain_openai", reason="langchain-openai is not installed")
    chat = langchain.ChatOpenAI(model="tiny", base_url=f"{server.url}/v1", api_key="x")
    assert chat.invoke("Hi").content == "Hello!"
    assert "".join(piece.content for piece in chat.stream("Hi")) == "Hello!"
    tools = langchain.ChatOpenAI(model="tiny", base_url=f"{caller.url}/v1", api_key="x")
    (call,) = tools.bind_tools(TOOLS).invoke("Weather?").tool_calls
    assert (call["name"], call["args"]) == ("get_weather", {"city": "Paris"})
