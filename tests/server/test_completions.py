"""Bare prompts continued: kinds of prompts, echo, legacy log-probabilities, choices."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator

import numpy as np
import pytest
from fakes import F32, History
from running_server import TURN, Running, running, tokenizer

PATH = "/v1/completions"
TOKENS = tokenizer()


@pytest.fixture(scope="module")
def server() -> Iterator[Running]:
    with running("Hello!") as started:
        yield started


@pytest.fixture(scope="module")
def hashed() -> Iterator[Running]:
    """A model whose logits are a function of all that came before, as a real one's are."""
    with running(None) as started:
        yield started


def complete(server: Running, **body: object) -> dict[str, object]:
    response = server.post(PATH, {"prompt": TURN, **body})
    assert response.status_code == 200, response.text
    result: dict[str, object] = response.json()
    return result


def test_an_answer_has_openais_shape(server: Running) -> None:
    body = complete(server)
    assert body["object"] == "text_completion"
    assert body["choices"] == [
        {"index": 0, "text": "Hello!", "logprobs": None, "finish_reason": "stop"}
    ]


def test_sixteen_tokens_are_the_default(hashed: Running) -> None:
    body = complete(hashed, prompt="a", ignore_eos=True)
    assert body["usage"]["completion_tokens"] == 16  # type: ignore[index]
    assert body["choices"][0]["finish_reason"] == "length"  # type: ignore[index]


@pytest.mark.parametrize("as_ids", [False, True])
def test_prompts_may_be_texts_or_ids_one_or_many(server: Running, as_ids: bool) -> None:
    prompts: list[object] = [TURN, "x" + TURN]
    if as_ids:
        prompts = [TOKENS.encode(str(p), parse_special=True) for p in prompts]
    assert complete(server, prompt=prompts[1])["choices"][0]["text"] == "Hello!"  # type: ignore[index]
    choices = complete(server, prompt=prompts, n=2)["choices"]
    assert [c["index"] for c in choices] == [0, 1, 2, 3]  # type: ignore[attr-defined]
    assert {c["text"] for c in choices} == {"Hello!"}  # type: ignore[attr-defined]


def test_echo_puts_the_prompt_before_the_answer(server: Running) -> None:
    body = complete(server, prompt=["é" + TURN, TURN], echo=True)
    assert [c["text"] for c in body["choices"]] == ["é" + TURN + "Hello!", TURN + "Hello!"]  # type: ignore[attr-defined]
    response = server.post(PATH, {"prompt": "abc" + TURN, "echo": True, "stream": True})
    chunks = [json.loads(f[6:]) for f in response.text.split("\n\n") if f.startswith("data: {")]
    assert "".join(c["choices"][0]["text"] for c in chunks) == "abc" + TURN + "Hello!"
    assert [c["choices"][0]["finish_reason"] for c in chunks][-1] == "stop"


def test_echo_with_logprobs_tells_those_of_the_prompt(hashed: Running) -> None:
    """They are the model's own: log softmax of its logits before each token."""
    text = "the cat é"
    ids = TOKENS.encode(text)
    body = complete(hashed, prompt=text, echo=True, logprobs=2, max_tokens=0)
    (choice,) = body["choices"]  # type: ignore[misc]
    assert choice["text"] == text
    logprobs = choice["logprobs"]
    assert len(logprobs["tokens"]) == len(ids)
    assert logprobs["token_logprobs"][0] is None
    assert logprobs["top_logprobs"][0] is None
    for i in range(1, len(ids)):
        row = hashed.model.hashed(tuple(ids[:i])).astype(np.float64)
        expected = row - np.logaddexp.reduce(row)
        assert logprobs["token_logprobs"][i] == pytest.approx(expected[ids[i]], abs=1e-5)
        top = logprobs["top_logprobs"][i]
        assert max(top.values()) == pytest.approx(expected.max(), abs=1e-5)
        assert len(top) in (2, 3)
        assert top[logprobs["tokens"][i]] == logprobs["token_logprobs"][i]


def test_offsets_point_at_the_tokens_in_the_text(hashed: Running) -> None:
    text = "a é the"
    body = complete(hashed, prompt=text, echo=True, logprobs=0, max_tokens=0)
    logprobs = body["choices"][0]["logprobs"]  # type: ignore[index]
    assert logprobs["tokens"] == ["a", " ", r"bytes:\xc3", r"bytes:\xa9", " the"]
    assert logprobs["text_offset"] == [0, 1, 2, 2, 3]
    assert logprobs["top_logprobs"][1:] == [{}] * 4


def test_lm_eval_gets_what_it_sums(hashed: Running) -> None:
    """lm-eval sends context and continuation as ids, asks for one token, and drops the last."""
    context, continuation = TOKENS.encode("the sun "), TOKENS.encode("rises")
    ids = [*context, *continuation]
    body = complete(hashed, prompt=[ids], echo=True, logprobs=1, max_tokens=1, temperature=0)
    logprobs = body["choices"][0]["logprobs"]  # type: ignore[index]
    assert len(logprobs["tokens"]) == len(ids) + 1
    told = sum(logprobs["token_logprobs"][len(context) : -1])
    total = 0.0
    for i in range(len(context), len(ids)):
        row = hashed.model.hashed(tuple(ids[:i])).astype(np.float64)
        total += float(row[ids[i]] - np.logaddexp.reduce(row))
    assert told == pytest.approx(total, abs=1e-4)
    for token, top in zip(logprobs["tokens"][1:], logprobs["top_logprobs"][1:], strict=True):
        assert token in top
        assert len(top) <= 2


def test_logprobs_of_minus_infinity_are_numbers() -> None:
    def say(history: History) -> F32:
        row = np.full(TOKENS.n_vocab, -math.inf, np.float32)
        row[TOKENS.encode("a")[0]] = 0
        return row

    with running(say) as server:
        body = complete(server, logprobs=5, max_tokens=2)
        assert "Infinity" not in json.dumps(body)
        tops = body["choices"][0]["logprobs"]["top_logprobs"]  # type: ignore[index]
        assert max(tops[0], key=tops[0].get) == "a"


def test_a_seed_gives_the_same_answer_and_n_different_ones(hashed: Running) -> None:
    ask = {"prompt": "the", "seed": 7, "temperature": 1.5, "max_tokens": 8, "ignore_eos": True}
    first, again = complete(hashed, **ask), complete(hashed, **ask)
    assert first["choices"] == again["choices"]
    three = complete(hashed, **ask, n=3)["choices"]
    assert three[0] == first["choices"][0]  # type: ignore[index]
    assert len({c["text"] for c in three}) > 1  # type: ignore[attr-defined]
    second = complete(hashed, **(ask | {"seed": 8}))["choices"]
    assert second[0]["text"] == three[1]["text"]  # type: ignore[index]


def test_control_tokens_are_read_unless_told_otherwise(server: Running) -> None:
    n_control = complete(server)["usage"]["prompt_tokens"]  # type: ignore[index]
    n_plain = complete(server, parse_special=False)["usage"]["prompt_tokens"]  # type: ignore[index]
    assert n_plain > n_control


def test_a_bias_of_minus_100_bans(server: Running) -> None:
    (h,) = TOKENS.encode("H")
    body = complete(server, logit_bias={str(h): -100}, max_tokens=1, temperature=0)
    assert body["choices"][0]["text"] != "H"  # type: ignore[index]


def test_usage_counts_each_prompt_once(server: Running) -> None:
    one = complete(server, prompt=TURN)["usage"]
    both = complete(server, prompt=[TURN, TURN], n=2)["usage"]
    assert both["prompt_tokens"] == 2 * one["prompt_tokens"]  # type: ignore[index]
    assert both["completion_tokens"] == 4 * one["completion_tokens"]  # type: ignore[index]
