"""Estimates before the work, and verification and reports after it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
from fake_quantize import Rounding
from tiny import write_tiny

from quantcli.checkpoint import Checkpoint, open_checkpoint
from quantcli.errors import CheckpointError, ResourceError, UsageError
from quantcli.quantize import estimate, verify
from quantcli.quantize.bpw import bits_to_keep, nominal_bits, resized
from quantcli.quantize.job import Job, Settings, prepare
from quantcli.quantize.mixes import mix
from quantcli.quantize.pipeline import run
from quantcli.quantize.recipe import Override, Recipe
from quantcli.quantize.report import Report, by_layer, document, kinds, page
from quantcli.quantize.results import ResultLog, TensorResult
from quantcli.quantize.sensitivity import PRIOR, Overlay, Sensitivity, group_of, measure


@pytest.fixture
def source(tmp_path: Path) -> Iterator[Checkpoint]:
    path = tmp_path / "source.gguf"
    write_tiny(path, "llama", weight_format="f16", n_layers=3, context=128, d_ff=256)
    with open_checkpoint(path) as checkpoint:
        yield checkpoint


@pytest.fixture
def job(source: Checkpoint) -> Job:
    return prepare(source, Settings(Recipe(mix("q4_0")), Rounding()))


@pytest.fixture
def written(job: Job, tmp_path: Path) -> Path:
    run(job, tmp_path / "out.gguf", n_threads=1)
    return tmp_path / "out.gguf"


def test_the_table_before_the_work_adds_up(job: Job) -> None:
    rows = estimate.table(job)
    assert sum(row.nbytes for row in rows) == job.nbytes
    assert sum(row.n_weights for row in rows) == job.n_weights
    assert sum(row.count for row in rows) == len(job.choices)
    assert {row.kind for row in rows} >= {"token_embd", "attn_q", "ffn_down", "output_norm"}


def test_what_a_type_stands_for_is_told_from_what_fallbacks_make_of_it(
    source: Checkpoint,
) -> None:
    theirs = prepare(source, Settings(Recipe(mix("q4_k_m"), policy="llama.cpp")))
    ours = prepare(source, Settings(Recipe(mix("q4_k_m"), policy="size")))
    assert ours.nbytes < theirs.nbytes
    assert ours.bits_per_weight <= nominal_bits(ours)
    assert bits_to_keep(theirs) is None
    assert bits_to_keep(ours) == nominal_bits(ours)


def test_the_size_of_a_type_is_kept_by_choosing_formats_anew(source: Checkpoint) -> None:
    job = prepare(source, Settings(Recipe(mix("q5_k_m"), policy="size")))
    bits = bits_to_keep(job)
    assert bits is not None
    kept = resized(job, bits, n_threads=2)
    assert bits * 0.98 < kept.bits_per_weight <= bits
    assert {c.reason for c in kept.choices} == {"mix", "size", "kept"}
    for before, after in zip(job.choices, kept.choices, strict=True):
        assert (after.reason == "size") == (before.reason == "fallback")
    assert [c.wanted for c in kept.choices] == [c.wanted for c in job.choices]


def test_a_size_that_no_fitting_block_reaches_is_not_kept(source: Checkpoint) -> None:
    job = prepare(source, Settings(Recipe(mix("q2_k"), policy="size")))
    assert bits_to_keep(job) is None
    with pytest.raises(UsageError, match="cannot be reached: this model takes at least"):
        resized(job, nominal_bits(job), n_threads=1)


def test_memory_grows_with_threads_and_by_layer_with_hessians_and_tokens(
    source: Checkpoint, job: Job
) -> None:
    assert estimate.memory_needed(job, 8) > estimate.memory_needed(job, 1)

    def layered(n_tokens: int) -> int:
        settings = Settings(Recipe(mix("q4_0")), walk=lambda _: None, n_tokens=n_tokens)  # type: ignore[arg-type, return-value]
        return estimate.memory_needed(prepare(source, settings), 1)

    layer = sum(c.n_weights for c in job.choices if c.name.startswith("blk.0."))
    hessians = 2 * 4 * 256**2  # of the widest input
    assert layered(0) == estimate.memory_needed(job, 1) + int(1.3 * 4 * layer) + hessians
    assert layered(1000) - layered(0) == 2 * 4 * 1000 * (job.hyper.d_model + 256)


def test_work_that_does_not_fit_in_memory_is_refused_with_the_numbers(job: Job) -> None:
    estimate.require_memory(job, 1, 1 << 40)
    with pytest.raises(ResourceError, match=r"takes about \d+ MB of memory and 1\.00 MB are"):
        estimate.require_memory(job, 1, 10**6)


@pytest.mark.jit
def test_time_grows_with_tokens_and_shrinks_with_threads(source: Checkpoint, job: Job) -> None:
    def seconds(n_tokens: int, n_threads: int) -> float:
        settings = Settings(
            Recipe(mix("q4_0")),
            Rounding("hessian"),
            walk=lambda _: None,  # type: ignore[arg-type, return-value]
            n_tokens=n_tokens,
        )
        return estimate.seconds_needed(prepare(source, settings), n_threads)

    assert 0 < estimate.seconds_needed(job, 1) < 60
    assert seconds(10**7, 1) > 3 * seconds(10**4, 1)
    assert seconds(10**7, 8) < seconds(10**7, 1)


def test_a_file_that_is_what_was_meant_passes(job: Job, written: Path) -> None:
    verify.check_file(job, written)


def test_a_file_with_another_key_or_tensor_does_not_pass(
    source: Checkpoint, job: Job, written: Path
) -> None:
    other = prepare(source, Settings(Recipe(mix("q5_0")), Rounding()))
    with pytest.raises(CheckpointError, match="verification found"):
        verify.check_file(other, written)
    named = prepare(
        source, Settings(Recipe(mix("q4_0")), Rounding(), origin={"general.name": "other"})
    )
    with pytest.raises(CheckpointError, match=r"another value of key general\.name"):
        verify.check_file(named, written)


def test_a_file_is_measured_against_its_source_and_lets_a_sample_be_read(
    job: Job, written: Path
) -> None:
    found = verify.measure(job.checkpoint, written, n_threads=1, n_chunks=1, backend="reference")
    assert found.divergence is not None
    assert found.divergence.kl.value > 0
    assert found.perplexity == found.divergence.perplexity
    assert found.n_scored == 128 - 1 - 64
    assert found.sample.startswith("Once upon a time")
    assert found.note == ""


def test_a_source_that_does_not_fit_leaves_perplexity(
    job: Job, written: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = verify.measure(job.checkpoint, written, n_threads=1, n_chunks=1, backend="reference")
    monkeypatch.setattr(verify, "_fits", lambda *_: False)
    found = verify.measure(job.checkpoint, written, n_threads=1, n_chunks=1, backend="reference")
    assert found.divergence is None
    assert found.perplexity.value == pytest.approx(whole.perplexity.value, rel=1e-6)
    assert "does not fit" in found.note


def report(job: Job, path: Path) -> Report:
    log = [TensorResult(**vars_of(r)) for r in run(job, path, n_threads=1)]
    return Report(
        "source", str(path), "rounding", "q4_0", {"text": "a & b"}, log, 1000, 1.5, 2 << 20
    )


def vars_of(result: TensorResult) -> dict[str, object]:
    return {name: getattr(result, name) for name in result.__dataclass_fields__}


class Tags(HTMLParser):
    """Collects what a page refers to, and whether its tags are balanced."""

    VOID = ("meta", "line", "circle", "path", "rect", "br")

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.addresses: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.addresses += [v or "" for k, v in attrs if k in ("src", "href", "xlink:href")]
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag not in self.VOID:
            assert self.open.pop() == tag


def test_the_page_is_whole_and_needs_no_other_file(job: Job, tmp_path: Path) -> None:
    text = page(report(job, tmp_path / "o.gguf"))
    tags = Tags()
    tags.feed(text)
    assert tags.open == []
    assert tags.addresses == []
    for part in ("Size", "Error by layer", "Error against bits", "Bits by layer", "a &amp; b"):
        assert part in text
    assert "blk.2.ffn_down.weight" in text


def test_the_document_has_every_tensor_and_can_be_written_as_json(job: Job, tmp_path: Path) -> None:
    found = json.loads(json.dumps(document(report(job, tmp_path / "o.gguf"))))
    assert [t["name"] for t in found["tensors"]] == [c.name for c in job.choices]
    by_name = {t["name"]: t for t in found["tensors"]}
    assert by_name["blk.1.attn_q.weight"]["layer"] == 1
    assert by_name["blk.1.attn_q.weight"]["error"] == 0.25
    assert by_name["output_norm.weight"]["layer"] is None
    assert found["bits_per_weight"] == pytest.approx(job.bits_per_weight)


def test_kinds_and_lines_gather_the_layers(job: Job, tmp_path: Path) -> None:
    made = report(job, tmp_path / "o.gguf")
    by_kind = {kind.name: kind for kind in kinds(made.results)}
    assert sum(kind.nbytes for kind in by_kind.values()) == job.nbytes
    assert by_kind["ffn_up"].count == 3
    assert by_kind["ffn_up"].error == by_kind["ffn_up"].worst == 0.25
    assert by_kind["attn_norm"].error is None
    lines = {line.label: list(line.points) for line in by_layer(made.results, "error")}
    assert lines["ffn_up"] == [(0.0, 0.25), (1.0, 0.25), (2.0, 0.25)]
    assert "attn_norm" not in lines


def test_a_log_survives_a_line_that_was_cut(job: Job, tmp_path: Path) -> None:
    results = run(job, tmp_path / "o.gguf", n_threads=1)
    path = tmp_path / "log"
    log = ResultLog(path, resume=False)
    for result in results:
        log.add(result)
    raw = path.read_bytes()
    path.write_bytes(raw[:-20])
    read = ResultLog(path, resume=True).results
    assert list(read.values()) == results[:-1]
    ResultLog(path, resume=False)
    assert not path.exists()


def test_groups_tell_the_first_and_last_layers_apart() -> None:
    groups = [group_of(f"blk.{i}.ffn_down.weight", 16) for i in range(16)]
    assert groups == ["ffn_down first"] * 2 + ["ffn_down middle"] * 12 + ["ffn_down last"] * 2
    assert group_of("output.weight", 16) == "output"
    assert {group_of(f"blk.0.{k}.weight", 1) for k in ("attn_v",)} == {"attn_v first"}


def test_what_was_not_probed_is_taken_from_other_models() -> None:
    known = Sensitivity(16, measured={"ffn_down first": 7.0})
    assert known.of("blk.0.ffn_down.weight") == 7.0
    assert known.of("blk.8.ffn_down.weight") == PRIOR["ffn_down middle"]
    tied, apart = Sensitivity(16, is_tied=True), Sensitivity(16)
    assert tied.of("token_embd.weight") > apart.of("token_embd.weight")
    assert apart.of("blk.3.something.weight") > 0


@pytest.mark.jit
def test_a_probe_finds_a_cost_for_every_group(source: Checkpoint, job: Job) -> None:
    tokens = list(range(20, 60))
    free = [c for c in job.choices if c.name in ("blk.1.ffn_down.weight", "output.weight")]
    found = measure(source, free, tokens, {}, n_layers=3, n_threads=1, backend="reference").measured
    assert set(found) == {"ffn_down middle", "output"}
    assert all(value > 0 for value in found.values())


def test_an_overlay_shows_its_own_tensors_and_the_rest_of_the_base(source: Checkpoint) -> None:
    name = "blk.0.attn_q.weight"
    info = source.tensors[name]
    data = np.arange(info.nbytes, dtype=np.uint8)
    overlay = Overlay(source, {name: (info, data)})
    assert np.array_equal(overlay.tensor(name).data, data)
    other = "blk.0.attn_k.weight"
    assert np.array_equal(overlay.tensor(other).data, source.tensor(other).data)
    part = np.empty(7, np.uint8)
    overlay.read_into(name, part, 3)
    assert part.tolist() == list(range(3, 10))


def test_overrides_survive_a_choice_by_size(source: Checkpoint) -> None:
    recipe = Recipe(
        mix("q4_0"), (Override.parse("ffn_down=q8_0"),), exact={"blk.0.ffn_down.weight": "q4_0"}
    )
    chosen = {c.name: c for c in prepare(source, Settings(recipe)).choices}
    assert chosen["blk.0.ffn_down.weight"].format.name == "q8_0"
