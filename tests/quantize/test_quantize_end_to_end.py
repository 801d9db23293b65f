"""The model that comes along, quantized for real: by every type, and layer by layer."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from hashlib import sha256
from pathlib import Path

import pytest
from gguf import GGUFReader
from source_tree import ROOT
from tiny import write_tiny

from quantcli.checkpoint import Checkpoint, open_checkpoint
from quantcli.quantize.calibrate import Calibration
from quantcli.quantize.job import Job, Settings, prepare
from quantcli.quantize.method import method
from quantcli.quantize.mixes import mix
from quantcli.quantize.pipeline import run
from quantcli.quantize.recipe import Recipe

pytestmark = pytest.mark.jit

GOLDEN = json.loads((ROOT / "tests/goldens/quantized_tiny.json").read_text(encoding="utf-8"))
CHUNKS = tuple(tuple(range(20 + i, 84 + i)) for i in range(3))


@pytest.fixture(scope="module")
def tiny() -> Iterator[Checkpoint]:
    with open_checkpoint(ROOT / "models" / "tiny") as checkpoint:
        yield checkpoint


@pytest.mark.parametrize("name", GOLDEN)
def test_without_statistics_every_tensor_has_the_bytes_that_llama_quantize_writes(
    tiny: Checkpoint, tmp_path: Path, name: str
) -> None:
    job = prepare(tiny, Settings(Recipe(mix(name))))
    run(job, tmp_path / "out.gguf", n_threads=2)
    reader = GGUFReader(tmp_path / "out.gguf")
    digest = sha256()
    for tensor in reader.tensors:
        digest.update(f"{tensor.name} {tensor.tensor_type.value} ".encode())
        digest.update(tensor.data.tobytes())
    for key in ("general.file_type", "general.quantization_version"):
        assert int(reader.fields[key].parts[-1][0]) == GOLDEN[name][key]
    assert digest.hexdigest() == GOLDEN[name]["tensors"]


class Interrupted(Exception):
    """Stands for Ctrl-C."""


def stop_after(n: int) -> Callable[[str, int, int], None]:
    calls = iter(range(n))

    def progress(stage: str, done: int, total: int) -> None:
        if stage == "quantizing" and next(calls, None) is None:
            raise Interrupted

    return progress


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Checkpoint]:
    path = tmp_path_factory.mktemp("models") / "m.gguf"
    write_tiny(path, "qwen3", weight_format="bf16", n_layers=3)
    with open_checkpoint(path) as checkpoint:
        yield checkpoint


def layered(source: Checkpoint, *names: str) -> Job:
    chosen = method(
        source,
        Recipe(mix("q4_0")),
        names=names,
        calibration=Calibration("numbers", CHUNKS),
        n_threads=2,
    )
    return prepare(source, chosen.settings)


@pytest.mark.parametrize("names", [(), ("gptq",), ("awq", "gptq")], ids="+".join)
def test_a_run_by_layers_that_was_broken_off_ends_in_the_same_bytes(
    small: Checkpoint, tmp_path: Path, names: tuple[str, ...]
) -> None:
    whole, out = tmp_path / "whole.gguf", tmp_path / "out.gguf"
    expected = run(layered(small, *names), whole, n_threads=2)
    job = layered(small, *names)
    with pytest.raises(Interrupted):
        run(job, out, n_threads=2, progress=stop_after(20))
    results = run(layered(small, *names), out, n_threads=1, resume=True)
    assert out.read_bytes() == whole.read_bytes()
    assert [r.error for r in results] == [r.error for r in expected]


def test_no_tensor_is_worse_than_the_search_alone(small: Checkpoint, tmp_path: Path) -> None:
    results = run(layered(small, "gptq"), tmp_path / "out.gguf", n_threads=2)
    known = [(r.error, r.baseline) for r in results if r.baseline is not None]
    assert len(known) == 3 * 7 + 1
    assert all(error is not None and error <= baseline for error, baseline in known)
