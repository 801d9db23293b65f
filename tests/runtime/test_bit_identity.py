"""A token's logits are the same bytes whatever company, chunks, threads, cache and past they had.

Every test compares bytes with what one thread computes for one sequence alone, in steps as large
as they can be.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from loaded_model import batch_of, fed, feed, loaded, step
from logit_cases import prompt
from tiny import write_tiny

from quantcli.errors import Cancelled
from quantcli.formats import F32
from quantcli.runtime.model import Batch, Model

pytestmark = pytest.mark.jit

KV_TYPES = ("f16", "q8_0")
CACHES = ("contiguous", "paged")
N_VOCAB = 270  # no more than any of the models has

# Between them: all weight formats, GQA, MQA and MHA, windows, both kinds of biases, tied and not.
MODELS: dict[str, dict[str, object]] = {
    "llama": {"weight_format": "mix", "biases": True, "n_kv_heads": 4},
    "qwen2": {"weight_format": "mix_256", "biases": True, "n_kv_heads": 1, "tied": True},
    "qwen3": {"weight_format": ("q8_0", "q6_k"), "head_dim": 64, "rope_scaling": "yarn"},
    "gemma3": {"weight_format": "mix", "n_layers": 3, "window_pattern": 2, "window": 300},
}
CONTEXT = 2112  # of long prompts: many chunks of keys


@pytest.fixture(scope="module")
def path_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Return a function that writes a model the first time it is asked for."""
    folder = tmp_path_factory.mktemp("models")

    @cache
    def write(arch: str) -> Path:
        options = MODELS[arch] | {"context": CONTEXT}
        return write_tiny(folder / f"{arch}.gguf", arch, **options)

    return write


@pytest.fixture(scope="module")
def alone(path_of: Callable[[str], Path]) -> Callable[..., F32]:
    """Return a function that gives the logits everything else is compared with."""

    @cache
    def logits(arch: str, n_tokens: int, kv_type: str = "f16") -> F32:
        tokens = prompt(N_VOCAB, n_tokens)
        return fed(path_of(arch), tokens, n_threads=1, kv_type=kv_type, context=CONTEXT)

    return logits


def assert_same(found: F32, expected: F32) -> None:
    """Compare bytes; say how many rows differ and by how much."""
    if found.tobytes() != expected.tobytes():
        assert found.shape == expected.shape
        rows = np.flatnonzero((found != expected).any(axis=-1))
        error = np.abs(found - expected).max()
        raise AssertionError(f"{len(rows)} of {len(found)} rows differ, by up to {error}: {rows}")


@pytest.mark.parametrize("kv_type", KV_TYPES)
@pytest.mark.parametrize("cache_kind", CACHES)
@pytest.mark.parametrize("n_threads", [1, 2, 3, 4])
@pytest.mark.parametrize("arch", MODELS)
def test_chunks_threads_and_caches_change_nothing(
    arch: str,
    n_threads: int,
    cache_kind: str,
    kv_type: str,
    path_of: Callable[[str], Path],
    alone: Callable[..., F32],
) -> None:
    tokens, expected = prompt(N_VOCAB, 140), alone(arch, 140, kv_type)
    options = {"n_threads": n_threads, "cache": cache_kind, "kv_type": kv_type, "context": 144}
    with loaded(path_of(arch), **options) as model:
        for chunk, n_tokens in ((1, 20), (7, 80), (64, 140), (140, 140)):
            found = feed(model, tokens[:n_tokens], chunk=chunk)
            assert_same(found, expected[:n_tokens])
            model.kv.free(0)


@pytest.mark.parametrize("n_threads", [15, 18])
def test_more_threads_than_work_or_counters_change_nothing(
    n_threads: int, path_of: Callable[[str], Path], alone: Callable[..., F32]
) -> None:
    """An op has 16 counters."""
    tokens, expected = prompt(N_VOCAB, 260), alone("qwen3", 260)
    with loaded(path_of("qwen3"), n_threads=n_threads, context=272) as model:
        assert_same(feed(model, tokens[:3], chunk=1), expected[:3])
        assert_same(feed(model, tokens[3:258], start=3), expected[3:258])
        assert_same(feed(model, tokens[258:], start=258, chunk=1), expected[258:])


@pytest.mark.parametrize("arch", MODELS)
def test_steps_of_1_to_64_rows_of_a_sequence_change_nothing(
    arch: str, path_of: Callable[[str], Path], alone: Callable[..., F32]
) -> None:
    n_tokens = sum(range(1, 65))
    tokens, expected = prompt(N_VOCAB, n_tokens), alone(arch, n_tokens)
    with loaded(path_of(arch), cache="paged", context=CONTEXT) as model:
        start = 0
        for n_rows in range(1, 65):
            found = step(model, [(0, start, tokens[start : start + n_rows])])
            assert_same(found, expected[start : start + n_rows])
            start += n_rows


@pytest.mark.parametrize("kv_type", KV_TYPES)
@pytest.mark.parametrize("arch", MODELS)
def test_steps_of_1_to_64_sequences_change_nothing(
    arch: str, kv_type: str, path_of: Callable[[str], Path]
) -> None:
    texts = [prompt(N_VOCAB, 150)[i : i + 65] for i in range(64)]
    options = {"kv_type": kv_type, "context": 80, "n_sequences": 64}
    with loaded(path_of(arch), n_threads=1, **options) as model:
        expected = [feed(model, texts[i], sequence=i) for i in range(0, 64, 9)]
    with loaded(path_of(arch), cache="paged", **options) as model:
        for n_rows in range(1, 65):  # sequence i joins in step i + 1
            found = step(
                model, [(i, n_rows - 1 - i, [texts[i][n_rows - 1 - i]]) for i in range(n_rows)]
            )
            for wanted, i in enumerate(range(0, n_rows, 9)):
                position = n_rows - 1 - i
                assert_same(found[i : i + 1], expected[wanted][position : position + 1])


def shuffled(parts: Sequence[tuple[int, int, Sequence[int]]], seed: int) -> tuple[Batch, list[int]]:
    """Return parts as a step whose sequences alternate at random, and where each row came from."""
    whole = batch_of(parts)
    random = np.random.RandomState(seed)
    order = random.permutation(whole.sequences)
    rows: list[int] = []
    taken: dict[int, int] = {}
    for sequence in order.tolist():  # rows of one sequence stay in order
        mine = [row for row, s in enumerate(whole.sequences) if s == sequence]
        rows.append(mine[taken.setdefault(sequence, 0)])
        taken[sequence] += 1
    batch = Batch(
        [whole.tokens[row] for row in rows],
        [whole.positions[row] for row in rows],
        [whole.sequences[row] for row in rows],
        list(range(len(rows))),
    )
    return batch, rows


@pytest.mark.parametrize("n_threads", [1, 2, 3])
@pytest.mark.parametrize("arch", MODELS)
def test_sequences_in_one_step_in_any_order_change_nothing(
    arch: str, n_threads: int, path_of: Callable[[str], Path], alone: Callable[..., F32]
) -> None:
    tokens, expected = prompt(N_VOCAB, 400), alone(arch, 400)
    lengths = {0: 400, 1: 60, 2: 17, 3: 301}
    with loaded(
        path_of(arch), n_threads=n_threads, cache="paged", context=400, n_sequences=4
    ) as model:
        done = dict.fromkeys(lengths, 0)
        seed = 0
        while any(done[s] < length for s, length in lengths.items()):
            parts = [
                (s, done[s], tokens[done[s] : min(length, done[s] + 20 * (s + 1))])
                for s, length in lengths.items()
                if done[s] < length
            ]
            for s, start, ids in parts:
                model.kv.reserve(s, start + len(ids))
                done[s] += len(ids)
            batch, _ = shuffled(parts, seed)
            found = model.forward(batch)
            assert_same(found, expected[batch.positions])
            seed += 1


@pytest.mark.parametrize("kv_type", KV_TYPES)
@pytest.mark.parametrize("cache_kind", CACHES)
@pytest.mark.parametrize("n_threads", [1, 2, 4])
@pytest.mark.parametrize("arch", MODELS)
def test_single_rows_behind_a_long_past_are_as_in_a_prompt(
    arch: str,
    n_threads: int,
    cache_kind: str,
    kv_type: str,
    path_of: Callable[[str], Path],
    alone: Callable[..., F32],
) -> None:
    """Few rows with a long past share its chunks among threads; rows of a prompt do not."""
    tokens, expected = prompt(N_VOCAB, 1030), alone(arch, 1030, kv_type)
    options = {"n_threads": n_threads, "cache": cache_kind, "kv_type": kv_type, "context": 1040}
    with loaded(path_of(arch), **options) as model:
        start = 0
        for stop, chunk in ((254, 254), (259, 1), (511, 252), (514, 1), (1023, 64), (1026, 1)):
            found = feed(model, tokens[start:stop], start=start, chunk=chunk)
            assert_same(found, expected[start:stop])
            start = stop


@pytest.mark.parametrize("n_threads", [2, 4])
@pytest.mark.parametrize("arch", MODELS)
def test_a_long_and_a_short_sequence_share_a_step(
    arch: str, n_threads: int, path_of: Callable[[str], Path], alone: Callable[..., F32]
) -> None:
    tokens, expected = prompt(N_VOCAB, 1030), alone(arch, 1030)
    with loaded(path_of(arch), n_threads=n_threads, context=1040, n_sequences=2) as model:
        feed(model, tokens[:1000], sequence=0)
        feed(model, tokens[:255], sequence=1)
        for i in range(4):
            found = step(
                model, [(0, 1000 + i, [tokens[1000 + i]]), (1, 255 + i, [tokens[255 + i]])]
            )
            assert_same(found, expected[[1000 + i, 255 + i]])


@pytest.mark.parametrize("arch", MODELS)
def test_wanting_few_rows_or_none_changes_nothing(
    arch: str, path_of: Callable[[str], Path], alone: Callable[..., F32]
) -> None:
    tokens, expected = prompt(N_VOCAB, 60), alone(arch, 60)
    with loaded(path_of(arch), context=64) as model:
        for rows in ([59], [], [0], [3, 17, 58], [58, 17, 3], [5, 5], list(range(1, 60))):
            found = step(model, [(0, 0, tokens)], rows)
            assert_same(found, expected[rows])
            assert found.shape == (len(rows), model.n_vocab)
        assert_same(step(model, [(0, 0, tokens[:30])], []), expected[:0])
        assert_same(step(model, [(0, 30, tokens[30:31])], []), expected[:0])
        assert_same(step(model, [(0, 31, tokens[31:32])], [0]), expected[31:32])


@pytest.mark.parametrize("cache_kind", CACHES)
@pytest.mark.parametrize("arch", MODELS)
def test_a_sequence_cut_back_and_fed_again_forgets_what_was_cut(
    arch: str, cache_kind: str, path_of: Callable[[str], Path], alone: Callable[..., F32]
) -> None:
    tokens, expected = prompt(N_VOCAB, 140), alone(arch, 140)
    with loaded(path_of(arch), cache=cache_kind, context=144) as model:
        feed(model, tokens[:100])
        for keep in (99, 64, 63, 17, 1, 0):
            model.kv.truncate(0, keep)
            feed(model, tokens[::-1][: 140 - keep], start=keep, chunk=50)  # another past
            model.kv.truncate(0, keep)
            assert_same(feed(model, tokens[keep:], start=keep, chunk=33), expected[keep:])


@pytest.mark.parametrize("kv_type", KV_TYPES)
@pytest.mark.parametrize("cache_kind", CACHES)
@pytest.mark.parametrize("arch", MODELS)
def test_what_lies_in_slots_that_nobody_wrote_changes_nothing(
    arch: str,
    cache_kind: str,
    kv_type: str,
    path_of: Callable[[str], Path],
    alone: Callable[..., F32],
) -> None:
    tokens, expected = prompt(N_VOCAB, 140), alone(arch, 140, kv_type)
    options = {"cache": cache_kind, "kv_type": kv_type, "context": 144}
    with loaded(path_of(arch), **options) as model:
        memory = model._backend._kv._memory  # type: ignore[attr-defined]
        np.frombuffer(memory, np.uint8)[:] = 0xFF  # NaN as a half, as a key and as a scale
        assert_same(feed(model, tokens, chunk=31), expected)
        model.kv.free(0)
        assert_same(feed(model, tokens[:5], chunk=1), expected[:5])


@pytest.mark.parametrize("n_threads", [1, 2, 3])
@pytest.mark.parametrize("arch", ["qwen3", "gemma3"])
def test_a_step_broken_off_and_done_again_gives_the_same(
    arch: str, n_threads: int, tmp_path: Path
) -> None:
    options = MODELS[arch] | {"n_layers": 24}  # a step long enough to be cancelled in the middle
    path, tokens = write_tiny(tmp_path / "m.gguf", arch, **options), prompt(N_VOCAB, 250)
    expected = fed(path, tokens, n_threads=1, context=256)
    with loaded(path, n_threads=n_threads, context=256) as model:
        n_broken_off = 0
        for attempt in range(200):
            if not is_broken_off(model, tokens, wait=1000 * (attempt % 40)):
                continue
            n_broken_off += 1
            assert_same(feed(model, tokens[:200], chunk=200), expected[:200])
            assert_same(feed(model, tokens[200:], start=200, chunk=25), expected[200:])
            model.kv.truncate(0, 0)
            if n_broken_off == 8:
                break
        assert n_broken_off > 0


def is_broken_off(model: Model, tokens: list[int], wait: int) -> bool:
    """Run a step and cancel it from another thread after a while; return if that was in time."""
    model.kv.reserve(0, len(tokens))
    started = threading.Event()

    def cancel() -> None:
        started.wait()
        for _ in range(wait):
            pass
        model.cancel()

    canceller = threading.Thread(target=cancel)
    canceller.start()
    try:
        started.set()
        model.forward(batch_of([(0, 0, tokens)]))
    except Cancelled:
        return True
    finally:
        canceller.join()
    return False


def test_cancelling_a_model_that_does_nothing_does_nothing(
    path_of: Callable[[str], Path], alone: Callable[..., F32]
) -> None:
    tokens, expected = prompt(N_VOCAB, 140), alone("llama", 140)
    for n_threads in (1, 2):
        with loaded(path_of("llama"), n_threads=n_threads, context=144) as model:
            model.cancel()
            assert_same(feed(model, tokens[:70]), expected[:70])
            model.cancel()
            assert_same(feed(model, tokens[70:], start=70), expected[70:])


def test_two_models_at_once_do_not_disturb_each_other(
    path_of: Callable[[str], Path], alone: Callable[..., F32]
) -> None:
    found: dict[str, list[F32]] = {}

    def run(arch: str, n_threads: int) -> None:
        options = {"n_threads": n_threads, "context": 144}
        with loaded(path_of(arch), **options) as model:
            found[arch] = []
            for chunk in (7, 64, 140):
                found[arch].append(feed(model, prompt(N_VOCAB, 140), chunk=chunk))
                model.kv.free(0)

    threads = [threading.Thread(target=run, args=pair) for pair in (("llama", 2), ("gemma3", 3))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for arch in ("llama", "gemma3"):
        assert len(found[arch]) == 3
        for logits in found[arch]:
            assert_same(logits, alone(arch, 140))
