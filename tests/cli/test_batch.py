"""Prompts from a JSONL file answered together, and gone on with where a run was broken off."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from fake_runtime import FakeCheckpoint, FakeLoaded, FakeTemplate, FakeTokenizer
from fakes import FakeModel
from fakes import FakeTokenizer as Vocabulary

from quantcli.cli.batch import Batch, answer_all, open_batch
from quantcli.cli.batch_file import read_prompts
from quantcli.cli.options import PromptOptions, SamplingOptions
from quantcli.cli.render import StatusLine
from quantcli.cli.worker import Worker
from quantcli.engine.loop import Engine
from quantcli.errors import UsageError

Document = dict[str, object]


class Letters(Vocabulary):
    """One token a character, and what the command needs besides."""

    def __init__(self) -> None:
        super().__init__([chr(i) for i in range(128)])

    def encode(self, text: str, **_: bool) -> list[int]:
        return FakeTokenizer().encode(text)


def loaded(model: FakeModel | None = None, *, has_chat: bool = False) -> FakeLoaded:
    model = model or FakeModel(lambda history: (history[-1] + 1) % 128, n_vocab=128)
    engine = Engine(model, Letters(), sampler="reference")
    template = FakeTemplate() if has_chat else None

    pieces = (FakeCheckpoint(), Letters(), template, model, engine)
    return FakeLoaded("fake", *pieces, load_s=0.0)  # type: ignore[arg-type]


def write(path: Path, lines: list[object]) -> Path:
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    return path


def read(path: Path) -> list[Document]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def batch(
    folder: Path, *, seed: int | None = None, force: bool = False, **settings: object
) -> Batch:
    sampling = SamplingOptions(temp=0.0, max_tokens=3, seed=seed)
    return open_batch(
        str(folder / "p.jsonl"),
        str(folder / "a.jsonl"),
        settings,
        PromptOptions(),
        sampling,
        None,
        force=force,
    )


def answer(one: Batch, on: FakeLoaded | None = None, n_parallel: int = 4) -> None:
    with Worker() as worker:
        answer_all(one, on or loaded(), worker, StatusLine(quiet=True), n_parallel)


def test_answers_are_in_the_order_of_the_prompts_whatever_ends_first(tmp_path: Path) -> None:
    lines: list[object] = [
        {"id": "long", "prompt": "abc", "max_tokens": 9},
        "x",
        {"prompt": "m", "max_tokens": 1, "seed": 5},
    ]
    write(tmp_path / "p.jsonl", lines)
    answer(batch(tmp_path, seed=10))
    first, second, third = read(tmp_path / "a.jsonl")
    assert first == {
        "line": 1,
        "id": "long",
        "text": "defghijkl",
        "finish": "length",
        "n_prompt": 3,
        "n_generated": 9,
        "seed": 11,
    }
    assert (second["line"], second["text"], second["seed"]) == (2, "yz{", 12)
    assert "id" not in second
    assert (third["text"], third["seed"]) == ("n", 5)
    assert not (tmp_path / "a.jsonl.part").exists()


def test_messages_and_prompts_go_through_the_chat_template(tmp_path: Path) -> None:
    messages = [{"role": "system", "content": "s"}, {"role": "user", "content": "u"}]
    write(tmp_path / "p.jsonl", [{"messages": messages}, {"prompt": "u"}])
    answer(batch(tmp_path), loaded(has_chat=True))
    assert [document["n_prompt"] for document in read(tmp_path / "a.jsonl")] == [16, 7]


def test_a_prompt_that_cannot_be_answered_has_an_error_and_the_others_an_answer(
    tmp_path: Path,
) -> None:
    write(tmp_path / "p.jsonl", ["a" * 99, "b", {"messages": [{"role": "user", "content": "u"}]}])
    with pytest.raises(UsageError, match="2 of 3 prompts have an error"):
        answer(batch(tmp_path))
    first, second, third = read(tmp_path / "a.jsonl")
    assert "99 tokens, and the context 48" in str(first["error"])
    assert second["text"] == "cde"
    assert "no chat template" in str(third["error"])


@pytest.mark.parametrize("n_parallel", [1, 2, 8])
def test_a_run_broken_off_goes_on_and_ends_as_if_it_had_not_been(
    tmp_path: Path, n_parallel: int
) -> None:
    write(tmp_path / "p.jsonl", [chr(97 + i) * (i + 1) for i in range(12)])
    whole = tmp_path / "whole"
    whole.mkdir()
    write(whole / "p.jsonl", [chr(97 + i) * (i + 1) for i in range(12)])
    answer(batch(whole, seed=3))

    one = batch(tmp_path, seed=3)
    on = loaded()
    for n_done in one.run(on, n_parallel):
        if n_done >= 5:
            break
    part = tmp_path / "a.jsonl.part"
    part.write_bytes(part.read_bytes() + b'{"line": 9, "te')  # torn by the power cut
    again = batch(tmp_path, seed=3)
    assert 5 <= len(again.answers.done) < 12
    answer(again, n_parallel=n_parallel)
    assert read(tmp_path / "a.jsonl") == read(whole / "a.jsonl")


def test_a_run_that_goes_on_keeps_the_seed_that_was_drawn(tmp_path: Path) -> None:
    write(tmp_path / "p.jsonl", ["a", "b"])
    first = batch(tmp_path)
    assert batch(tmp_path).answers.seed == first.answers.seed
    with pytest.raises(UsageError, match="seed differs"):
        batch(tmp_path, seed=7)


def test_answers_to_something_else_are_not_gone_on_with(tmp_path: Path) -> None:
    write(tmp_path / "p.jsonl", ["a", "b"])
    batch(tmp_path, seed=1, model="x")
    with pytest.raises(UsageError, match="holds answers to something else"):
        batch(tmp_path, seed=1, model="y")
    write(tmp_path / "p.jsonl", ["a", "c"])
    with pytest.raises(UsageError, match="prompts_sha256 differs"):
        batch(tmp_path, seed=1, model="x")
    batch(tmp_path, seed=1, model="x", force=True)
    part = tmp_path / "a.jsonl.part"
    part.write_bytes(b"{broken\n")
    with pytest.raises(UsageError, match="is damaged"):
        batch(tmp_path, seed=1, model="x")


def test_a_file_that_exists_is_not_written_over_unasked(tmp_path: Path) -> None:
    write(tmp_path / "p.jsonl", ["a"])
    (tmp_path / "a.jsonl").write_text("mine")
    with pytest.raises(UsageError, match=r"a\.jsonl exists.*--force"):
        batch(tmp_path)
    assert (tmp_path / "a.jsonl").read_text() == "mine"
    answer(batch(tmp_path, force=True))
    assert read(tmp_path / "a.jsonl")[0]["text"] == "bcd"


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", "line 2 is no JSON"),
        ("[" * 100_000, "line 2 is no JSON"),
        ("7", "line 2 is no JSON object"),
        ('{"text": "a"}', "line 2: unknown key 'text'. Known: "),
        ('{"prompt": ""}', "line 2: the prompt must be text"),
        ('{"prompt": "a", "messages": []}', "line 2 must have either a prompt or messages"),
        ("{}", "line 2 must have either"),
        ('{"messages": []}', "at least one message"),
        ('{"messages": [{"role": "user"}]}', "a message has a role and a content"),
        ('{"prompt": "a", "id": [1]}', "id is .1.; it must be"),
        ('{"prompt": "a", "temperature": "hot"}', "line 2: temperature is 'hot'"),
        ('{"prompt": "a", "stop": [""]}', "line 2: stop string ''"),
    ],
)
def test_a_wrong_line_is_refused_before_anything_is_computed(
    tmp_path: Path, line: str, message: str
) -> None:
    (tmp_path / "p.jsonl").write_text('{"prompt": "a"}\n' + line + "\n", encoding="utf-8")
    with pytest.raises(UsageError, match=message):
        batch(tmp_path)
    assert not (tmp_path / "a.jsonl.part").exists()


def test_empty_lines_are_passed_over_and_lines_keep_their_numbers(tmp_path: Path) -> None:
    path = tmp_path / "p.jsonl"
    path.write_bytes(b'\xef\xbb\xbf"a"\r\n\n  \n"b"')
    prompts, _ = read_prompts(path)
    assert [(prompt.line, prompt.text) for prompt in prompts] == [(1, "a"), (4, "b")]


def test_a_file_without_prompts_is_refused(tmp_path: Path) -> None:
    (tmp_path / "p.jsonl").write_text("\n\n")
    with pytest.raises(UsageError, match="has no prompts"):
        batch(tmp_path)
