"""Answers: pieces as they come, Ctrl-C, what is written and what it took."""

from __future__ import annotations

import json

import pytest
from fake_runtime import FakeEngine, FakeModel, fake_loaded, full

from quantcli.cli import generation, run
from quantcli.cli.options import PromptOptions, SamplingOptions
from quantcli.cli.render import StatusLine
from quantcli.cli.worker import Worker
from quantcli.engine.request import FinishReason, Request
from quantcli.errors import ResourceError, UsageError


def answer(engine: FakeEngine, worker: Worker) -> generation.Answer:
    return generation.Answer(engine, Request((1, 2)), worker)  # type: ignore[arg-type]


def test_pieces_come_in_order_and_then_the_reason() -> None:
    shown: list[str] = []
    with Worker() as worker:
        asked = answer(FakeEngine([["a", "", "b"]]), worker)
        assert not generation.collect(asked, shown.append)
    assert shown == ["a", "b"]
    assert asked.text == "ab"
    assert asked.finish is FinishReason.STOP
    assert asked.stats is not None


def test_an_error_of_the_engine_reaches_the_main_thread() -> None:
    with Worker() as worker, pytest.raises(ResourceError, match="99 tokens"):
        generation.collect(answer(FakeEngine([full(99, 64)]), worker), None)


def test_ctrl_c_ends_the_answer_and_keeps_what_there_is() -> None:
    engine = FakeEngine([None])
    shown: list[str] = []

    def show(piece: str) -> None:
        shown.append(piece)
        if len(shown) == 3:
            raise KeyboardInterrupt

    with Worker() as worker:
        asked = answer(engine, worker)
        assert generation.collect(asked, show)
    assert engine.n_cancelled == 1
    assert asked.text.startswith("xxx")
    assert asked.stats is not None


def test_a_second_ctrl_c_is_raised() -> None:
    def show(piece: str) -> None:
        raise KeyboardInterrupt

    with Worker() as worker:
        asked = answer(FakeEngine([None]), worker)
        with pytest.raises(KeyboardInterrupt):
            generation.collect(asked, show)


def test_an_error_while_printing_cancels_the_answer() -> None:
    def show(piece: str) -> None:
        raise BrokenPipeError

    engine = FakeEngine([None])
    with Worker() as worker, pytest.raises(BrokenPipeError):
        generation.collect(answer(engine, worker), show)
    assert engine.n_cancelled == 1


def test_an_answer_that_is_not_read_to_its_end_is_stopped() -> None:
    with Worker() as worker:
        asked = answer(FakeEngine([None]), worker)
        assert next(asked) == "x"
    assert not worker.is_busy


def test_a_model_with_a_template_chats_by_default() -> None:
    loaded = fake_loaded(FakeEngine([]), FakeModel())
    asked = run._request(loaded, "hi", PromptOptions(system="be"), SamplingOptions())
    assert "".join(map(chr, asked.tokens)) == "system:be|user:hi|"
    asked = run._request(loaded, "hi", PromptOptions(chat=False), SamplingOptions())
    assert "".join(map(chr, asked.tokens)) == "hi"


def test_a_model_without_a_template_completes() -> None:
    loaded = fake_loaded(FakeEngine([]), FakeModel(), chat=False)
    asked = run._request(loaded, "hi", PromptOptions(), SamplingOptions(context_shift=True, keep=3))
    assert "".join(map(chr, asked.tokens)) == "hi"
    assert (asked.context_shift, asked.n_keep) == (True, 3)
    with pytest.raises(UsageError, match="has no chat template"):
        run._request(loaded, "hi", PromptOptions(chat=True), SamplingOptions())
    with pytest.raises(UsageError, match="--system is part of a chat"):
        run._request(loaded, "hi", PromptOptions(system="be"), SamplingOptions())


@pytest.mark.parametrize(("pieces", "out"), [(["a", "b"], "ab\n"), (["a\n"], "a\n"), ([], "\n")])
def test_standard_output_holds_the_answer_alone(
    capsys: pytest.CaptureFixture[str], pieces: list[str], out: str
) -> None:
    engine = FakeEngine([pieces])  # type: ignore[list-item]
    loaded = fake_loaded(engine, FakeModel())
    with Worker() as worker:
        run._answer(answer(engine, worker), loaded, StatusLine(verbose=True), False)
    captured = capsys.readouterr()
    assert captured.out == out
    assert "tokens/s" in captured.err
    assert "seed 7" in captured.err


def test_json_is_one_document_with_everything(capsys: pytest.CaptureFixture[str]) -> None:
    engine = FakeEngine([["a", "b"]])
    with Worker() as worker:
        run._answer(
            answer(engine, worker), fake_loaded(engine, FakeModel()), StatusLine(), as_json=True
        )
    captured = capsys.readouterr()
    document = json.loads(captured.out)
    assert captured.err == ""
    assert document["text"] == "ab"
    assert document["tokens"] == [0, 0]
    assert document["finish"] == "stop"
    assert document["model"] == "fake"
    assert document["settings"]["temperature"] == 0.8
    assert document["settings"]["context"] == 64
    assert document["settings"]["lora"] == []
    assert document["timings"]["n_prompt"] == 2
    assert document["timings"]["load_s"] == 0.5


def test_an_interrupted_answer_is_printed_and_the_interrupt_raised(
    capsys: pytest.CaptureFixture[str],
) -> None:
    engine = FakeEngine([None], interrupt_at=3)
    with Worker() as worker, pytest.raises(KeyboardInterrupt):
        run._answer(
            answer(engine, worker),
            fake_loaded(engine, FakeModel()),
            StatusLine(verbose=True),
            False,
        )
    captured = capsys.readouterr()
    assert engine.n_cancelled == 1
    assert captured.out.endswith("x\n")
    assert "generated" in captured.err


@pytest.mark.parametrize(("context", "said"), [(64, False), (65, True)])
def test_a_context_beyond_what_the_model_was_trained_on_is_remarked(
    context: int, said: bool
) -> None:
    loaded = fake_loaded(FakeEngine([]), FakeModel(context=context))
    keys = {"general.architecture": "llama", "llama.context_length": 64}
    loaded.checkpoint.metadata.update(keys)  # type: ignore[attr-defined]
    notes = list(generation.notes(loaded))
    assert len(notes) == said
    assert all("65" in note and "64" in note for note in notes)
