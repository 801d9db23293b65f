"""Texts to calibrate on: the mixture, files, and what a model writes."""

from __future__ import annotations

from collections.abc import Iterator
from hashlib import sha256
from importlib.resources import files
from pathlib import Path

import pytest
from tiny import write_tiny

from quantcli.checkpoint import Checkpoint, open_checkpoint
from quantcli.errors import UsageError
from quantcli.quantize.calibrate import CHUNK, Calibration
from quantcli.quantize.corpora import builtin, calibration, written
from quantcli.text import Tokenizer, from_metadata

FOLDER = files("quantcli").joinpath("data", "calibration")


@pytest.fixture(params=["llama", "gemma3"])
def source(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Checkpoint]:
    path = write_tiny(tmp_path / "m.gguf", request.param, weight_format="q8_0", context=2048)
    with open_checkpoint(path) as checkpoint:
        yield checkpoint


def text_of(tokenizer: Tokenizer, chunk: tuple[int, ...]) -> str:
    """Return what a chunk says."""
    return b"".join(tokenizer.token_bytes(token) for token in chunk).decode("utf-8", "replace")


def test_the_mixture_has_every_part_from_the_start(source: Checkpoint) -> None:
    tokenizer = from_metadata(source.metadata)
    chunks = builtin(source, tokenizer, 8)
    assert [len(chunk) for chunk in chunks] == [CHUNK] * 8
    texts = [text_of(tokenizer, chunk) for chunk in chunks]
    assert "Mr. Speaker" in texts[0]
    assert "Déclaration universelle" in texts[1]
    assert "from __future__ import annotations" in texts[3]
    assert "Answer briefly and plainly" in texts[5]
    if tokenizer.add_bos:
        assert all(chunk[0] == tokenizer.bos for chunk in chunks)


def test_chats_are_in_the_models_own_template(source: Checkpoint) -> None:
    tokenizer = from_metadata(source.metadata)
    turn = "<start_of_turn>" if source.architecture == "gemma3" else "<|im_start|>"
    (marker,) = tokenizer.encode(turn, add_special=False, parse_special=True)
    chats = builtin(source, tokenizer, 8)[5]
    assert chats.count(marker) >= 2
    # Other parts spell no control token, whatever they say.
    assert not any(
        marker in chunk for i, chunk in enumerate(builtin(source, tokenizer, 8)) if i != 5
    )


def test_more_is_asked_for_than_there_is(source: Checkpoint) -> None:
    tokenizer = from_metadata(source.metadata)
    chunks = builtin(source, tokenizer, 1500)
    assert len(chunks) == 1500
    assert len(set(chunks)) > 1000, "a part that starts over is cut at other places"
    assert builtin(source, tokenizer, 3) == chunks[:3]


def test_the_shipped_texts_are_what_the_readme_says() -> None:
    readme = files("quantcli").joinpath("data", "README.md").read_text(encoding="utf-8")
    total = 0
    for path in FOLDER.iterdir():
        data = path.read_bytes()
        total += len(data)
        assert f"| {path.name} |" in readme
        assert f"{len(data):,} | `{sha256(data).hexdigest()}`" in readme
        data.decode("utf-8")
    assert f"{total:,} bytes of UTF-8" in readme
    assert total <= 400 << 10


@pytest.mark.jit
def test_a_model_writes_its_own_text_the_same_each_time(tmp_path: Path) -> None:
    path = write_tiny(tmp_path / "m.gguf", "llama", weight_format="q8_0", context=2048)
    with open_checkpoint(path) as checkpoint:
        tokenizer = from_metadata(checkpoint.metadata)
        said: list[tuple[str, int, int]] = []

        def progress(stage: str, done: int, total: int) -> None:
            said.append((stage, done, total))

        chunks = written(checkpoint, tokenizer, 2, n_threads=2, progress=progress)
        assert [len(chunk) for chunk in chunks] == [CHUNK] * 2
        assert len(set(chunks)) == 2
        assert said[-1][0] == "writing text to calibrate on"
        again = calibration("self", checkpoint, tokenizer, 2 * CHUNK + 100, n_threads=1)
        assert again.chunks == chunks
        assert "wrote" in again.title


def test_a_file_is_cut_and_named(source: Checkpoint, tmp_path: Path) -> None:
    tokenizer = from_metadata(source.metadata)
    path = tmp_path / "words.txt"
    path.write_text("the other thing and another " * 400, encoding="utf-8")
    found = calibration(str(path), source, tokenizer, 2 * CHUNK)
    assert found.title == "words.txt"
    assert found.n_tokens == 2 * CHUNK
    assert found == Calibration.of(
        path.read_text(encoding="utf-8"), "words.txt", tokenizer, 2 * CHUNK
    )
    with pytest.raises(UsageError, match="5 tokens are too few"):
        calibration("builtin", source, tokenizer, 5)


def test_calibration_takes_whole_chunks_and_tells_one_from_another(source: Checkpoint) -> None:
    tokenizer = from_metadata(source.metadata)
    text = "one two three four five six seven eight nine ten " * 400
    found = Calibration.of(text, "numbers", tokenizer, 1500)
    assert [len(chunk) for chunk in found.chunks] == [CHUNK, CHUNK]
    assert found.digest() == Calibration.of(text, "other title", tokenizer, 1500).digest()
    assert found.digest() != Calibration.of("!" + text, "numbers", tokenizer, 1500).digest()
    with pytest.raises(UsageError, match="calibration takes 512 at least"):
        Calibration.of("short", "numbers", tokenizer, 1500)


def test_a_shortage_of_tokens_is_told_with_the_numbers(source: Checkpoint) -> None:
    from quantcli.arch import Hyper, get

    hyper = Hyper.from_metadata(source.metadata, source.tensors)
    plan = get(hyper.arch).build(hyper)
    few = Calibration("few", ((1,) * 100,))
    assert few.shortage(plan) is not None
    assert "100 tokens of calibration are few for matrices of 192 inputs: 768" in str(
        few.shortage(plan)
    )
    assert Calibration("enough", ((1,) * 800,)).shortage(plan) is None
