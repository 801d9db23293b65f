"""Divergence from a base: exact in f64, 0 from itself, and from a file within its bound."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from bigram import BigramModel, bigram, near, text
from loaded_model import loaded
from tiny import write_tiny

from quantcli.engine.sampling import Chooser
from quantcli.errors import ModelError, UsageError
from quantcli.evaluate import divergence, from_file
from quantcli.evaluate.divergence import Positions
from quantcli.evaluate.logits_file import LogitsFile, Origin, new_file
from quantcli.evaluate.protocol import Chunk, cut, protocol
from quantcli.evaluate.rows import Runnable

HOW = protocol("full", 32)
NAMES = ("base", "model")


def chunks_of(n_vocab: int, n_tokens: int = 100) -> list[Chunk]:
    return cut(text(n_tokens, n_vocab), HOW, None)


def origin(base: Runnable, chunks: list[Chunk], k: int) -> Origin:
    return Origin(
        model="base",
        model_sha256="0" * 64,
        model_nbytes=1,
        model_n_params=1,
        vocabulary_sha256="1" * 64,
        n_vocab=base.n_vocab,
        text="text",
        text_sha256="2" * 64,
        protocol=HOW.name,
        context=len(chunks[0].tokens),
        begins_with_bos=False,
        n_scored=len(chunks[0].targets),
        n_chunks=len(chunks),
        k=k,
        kv_type="f16",
        backend="compiled",
        made_by="test",
    )


def measured(base: Runnable, model: Runnable, chunks: list[Chunk]) -> Positions:
    return Positions.join(list(divergence.measure(base, model, chunks, names=NAMES)))


def recorded(base: Runnable, chunks: list[Chunk], k: int, path: Path) -> np.ndarray:
    """Write the base's predictions, and return its negative log-likelihoods."""
    backend = "compiled" if base.is_compiled else "reference"
    chooser = Chooser(base.n_vocab, backend)
    with new_file(path, origin(base, chunks, k), force=False) as writer:
        parts = from_file.record(
            base,
            chunks,
            writer,
            k,
            name="base",
            most_likely=lambda row, n: chooser.most_likely(row, n)[0],
        )
        return np.concatenate(list(parts))


def measured_from_file(path: Path, model: Runnable, chunks: list[Chunk]) -> Positions:
    with LogitsFile(path) as file:
        return Positions.join(list(from_file.measure(file, model, chunks, name="model")))


def test_positions_are_those_of_f64() -> None:
    base = bigram()
    model = near(base)
    chunks = chunks_of(40)
    found = measured(base, model, chunks)
    rows = [t for chunk in chunks for t in chunk.tokens[:-1]]
    targets = [t for chunk in chunks for t in chunk.targets]
    log_p, log_q = base.log_p[rows], model.log_p[rows]
    each = np.arange(len(rows))
    assert found.kl == pytest.approx((np.exp(log_p) * (log_p - log_q)).sum(axis=1), rel=1e-10)
    assert found.base_nll == pytest.approx(-log_p[each, targets], rel=1e-12)
    assert found.nll == pytest.approx(-log_q[each, targets], rel=1e-12)
    assert (found.is_same == (log_p.argmax(axis=1) == log_q.argmax(axis=1))).all()
    assert (found.rest == 0).all()


def test_statistics_are_their_definitions() -> None:
    base = bigram()
    found = measured(base, near(base), chunks_of(40))
    summary = divergence.summarize(found, is_exact=True)
    delta = np.exp(-found.nll) - np.exp(-found.base_nll)
    difference = found.nll - found.base_nll
    assert summary.n_tokens == found.kl.size == 3 * 31
    assert summary.kl.value == pytest.approx(found.kl.mean())
    assert summary.kl_median == pytest.approx(np.median(found.kl))
    ordered = np.sort(found.kl)
    at = 0.99 * (ordered.size - 1)
    expected = ordered[int(at)] + (at - int(at)) * (ordered[int(at) + 1] - ordered[int(at)])
    assert summary.kl_percentiles["99"] == pytest.approx(expected)
    assert list(summary.kl_percentiles) == ["90", "99", "99.9"]
    assert summary.kl_max == ordered[-1]
    assert summary.same_top.value == found.is_same.mean()
    assert summary.delta_p.value == pytest.approx(delta.mean())
    assert summary.delta_p_rms.value == pytest.approx(np.sqrt((delta**2).mean()))
    assert summary.ratio.value == pytest.approx(
        summary.perplexity.value / summary.base_perplexity.value
    )
    assert summary.log_ratio.error == pytest.approx(difference.std() / np.sqrt(difference.size - 1))
    assert summary.ratio.error == pytest.approx(summary.ratio.value * summary.log_ratio.error)


def test_a_model_is_no_way_from_itself() -> None:
    base = bigram()
    found = measured(base, bigram(), chunks_of(40))
    assert (found.kl == 0).all()
    assert found.is_same.all()
    assert (found.nll == found.base_nll).all()
    summary = divergence.summarize(found, is_exact=True)
    assert (summary.kl, summary.kl_max, summary.same_top.value) == ((0, 0), 0, 1)
    assert (summary.ratio, summary.delta_p_rms) == ((1, 0), (0, 0))


@pytest.mark.parametrize("k", [1, 5, 20, 39, 40])
def test_a_file_gives_a_lower_bound_that_grows_with_k(tmp_path: Path, k: int) -> None:
    base = bigram()
    model = near(base)
    chunks = chunks_of(40)
    nlls = recorded(base, chunks, k, tmp_path / "f")
    exact = measured(base, model, chunks)
    found = measured_from_file(tmp_path / "f", model, chunks)
    assert nlls == pytest.approx(exact.base_nll, abs=1e-12)
    assert found.base_nll == pytest.approx(exact.base_nll, abs=1e-12)
    assert found.nll == pytest.approx(exact.nll, abs=1e-12)
    assert (found.is_same == exact.is_same).all()
    assert (found.kl <= exact.kl + 1e-12).all()
    assert found.rest == pytest.approx(rest(base, chunks, k), abs=1e-12)
    # What is missing is the KL within the rest, of conditional probabilities.
    assert found.kl == pytest.approx(exact.kl - within_rest(base, model, chunks, k), abs=1e-10)
    if k == 40:
        assert found.kl == pytest.approx(exact.kl, abs=1e-12)


def rest(base: BigramModel, chunks: list[Chunk], k: int) -> np.ndarray:
    rows = [t for chunk in chunks for t in chunk.tokens[:-1]]
    p = np.sort(np.exp(base.log_p[rows]), axis=1)
    return p[:, : base.n_vocab - k].sum(axis=1)


def within_rest(base: BigramModel, model: BigramModel, chunks: list[Chunk], k: int) -> np.ndarray:
    rows = [t for chunk in chunks for t in chunk.tokens[:-1]]
    log_p, log_q = base.log_p[rows], model.log_p[rows]
    order = np.argsort(log_p, axis=1)[:, : base.n_vocab - k]
    log_p, log_q = (np.take_along_axis(x, order, axis=1) for x in (log_p, log_q))
    p, q = np.exp(log_p), np.exp(log_q)
    total_p, total_q = p.sum(axis=1), q.sum(axis=1)
    terms = (p * (log_p - log_q)).sum(axis=1)
    with np.errstate(divide="ignore", invalid="ignore"):
        own = total_p * np.log(total_p / total_q)
    return np.where(total_p > 0, terms - np.nan_to_num(own), 0)


@pytest.mark.parametrize("k", [1, 7, 40])
def test_a_model_is_no_way_from_its_own_file(tmp_path: Path, k: int) -> None:
    base = bigram()
    chunks = chunks_of(40)
    recorded(base, chunks, k, tmp_path / "f")
    found = measured_from_file(tmp_path / "f", bigram(max_rows=5, slice_rows=2), chunks)
    assert (found.kl == 0).all()
    assert (found.nll == found.base_nll).all()
    assert found.is_same.all()


def test_the_likeliest_of_equal_tokens_is_the_lowest_from_a_file_too(tmp_path: Path) -> None:
    base = bigram()
    base.table[:, [3, 17, 30]] = base.table.max() + 1
    model = BigramModel(base.table.copy())
    model.table[:, 3] -= 0.5  # now 17 is the lowest of the largest, and the file does not list it
    chunks = chunks_of(40)
    recorded(base, chunks, 1, tmp_path / "f")
    assert not measured_from_file(tmp_path / "f", model, chunks).is_same.any()
    model.table[:, 3] += 0.5
    assert measured_from_file(tmp_path / "f", model, chunks).is_same.all()


def test_logits_are_left_as_they_were() -> None:
    model = bigram()
    rows = model.table.copy()
    ids = np.argsort(-rows, axis=1)[:, :4].astype(np.uint32)
    known = from_file.look_up(model, rows, ids)
    assert (rows == model.table).all()
    assert known.log_total == pytest.approx(np.log(np.exp(np.float64(rows)).sum(axis=1)), rel=1e-14)
    assert (known.likeliest == rows.argmax(axis=1)).all()


def test_a_model_of_another_vocabulary_is_refused(tmp_path: Path) -> None:
    base, model = bigram(40), bigram(41)
    chunks = chunks_of(40)
    with pytest.raises(UsageError, match="base has a vocabulary of 40 tokens and model one of 41"):
        measured(base, model, chunks)
    recorded(base, chunks, 3, tmp_path / "f")
    with pytest.raises(UsageError, match="vocabulary of 40 tokens and model one of 41"):
        measured_from_file(tmp_path / "f", model, chunks)
    with pytest.raises(UsageError, match="model splits chunk 1 of the text into other tokens"):
        measured_from_file(tmp_path / "f", bigram(40), cut(text(100, 40, seed=9), HOW, None))


@pytest.mark.parametrize("at_fault", NAMES)
def test_logits_that_are_not_finite_are_refused_by_name(at_fault: str, tmp_path: Path) -> None:
    base, model = bigram(), bigram()
    chunks = chunks_of(40)
    recorded(base, chunks, 3, tmp_path / "f")
    (base if at_fault == "base" else model).table[chunks[1].tokens[4]] = np.nan
    with pytest.raises(ModelError, match=f"^{at_fault}: logits after token"):
        measured(base, model, chunks)
    if at_fault == "model":
        with pytest.raises(ModelError, match=r"^model: logits after token"):
            measured_from_file(tmp_path / "f", model, chunks)
    else:
        with pytest.raises(ModelError, match=r"^base: logits after token"):
            recorded(base, chunks, 3, tmp_path / "g")
        assert not (tmp_path / "g").exists()


@pytest.mark.jit
def test_compiled_models_are_exact_and_at_no_distance_from_themselves(tmp_path: Path) -> None:
    paths = [
        write_tiny(tmp_path / f"{name}.gguf", "qwen3", context=64, weight_format=name)
        for name in ("f32", "q4_0")
    ]
    how = protocol("llama.cpp", 48)
    chunks = cut(text(100, 200), how, None)
    with loaded(paths[0], context=48) as base, loaded(paths[1], context=48) as model:
        exact = measured(base, model, chunks)
        assert (measured(model, model, chunks[:1]).kl == 0).all()
        recorded(base, chunks, base.n_vocab, tmp_path / "all")
        recorded(base, chunks, 20, tmp_path / "some")
        for name, tolerance in (("all", 1e-12), ("some", float(exact.kl.max()))):
            found = measured_from_file(tmp_path / name, model, chunks)
            assert found.nll == pytest.approx(exact.nll, abs=1e-12)
            assert found.kl == pytest.approx(exact.kl, abs=tolerance)
            assert (found.kl <= exact.kl + 1e-12).all()
            assert (measured_from_file(tmp_path / name, base, chunks).kl == 0).all()
    with loaded(paths[0], context=48, backend="reference") as base:
        assert measured(base, base, chunks[:1]).kl.max() == 0
