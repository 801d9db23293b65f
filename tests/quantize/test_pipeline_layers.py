"""The work layer by layer: folds, statistics, and going on after an interruption."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from fake_quantize import FakeWalk, Halving, Rounding, rounded
from tiny import write_tiny

from quantcli.checkpoint import Checkpoint, open_checkpoint
from quantcli.formats import get
from quantcli.quantize import Fold
from quantcli.quantize.job import Job, Settings, prepare
from quantcli.quantize.mixes import mix
from quantcli.quantize.pipeline import run
from quantcli.quantize.recipe import Recipe
from quantcli.quantize.walk_state import WalkState

N_LAYERS = 3


@pytest.fixture(params=[False, True], ids=["untied", "tied"])
def source(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Checkpoint]:
    path = tmp_path / "source.gguf"
    write_tiny(path, "llama", weight_format="f16", n_layers=N_LAYERS, tied=request.param)
    with open_checkpoint(path) as checkpoint:
        yield checkpoint


class Setup:
    """A job of a fake walk, and what it was asked."""

    def __init__(
        self, source: Checkpoint, *, folds: tuple[Fold, ...] = (), needs: str = "hessian"
    ) -> None:
        self.walks: list[FakeWalk] = []
        self.quantizer = Rounding(needs)  # type: ignore[arg-type]
        is_tied = "output.weight" not in source.tensors
        output = "token_embd.weight" if is_tied else "output.weight"

        def walk(progress: object) -> FakeWalk:
            self.walks.append(FakeWalk(source, N_LAYERS, output))
            return self.walks[-1]

        settings = Settings(
            Recipe(mix("q4_0")),
            self.quantizer,
            folds,
            walk,
            calibration="text",
            allow_requantize=True,
        )
        self.job: Job = prepare(source, settings)


class Interrupted(Exception):
    """Stands for Ctrl-C."""


def stop_after(n: int) -> Callable[[str, int, int], None]:
    calls = iter(range(n))

    def progress(stage: str, done: int, total: int) -> None:
        if next(calls, None) is None:
            raise Interrupted

    return progress


def weights(path: Path) -> dict[str, np.ndarray]:
    with open_checkpoint(path) as model:
        return {name: model.tensor(name).dequantize() for name in model.tensors}


def test_every_matrix_gets_the_statistics_of_its_input_and_is_put_back(
    source: Checkpoint, tmp_path: Path
) -> None:
    setup = Setup(source)
    results = run(setup.job, tmp_path / "out.gguf", n_threads=2)
    walk = setup.walks[0]
    layers = [name for name in walk.put if name.startswith("blk.")]
    assert len(layers) == len(set(layers)) == 7 * N_LAYERS
    assert walk.asked.count("blk.1.attn_q.weight") == 1
    assert "blk.1.attn_k.weight" not in walk.asked  # it shares its input with attn_q
    assert walk.is_closed
    for name, values in weights(tmp_path / "out.gguf").items():
        tensor = source.tensor(name)
        fmt = next(get(r.format) for r in results if r.name == name)
        same = fmt.name == tensor.format.name
        expected = tensor.data if same else rounded(tensor.dequantize(), fmt)
        blocks = expected.view(fmt.block)
        assert np.array_equal(fmt.decode(blocks).reshape(values.shape), values), name


def test_the_output_matrix_gets_the_statistics_of_the_last_norm(
    source: Checkpoint, tmp_path: Path
) -> None:
    setup = Setup(source)
    run(setup.job, tmp_path / "out.gguf", n_threads=2)
    by_name = {job.name: job for job in setup.quantizer.jobs}
    output = setup.walks[0].output
    known = by_name[output].statistics
    assert known is not None
    assert known.importance[0] == np.float32(1 + abs(setup.walks[0].activation))
    if output == "output.weight":
        assert by_name["token_embd.weight"].statistics is None


def test_folds_change_what_is_written_but_not_what_is_computed(
    source: Checkpoint, tmp_path: Path
) -> None:
    setup = Setup(source, folds=(Halving(),))
    results = run(setup.job, tmp_path / "out.gguf", n_threads=2)
    after = weights(tmp_path / "out.gguf")
    for i in range(N_LAYERS):
        norm, query = f"blk.{i}.attn_norm.weight", f"blk.{i}.attn_q.weight"
        assert np.array_equal(after[norm], source.tensor(norm).dequantize() / 2)
        doubled = rounded(source.tensor(query).dequantize() * 2, get("q4_0"))
        assert np.array_equal(
            get("q4_0").decode(doubled.view(get("q4_0").block)).reshape(-1),
            after[query].reshape(-1),
        )
    assert any(f"layer {N_LAYERS - 1} was halved" in r.notes for r in results)


def test_a_fold_counts_where_a_matrix_keeps_its_format(tmp_path: Path) -> None:
    path = write_tiny(tmp_path / "m.gguf", "llama", weight_format="q4_0", n_layers=N_LAYERS)
    with open_checkpoint(path) as source:
        run(Setup(source, folds=(Halving(),)).job, tmp_path / "out.gguf", n_threads=1)
        after = weights(tmp_path / "out.gguf")
        before = source.tensor("blk.1.attn_q.weight").dequantize()
    assert np.allclose(after["blk.1.attn_q.weight"], 2 * before, atol=np.abs(before).max() / 4)


@pytest.mark.parametrize("needs", ["hessian", "importance"])
def test_work_by_layer_is_the_same_with_any_number_of_threads(
    source: Checkpoint, tmp_path: Path, needs: str
) -> None:
    for n in (1, 3):
        setup = Setup(source, folds=(Halving(),), needs=needs)
        run(setup.job, tmp_path / f"{n}.gguf", n_threads=n)
    assert (tmp_path / "1.gguf").read_bytes() == (tmp_path / "3.gguf").read_bytes()


@pytest.mark.parametrize("saves", [True, False], ids=["state", "no state"])
@pytest.mark.parametrize("n", [0, 8, 11, 27])
def test_an_interrupted_run_resumes_to_the_same_bytes(
    source: Checkpoint, tmp_path: Path, n: int, saves: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, out = tmp_path / "whole.gguf", tmp_path / "out.gguf"
    run(Setup(source, folds=(Halving(),)).job, whole, n_threads=2)
    monkeypatch.setattr(WalkState.__init__, "__kwdefaults__", {"every_s": 0.0 if saves else 1e9})
    setup = Setup(source, folds=(Halving(),))
    with pytest.raises(Interrupted):
        run(setup.job, out, n_threads=2, progress=stop_after(n))
    setup = Setup(source, folds=(Halving(),))
    run(setup.job, out, n_threads=2, resume=True)
    assert out.read_bytes() == whole.read_bytes()
    n_layers_done = max(0, n - 1) // 9
    assert len([j for j in setup.quantizer.jobs if j.name.startswith("blk.")]) <= 7 * (
        N_LAYERS - n_layers_done
    )
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".")]


def test_a_state_that_cannot_be_read_costs_only_time(source: Checkpoint, tmp_path: Path) -> None:
    path = tmp_path / "state"
    walk = FakeWalk(source, N_LAYERS, "output.weight")
    path.write_bytes(b"PK\x03\x04 not a state")
    assert WalkState(path, resume=True).restore(walk) == 0
    state = WalkState(path, resume=False, every_s=0.0)
    assert not path.exists()
    walk.activation = 5.5
    state.save(walk, 2)
    other = FakeWalk(source, N_LAYERS, "output.weight")
    assert WalkState(path, resume=True).restore(other) == 2
    assert (other.activation, other._next) == (5.5, 2)


def test_a_state_is_not_written_again_at_once(source: Checkpoint, tmp_path: Path) -> None:
    state = WalkState(tmp_path / "state", resume=False, every_s=1e9)
    state.save(FakeWalk(source, N_LAYERS, "output.weight"), 1)
    assert not (tmp_path / "state").exists()
