"""Loading a model and running it: what is refused, what is reported, what a NaN does."""

from __future__ import annotations

import gc
import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
from loaded_model import batch_of, feed, loaded, step
from logit_cases import prompt
from tiny import Tiny, write_model, write_tiny

from quantcli import catalog
from quantcli.checkpoint import open_checkpoint
from quantcli.errors import (
    CheckpointError,
    QuantcliError,
    ResourceError,
    ShapeError,
    UnknownName,
    UsageError,
)
from quantcli.formats import F32
from quantcli.kernels import matmul
from quantcli.runtime.compiled import CompiledBackend
from quantcli.runtime.model import BACKENDS, Batch, Model
from quantcli.runtime.sizing import size_model

pytestmark = pytest.mark.jit


@dataclass(frozen=True)
class Broken(Tiny):
    """A tiny model with one NaN."""

    where: str = ""

    def weights(self) -> dict[str, F32]:
        """Return every tensor; the first value of one is NaN."""
        weights = super().weights()
        weights[self.where].reshape(-1)[0] = np.nan
        return weights


@dataclass(frozen=True)
class Incomplete(Tiny):
    """A tiny model without one of its tensors."""

    where: str = ""

    def weights(self) -> dict[str, F32]:
        """Return every tensor but one."""
        return {name: w for name, w in super().weights().items() if name != self.where}


@pytest.fixture(scope="module")
def tiny_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a small model that nobody changes."""
    return write_tiny(tmp_path_factory.mktemp("models") / "m.gguf", "llama")


def workers() -> set[threading.Thread]:
    """Return the threads of executors that are alive."""
    return {t for t in threading.enumerate() if t.name.startswith("quantcli-")}


@contextmanager
def no_thread_left() -> Iterator[None]:
    """Check that no thread of a model outlives the block."""
    before = workers()
    yield
    assert workers() <= before


# ---- what a loaded model tells of itself


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("cache", catalog.names("cache"))
def test_a_model_says_what_it_is(backend: str, cache: str, tiny_path: Path) -> None:
    options = {"backend": backend, "cache": cache, "context": 100, "n_sequences": 3}
    with loaded(tiny_path, **options) as model:
        assert (model.n_vocab, model.context, model.n_threads) == (273, 100, 2)
        assert model.max_rows >= 64
        assert model.kv.context == 100
        assert model.kv.n_pages * model.kv.page_size >= 300
        assert model.plan.logits.width == model.n_vocab
        assert model.memory.context == 100
        assert model.memory.fits
        assert feed(model, [1, 2, 3]).shape == (3, 273)
        model.kv.check()


def test_without_a_context_a_model_has_its_own(tiny_path: Path) -> None:
    with loaded(tiny_path) as model:
        assert model.context == 512


def test_without_a_number_threads_are_chosen(tiny_path: Path) -> None:
    with loaded(tiny_path, n_threads=None) as model:
        assert 1 <= model.n_threads <= (os.cpu_count() or 1)


def test_progress_tells_how_much_of_the_weights_is_read(tiny_path: Path) -> None:
    said: list[tuple[str, int, int]] = []
    with loaded(tiny_path, progress=lambda *args: said.append(args)):
        pass
    loading = [(done, total) for what, done, total in said if what == "loading"]
    assert loading == sorted(loading)
    assert loading[-1][0] == loading[-1][1] > 100_000
    kernels = [(done, total) for what, done, total in said if "kernels" in what]
    assert kernels
    assert kernels[-1][0] == kernels[-1][1] > 0


def test_logits_stay_until_the_next_forward(tiny_path: Path) -> None:
    with loaded(tiny_path) as model:
        model.kv.reserve(0, 4)
        logits = model.forward(batch_of([(0, 0, [1, 2])]))
        kept = logits.copy()
        gc.collect()
        assert np.array_equal(logits, kept)
        assert logits.dtype == np.float32


@pytest.mark.parametrize("cache", catalog.names("cache"))
@pytest.mark.parametrize("context", [1, 2, 15, 17, 63, 65])
def test_any_context_can_be_filled_to_its_end(context: int, cache: str, tiny_path: Path) -> None:
    tokens = prompt(273, 65)
    with loaded(tiny_path, context=65) as model:
        expected = feed(model, tokens)
    with loaded(tiny_path, context=context, cache=cache, n_sequences=2) as model:
        for sequence in (0, 1):
            found = feed(model, tokens[:context], sequence=sequence, chunk=40)
            assert found.tobytes() == expected[:context].tobytes()
            with pytest.raises(ResourceError, match=f"{context + 1} tokens do not fit the context"):
                model.kv.reserve(sequence, context + 1)


# ---- more outputs than the head takes at a time


def test_outputs_in_several_slices_are_the_same_bytes(tiny_path: Path) -> None:
    tokens = prompt(273, 64)
    with loaded(tiny_path, context=64) as model:
        expected = feed(model, tokens)
    with open_checkpoint(tiny_path) as checkpoint:
        for max_outputs in (1, 3, 64):
            sizing = replace(size_model(checkpoint, context=64), max_outputs=max_outputs)
            cache = sizing.cache("paged")
            backend = CompiledBackend(checkpoint, sizing, cache, 2, "f16")
            model = Model(sizing, cache, backend, 2)
            for rows in (list(range(64)), [63], [], list(range(64))[::-1], [5] * 7):
                assert np.array_equal(step(model, [(0, 0, tokens)], rows), expected[rows])
                slices = [part.copy() for part in model.slices(batch_of([(0, 0, tokens)], rows))]
                assert all(0 < len(part) <= max_outputs for part in slices)
                together = np.concatenate([*slices, expected[:0]])
                assert together.tobytes() == expected[rows].tobytes()
            model.close()


# ---- what is refused


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("token", [-1, 273, 10**12])
def test_a_token_id_outside_the_vocabulary_is_refused(
    token: int, backend: str, tiny_path: Path
) -> None:
    with loaded(tiny_path, backend=backend) as model:
        with pytest.raises(UsageError, match=f"token id {token} is not in the vocabulary of 273"):
            step(model, [(0, 0, [1, token, 2])])
        model.kv.free(0)
        assert np.isfinite(feed(model, [0, 272])).all()


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"cache": "pagd"}, UnknownName, "cache 'pagd'.*Did you mean paged"),
        ({"kv_type": "q4_0"}, UnknownName, "'q4_0'.*Known: f16, q8_0"),
        ({"backend": "gpu"}, UsageError, "unknown backend 'gpu'.*Known: compiled, reference"),
        ({"n_threads": 0}, UsageError, "0 threads: give a number from 1 to 1024"),
        ({"n_threads": -3}, UsageError, "-3 threads"),
        ({"n_threads": 2000}, UsageError, "2000 threads"),
        ({"context": -5}, UsageError, "-5 is negative"),
        ({"context": 10**12}, ResourceError, r"10{12} tokens needs [\d.]+ GB .*is available"),
        ({"context": 10**9, "n_sequences": 10**6}, ResourceError, "weights.*KV cache.*buffers"),
    ],
)
def test_options_that_make_no_sense_are_refused(
    options: dict[str, object], error: type[QuantcliError], message: str, tiny_path: Path
) -> None:
    with (
        no_thread_left(),
        pytest.raises(error, match=message) as caught,
        loaded(tiny_path, **options),
    ):
        raise AssertionError("it loaded")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("head_dim", "kv_type", "message"),
    [
        (24, "f16", "heads of 24 values do not divide into runs of 16, which the f16 KV cache"),
        (8, "f16", "heads of 8 values.*Use --backend reference"),
        (48, "q8_0", "heads of 48 values do not divide into runs of 32.*Use --kv-type f16"),
        (40, "q8_0", "heads of 40 values.*Use --backend reference"),
    ],
)
def test_heads_that_do_not_fit_the_cache_are_refused(
    head_dim: int, kv_type: str, message: str, tmp_path: Path
) -> None:
    path = write_tiny(tmp_path / "m.gguf", "llama", head_dim=head_dim, weight_format="f32")
    before = workers()
    with pytest.raises(ShapeError, match=message) as caught, loaded(path, kv_type=kv_type):
        raise AssertionError("it loaded")
    assert workers() == before, caught
    with loaded(path, backend="reference" if head_dim % 16 else "compiled") as model:
        assert np.isfinite(feed(model, [1, 2, 3])).all()


def test_a_model_without_one_of_its_tensors_is_refused(tmp_path: Path) -> None:
    path = write_model(tmp_path / "m.gguf", Incomplete("llama", where="blk.1.ffn_up.weight"))
    message = r"tensor blk\.1\.ffn_up\.weight is missing"
    with no_thread_left(), pytest.raises(CheckpointError, match=message), loaded(path):
        raise AssertionError("it loaded")


@pytest.mark.skipif(sys.platform == "win32", reason="an open file cannot be cut there")
@pytest.mark.parametrize("kept", [0.5, 0.999])
def test_a_file_cut_while_it_is_open_is_an_error(
    kept: float, tiny_path: Path, tmp_path: Path
) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(tiny_path.read_bytes())
    before = workers()
    with open_checkpoint(path) as checkpoint:
        os.truncate(path, int(kept * path.stat().st_size))
        with pytest.raises(CheckpointError, match="ends at byte") as caught:
            Model.load(checkpoint, n_threads=3)
        assert workers() == before, caught  # though the traceback still holds what was made


def test_frequency_factors_that_are_none_are_refused(tmp_path: Path) -> None:
    tiny = Broken("llama", rope_freqs=True, where="rope_freqs.weight")
    path = write_model(tmp_path / "m.gguf", tiny)
    with (
        no_thread_left(),
        pytest.raises(CheckpointError, match=r"rope_freqs\.weight must hold finite numbers"),
        loaded(path),
    ):
        raise AssertionError("it loaded")


def test_positions_without_slots_are_our_own_mistake(tiny_path: Path) -> None:
    with loaded(tiny_path, context=32) as model:
        model.kv.reserve(0, 3)
        for batch in (
            Batch([1], [32], [0], [0]),  # beyond the context
            Batch([1], [-1], [0], [0]),
            Batch([1], [0], [0], [1]),  # a row that is not there
            Batch([1, 2], [0], [0], []),
            Batch([], [], [], []),
        ):
            with pytest.raises(AssertionError):
                model.forward(batch)


# ---- closing


def test_threads_end_with_the_model(tiny_path: Path) -> None:
    gc.collect()
    before = workers()
    with open_checkpoint(tiny_path) as checkpoint:
        model = Model.load(checkpoint, n_threads=4)
        assert len(workers() - before) == 3
        model.close()
        assert workers() == before
        model.close()
        model = Model.load(checkpoint, n_threads=3)
        assert len(workers() - before) == 2
        del model
        gc.collect()
        assert workers() == before


@pytest.mark.parametrize("what", ["preparing kernels", "loading"])
def test_threads_end_when_loading_is_broken_off(what: str, tiny_path: Path) -> None:
    before = workers()

    def progress(doing: str, done: int, total: int) -> None:
        if doing.startswith(what) and done == total:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt) as caught, loaded(tiny_path, progress=progress):
        raise AssertionError("it loaded")
    assert workers() == before, caught


def test_a_closed_model_computes_nothing(tiny_path: Path) -> None:
    with loaded(tiny_path) as model:
        model.kv.reserve(0, 1)
        model.close()
        with pytest.raises(AssertionError, match="closed"):
            model.forward(batch_of([(0, 0, [1])]))


def test_a_model_runs_after_its_file_was_closed(tiny_path: Path) -> None:
    with open_checkpoint(tiny_path) as checkpoint:
        model = Model.load(checkpoint, n_threads=2)
    assert np.isfinite(feed(model, [1, 2, 3])).all()
    model.close()


# ---- a NaN in the file


INNER = (
    "attn_norm.weight",
    "attn_q.weight",
    "attn_k.weight",
    "attn_v.weight",
    "attn_output.weight",
    "ffn_norm.weight",
    "ffn_gate.weight",
    "ffn_up.weight",
    "ffn_down.weight",
    "attn_q.bias",
    "attn_k.bias",
    "attn_v.bias",
    "attn_q_norm.weight",
    "attn_k_norm.weight",
    "post_attention_norm.weight",
    "post_ffw_norm.weight",
)


@pytest.mark.parametrize("kv_type", ["f16", "q8_0"])
@pytest.mark.parametrize("name", [*(f"blk.0.{name}" for name in INNER), "output_norm.weight"])
def test_a_nan_inside_a_model_reaches_every_logit(name: str, kv_type: str, tmp_path: Path) -> None:
    tiny = Broken("gemma3", weight_format="f32", biases=True, where=name, n_layers=2)
    with loaded(write_model(tmp_path / "m.gguf", tiny), kv_type=kv_type) as model:
        assert np.isnan(feed(model, [5, 6, 7, 8])).all()
        assert np.isnan(feed(model, [5, 6, 7, 8], sequence=0, start=4, chunk=1)).all()


HAVE_NAN = [name for name in matmul.names() if name not in ("mxfp4", "nvfp4")]


@pytest.mark.parametrize("weight_format", HAVE_NAN)
def test_a_nan_in_a_matrix_of_any_format_reaches_every_logit(
    weight_format: str, tmp_path: Path
) -> None:
    path = write_tiny(tmp_path / "m.gguf", "qwen3", weight_format=weight_format)
    with open_checkpoint(path) as checkpoint:
        info = checkpoint.tensors["blk.0.ffn_up.weight"]
        fields = info.format.block.fields
        assert fields
        field = next(name for name in ("w", "d", "scales") if name in fields)
        offset = info.offset + fields[field][1]
    data = bytearray(path.read_bytes())
    nan = {"f32": np.float32(np.nan).tobytes(), "bf16": b"\xc0\x7f", "iq1_m": b"\x00\xf0" * 4}
    patch = nan.get(weight_format, np.float16(np.nan).tobytes())
    data[offset : offset + len(patch)] = patch
    path.write_bytes(data)
    with loaded(path) as model:
        assert np.isnan(feed(model, [5, 6, 7])).all()
        assert np.isnan(feed(model, [5], start=3)).all()


def test_a_nan_in_an_embedding_or_output_row_stays_with_its_token(tmp_path: Path) -> None:
    tiny = Broken("qwen2", weight_format="f16", where="token_embd.weight")
    with loaded(write_model(tmp_path / "e.gguf", tiny), n_sequences=2) as model:
        assert np.isfinite(step(model, [(0, 0, [5, 6])])).all()
        found = step(model, [(0, 2, [0, 5, 6]), (1, 0, [5, 6, 7])])
        assert np.isnan(found[:3]).all()
        assert np.isfinite(found[3:]).all()
    tiny = Broken("qwen2", weight_format="f16", where="output.weight")
    with loaded(write_model(tmp_path / "o.gguf", tiny)) as model:
        found = feed(model, [5, 0, 5])
        assert np.isnan(found[:, 0]).all()
        assert np.isfinite(found[:, 1:]).all()
