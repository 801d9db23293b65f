"""The smaller endpoints: models, health, metrics, tokens, embeddings; and what curl sees."""

from __future__ import annotations

import base64
import json
import re
import shutil
import subprocess
from collections.abc import Iterator

import numpy as np
import pytest
from jsonschema import validate
from openai import OpenAI
from openai_schemas import EMBEDDINGS
from running_server import Running, running, tokenizer

from quantcli.server.embeddings import coded

TOKENS = tokenizer()
SAMPLE = re.compile(r'quantcli_[a-z0-9_]+(\{[a-z_]+="[^"]*"\})? -?[0-9.e+-]+(inf)?')


@pytest.fixture(scope="module")
def server() -> Iterator[Running]:
    with running("Hello!") as started:
        yield started


def test_the_model_is_listed(server: Running) -> None:
    body = server.get("/v1/models").json()
    assert body["object"] == "list"
    (model,) = body["data"]
    assert model["id"] == "tiny"
    assert model["object"] == "model"
    assert server.get("/v1/models/tiny").json() == model


def test_adapters_are_listed_as_llama_server_does(server: Running) -> None:
    assert server.get("/lora-adapters").json() == []
    adapters = [{"id": 0, "path": "a.gguf", "scale": 0.5}]
    with running() as other:
        other.service.served.adapters = adapters
        assert other.get("/lora-adapters").json() == adapters
        assert other.get("/v1/lora-adapters").json() == adapters
        assert other.post("/lora-adapters", []).status_code == 405
        refused = other.chat(lora=[{"id": 0, "scale": 1.0}])
        assert refused.status_code == 400
        assert "/lora-adapters" in refused.json()["error"]["message"]
        assert other.chat(lora=[]).status_code == 200


def test_health(server: Running) -> None:
    response = server.get("/health")
    assert (response.status_code, response.json()) == (200, {"status": "ok"})


def test_an_engine_that_stands_still_is_not_healthy() -> None:
    with running() as server:
        server.service.runner.stop()
        while server.service.runner.is_running:
            pass
        assert server.get("/health").status_code == 503


def test_metrics_are_in_prometheus_format(server: Running) -> None:
    server.chat()
    response = server.get("/metrics")
    assert response.headers["content-type"].startswith("text/plain; version=0.0.4")
    seen: dict[str, str] = {}
    for line in response.text.splitlines():
        if line.startswith("#"):
            _, word, name, rest = line.split(" ", 3)
            if word == "TYPE":
                seen[name] = rest
        else:
            assert SAMPLE.fullmatch(line), line
            name = re.split(r"[{ ]", line)[0]
            stem = re.sub(r"_(bucket|sum|count)$", "", name)
            assert name in seen or seen[stem] == "histogram"
            assert not name.endswith("_total") or seen[name] == "counter"
    assert "quantcli_request_success_total" in seen
    assert 'quantcli_request_success_total{finish_reason="stop"}' in response.text


def test_histograms_are_cumulative(server: Running) -> None:
    server.chat()
    lines = server.get("/metrics").text.splitlines()
    name = "quantcli_time_to_first_token_seconds"
    counts = [int(line.split()[-1]) for line in lines if line.startswith(name + "_bucket")]
    total = next(int(line.split()[-1]) for line in lines if line.startswith(name + "_count"))
    assert counts == sorted(counts)
    assert counts[-1] == total > 0


@pytest.mark.parametrize("text", ["hello <|im_end|>", "é\U0001f600", ""])
def test_tokenize_and_back(server: Running, text: str) -> None:
    for parse in (True, False):
        ids = server.post("/tokenize", {"content": text, "parse_special": parse}).json()["tokens"]
        assert ids == TOKENS.encode(text, add_special=False, parse_special=parse)
        assert server.post("/detokenize", {"tokens": ids}).json()["content"] == text


def test_tokenize_tells_pieces(server: Running) -> None:
    body = server.post("/tokenize", {"content": "the", "with_pieces": True}).json()
    assert body["tokens"] == [{"id": TOKENS.encode("the")[0], "piece": "the"}]
    assert body["count"] == 1


def test_the_tokenizer_is_described_as_vllm_does(server: Running) -> None:
    info = server.get("/tokenizer_info").json()
    assert (info["bos_token"], info["eos_token"]) == ("<|endoftext|>", "<|im_end|>")
    assert "<|im_start|>" in info["chat_template"]
    body = {"prompt": "the", "add_special_tokens": False}
    assert server.post("/tokenize", body).json()["tokens"] == TOKENS.encode("the")
    assert server.post("/detokenize", {"tokens": TOKENS.encode("the")}).json()["prompt"] == "the"


@pytest.mark.parametrize("tokens", [[-1], [10**9], ["a"], [True], {"a": 1}, 7])
def test_detokenize_refuses_what_is_no_token(server: Running, tokens: object) -> None:
    assert server.post("/detokenize", {"tokens": tokens}).status_code == 400


def test_an_answer_goes_on_where_the_last_message_ends(server: Running) -> None:
    messages = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Well, "}]
    body = {"messages": messages, "continue_final_message": True}
    prompt = server.post("/apply-template", body).json()["prompt"]
    assert prompt.endswith("<|im_start|>assistant\nWell, ")
    ends = {"messages": messages, "add_generation_prompt": False}
    assert server.post("/apply-template", ends).json()["prompt"] == prompt + "<|im_end|>\n"
    for wrong in ({"add_generation_prompt": True}, {"messages": messages[:1]}):
        answer = server.post("/apply-template", body | wrong)
        assert answer.status_code == 400, answer.text


def test_apply_template(server: Running) -> None:
    messages = [{"role": "user", "content": "Hi"}]
    body = server.post("/apply-template", {"messages": messages}).json()
    assert body["prompt"] == "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"


def test_a_model_without_a_template_cannot_chat() -> None:
    with running("x", template=None) as server:
        for path in ("/v1/chat/completions", "/apply-template"):
            response = server.post(path, {"messages": [{"role": "user", "content": "Hi"}]})
            assert response.status_code == 400
            assert "no chat template" in response.json()["error"]["message"]


def test_a_template_that_refuses_a_conversation_says_why() -> None:
    template = "{{ raise_exception('roles must alternate') }}"
    with running("x", template=template) as server:
        response = server.chat()
        assert response.status_code == 400
        assert "roles must alternate" in response.json()["error"]["message"]


@pytest.mark.parametrize("pooling", [None, "mean", "last"])
def test_embeddings_are_of_length_1_and_in_the_order_asked(
    server: Running, pooling: str | None
) -> None:
    texts = ["the", "a cat", "the cat on the mat " * 12, "x"] * 3
    body = {"input": texts, "pooling": pooling}
    response = server.post("/v1/embeddings", body)
    validate(response.json(), EMBEDDINGS)
    found = [entry["embedding"] for entry in response.json()["data"]]
    for text, vector in zip(texts, found, strict=True):
        ids = TOKENS.encode(text)
        states = np.array([(token, i, 1) for i, token in enumerate(ids)], np.float64)
        expected = states[-1] if pooling == "last" else states.mean(axis=0)
        np.testing.assert_allclose(vector, expected / np.linalg.norm(expected), rtol=1e-5)
    n_tokens = sum(len(TOKENS.encode(text)) for text in texts)
    assert response.json()["usage"] == {"prompt_tokens": n_tokens, "total_tokens": n_tokens}
    assert server.is_empty()


def test_embeddings_in_base64_are_what_openais_client_reads(server: Running) -> None:
    body = {"input": [[5, 6], [7]], "encoding_format": "base64"}
    entries = server.post("/v1/embeddings", body).json()["data"]
    decoded = [np.frombuffer(base64.b64decode(e["embedding"]), "<f4") for e in entries]
    assert [v.shape for v in decoded] == [(3,), (3,)]
    with (
        server.client() as http,
        OpenAI(base_url=f"{server.url}/v1", api_key="x", http_client=http) as client,
    ):
        answer = client.embeddings.create(model="m", input=["the"])
        assert len(answer.data[0].embedding) == 3


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"input": []},
        {"input": 7},
        {"input": ["a"] * 300},
        {"input": "a", "encoding_format": "hex"},
        {"input": "a", "pooling": "cls"},
        {"input": "a", "dimensions": 2},
        {"input": "x " * 2000},
        {"input": [[10**9]]},
    ],
    ids=range(9),
)
def test_embeddings_that_cannot_be(server: Running, body: object) -> None:
    response = server.post("/v1/embeddings", body)
    assert response.status_code == 400
    assert response.json()["error"]["message"]


def test_vectors_are_told_as_numbers_or_base64_of_little_endian_floats() -> None:
    vector = [3.0, -4.0, 0.0]
    assert coded(vector, "float") == pytest.approx([0.6, -0.8, 0.0])
    text = coded(vector, "base64")
    assert isinstance(text, str)
    decoded = np.frombuffer(base64.b64decode(text), "<f4")
    np.testing.assert_allclose(decoded, [0.6, -0.8, 0.0], rtol=1e-6)
    assert coded([0.0], "float") == [0.0]


def test_the_log_tells_numbers_and_no_prompt(server: Running) -> None:
    server.log.clear()
    server.chat("a secret")
    (entry,) = [e for e in server.log if e["path"] == "/v1/chat/completions"]
    assert entry["status"] == 200
    assert entry["completion_tokens"] == 7
    assert entry["finish"] == ["stop"]
    assert "secret" not in json.dumps(server.log)


@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")
def test_curl(server: Running) -> None:
    data = '{"messages": [{"role": "user", "content": "Hi"}]}'
    arguments = ["-H", "Content-Type: application/json", "-d", data]
    command = ["curl", "-s", "--max-time", "20", "--noproxy", "*"]
    url = f"{server.url}/v1/chat/completions"
    done = subprocess.run([*command, url, *arguments], capture_output=True, check=True)
    assert json.loads(done.stdout)["choices"][0]["message"]["content"] == "Hello!"
    streamed = subprocess.run(
        [*command, "-N", url, *arguments[:2], "-d", data[:-1] + ', "stream": true}'],
        capture_output=True,
        check=True,
    )
    assert streamed.stdout.endswith(b"data: [DONE]\n\n")
    large = subprocess.run(
        [*command, "-w", "%{http_code}", "-o", "-", url, *arguments[:2], "--data-binary", "@-"],
        input=b" " * 6_000_000,
        capture_output=True,
        check=True,
    )
    assert large.stdout.endswith(b"413")
