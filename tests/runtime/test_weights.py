"""Loading: every matrix packed in slabs, vectors padded, and what goes wrong said clearly."""

from __future__ import annotations

import itertools
import os
import re
from collections.abc import Iterator
from ctypes import c_uint8
from pathlib import Path

import numpy as np
import pytest
from checkpoints_in_memory import MemoryCheckpoint
from kernel_calls import Guarded, Packed, decoded, look_up, random_rows
from tiny import write_tiny

from quantcli import catalog, formats
from quantcli.checkpoint import open_checkpoint
from quantcli.errors import CheckpointError, ResourceError, UnsupportedModel
from quantcli.kernels import matmul
from quantcli.qtensor import QTensor
from quantcli.runtime import weights as loading
from quantcli.runtime.executor import Executor
from quantcli.runtime.memory import size
from quantcli.runtime.weights import ALIGNMENT, Matrix, Weights, packed_nbytes, repacking_notes

pytestmark = pytest.mark.jit

SHAPES = {  # name: (format, n_out, n_in)
    "a": ("f32", 33, 100),
    "b": ("q4_0", 16, 64),
    "c": ("q6_k", 70, 512),
    "d": ("q8_0", 1, 32),
    "e": ("bf16", 17, 7),
    "f": ("q2_k", 250, 256),
    "g": ("f16", 5, 96),
}
REPACKED = (
    *("iq1_m", "iq1_s", "iq2_s", "iq2_xs", "iq2_xxs", "iq3_s", "iq3_xxs"),
    *("nvfp4", "tq1_0"),
)
VECTORS = {"norm": 100, "bias": 33, "one": 1, "even": 64}


@pytest.fixture(scope="module")
def executor() -> Iterator[Executor]:
    made = Executor(2)
    yield made
    made.close()


@pytest.fixture(scope="module")
def checkpoint() -> MemoryCheckpoint:
    tensors = {}
    for seed, (name, (kind, n_out, n_in)) in enumerate(SHAPES.items()):
        data = random_rows(formats.get(kind), n_out, n_in, seed)
        tensors[name] = QTensor(name, (n_out, n_in), formats.get(kind), data.reshape(-1))
    for name, n in VECTORS.items():
        values = np.arange(1, n + 1, dtype=np.float32)
        tensors[name] = QTensor(name, (n,), formats.get("f32"), values.view(np.uint8))
    return MemoryCheckpoint(tensors)


def load(checkpoint: MemoryCheckpoint, executor: Executor, **options: object) -> Weights:
    shapes = {name: info.shape for name, info in checkpoint.tensors.items()}
    return Weights.load(checkpoint, shapes, executor, **options)  # type: ignore[arg-type]


def packed(matrix: Matrix) -> Packed:
    """Return a loaded matrix as the kernels' tests know it."""
    memory = Guarded(0, np.uint8)
    memory.array = np.ctypeslib.as_array((c_uint8 * matrix.nbytes).from_address(matrix.address))
    return Packed(
        matrix.panel, matrix.n_out, matrix.n_blocks, memory, matmul.module(matrix.panel.name)
    )


@pytest.mark.parametrize("slab_nbytes", [1, 4000, loading._SLAB_NBYTES])
def test_every_row_of_every_matrix_arrives(
    checkpoint: MemoryCheckpoint,
    executor: Executor,
    slab_nbytes: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(loading, "_SLAB_NBYTES", slab_nbytes)
    before = checkpoint.n_reads
    weights = load(checkpoint, executor)
    reads = checkpoint.n_reads - before
    assert reads > len(SHAPES) if slab_nbytes < 8000 else reads == len(SHAPES)
    assert set(weights.matrices) == set(SHAPES)
    for name, (kind, n_out, n_in) in SHAPES.items():
        matrix = weights.matrices[name]
        assert (matrix.n_out, matrix.n_in, matrix.panel.name) == (n_out, n_in, kind)
        found = look_up(packed(matrix), range(16 * matrix.n_panels))
        data = checkpoint.tensor(name).data.reshape(n_out, -1)
        np.testing.assert_array_equal(found[:n_out, :n_in], decoded(formats.get(kind), data))
        assert not found[n_out:].any()
        assert not found[:, n_in:].any()


def test_vectors_are_padded_with_zeros(checkpoint: MemoryCheckpoint, executor: Executor) -> None:
    weights = load(checkpoint, executor)
    assert set(weights.vectors) == set(VECTORS)
    for name, n in VECTORS.items():
        vector = weights.vectors[name]
        assert vector.size % 32 == 0
        assert vector.size - n < 32
        assert vector[:n].tolist() == list(range(1, n + 1))
        assert not vector[n:].any()


def test_matrices_lie_on_lines_of_their_own(
    checkpoint: MemoryCheckpoint, executor: Executor
) -> None:
    weights = load(checkpoint, executor)
    spans = sorted((m.address, m.address + m.nbytes) for m in weights.matrices.values())
    assert all(start % ALIGNMENT == 0 for start, _ in spans)
    assert all(stop <= start for (_, stop), (start, _) in itertools.pairwise(spans))
    total = spans[-1][1] - spans[0][0]
    assert total <= weights.nbytes
    for name, (kind, n_out, n_in) in SHAPES.items():
        assert weights.matrices[name].nbytes == packed_nbytes((n_out, n_in), kind)


def test_progress_ends_at_the_total(checkpoint: MemoryCheckpoint, executor: Executor) -> None:
    said: list[tuple[str, int, int]] = []
    load(checkpoint, executor, progress=lambda *args: said.append(args))
    total = sum(checkpoint.tensors[name].nbytes for name in SHAPES)
    assert [what for what, _, _ in said] == ["loading"] * len(SHAPES)
    assert [done for _, done, _ in said] == sorted(done for _, done, _ in said)
    assert said[-1] == ("loading", total, total)


def test_a_file_cut_short_behind_our_back_is_an_error(tmp_path: Path, executor: Executor) -> None:
    path = write_tiny(tmp_path / "m.gguf", "llama")
    with open_checkpoint(path) as checkpoint:
        shapes = {name: info.shape for name, info in checkpoint.tensors.items()}
        if os.name != "nt":  # Windows does not let others cut an open file
            os.truncate(path, path.stat().st_size // 2)
            with pytest.raises(CheckpointError):
                Weights.load(checkpoint, shapes, executor)


def test_memory_that_the_machine_refuses_is_an_error() -> None:
    with pytest.raises(ResourceError, match=r"the weights need \d+ MiB of memory.*smaller model"):
        Weights(1 << 62)


@pytest.mark.skipif(not Path("/proc/self/smaps").exists(), reason="needs Linux")
def test_weights_lie_where_the_system_gives_huge_pages() -> None:
    weights = Weights(1 << 20)
    address = weights.take("m", matmul.module("f32").PANEL, (16, 32)).address
    flags: set[str] = set()
    is_within = False
    for line in Path("/proc/self/smaps").read_text(encoding="utf-8").splitlines():
        if found := re.match(r"([0-9a-f]+)-([0-9a-f]+) ", line):
            is_within = int(found[1], 16) <= address < int(found[2], 16)
        elif is_within and line.startswith("VmFlags:"):
            flags = set(line.split()[1:])
    assert "sh" not in flags  # shared: huge pages only if the administrator says so
    assert "hg" in flags or not Path("/sys/kernel/mm/transparent_hugepage").exists()


def test_nothing_is_packed_where_nothing_is_to_be(executor: Executor) -> None:
    empty = Weights.load(MemoryCheckpoint({}), {}, executor)  # type: ignore[arg-type]
    assert not empty.matrices
    assert not empty.vectors


def test_a_format_without_kernels_is_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(matmul, "names", lambda: ("f32", "q8_0"))
    message = "^weights in q4_0 can be read and quantized but not run yet; formats that run are f32"
    with pytest.raises(UnsupportedModel, match=message):
        packed_nbytes((16, 256), "q4_0")


def test_a_note_says_what_unpacking_costs(tmp_path: Path) -> None:
    path = write_tiny(tmp_path / "m.gguf", "llama", weight_format=("iq2_xxs", "q8_0", "tq1_0"))
    with open_checkpoint(path) as checkpoint:
        (note,) = repacking_notes(checkpoint)
        infos = [i for i in checkpoint.tensors.values() if i.format.name in ("iq2_xxs", "tq1_0")]
        packed = sum(packed_nbytes(i.shape, i.format.name) for i in infos)
        stored = sum(i.nbytes for i in infos)
    assert note == (
        "weights in iq2_xxs, tq1_0 are unpacked in memory, without loss: they take "
        f"{size(packed)} there and {size(stored)} in the file."
    )
    assert stored < packed < 2.3 * stored


@pytest.mark.parametrize("name", sorted({*catalog.names("format")} - {*REPACKED}))
def test_formats_as_large_in_memory_need_no_note(name: str, tmp_path: Path) -> None:
    path = write_tiny(tmp_path / "m.gguf", "llama", weight_format=name, n_layers=1)
    with open_checkpoint(path) as checkpoint:
        assert repacking_notes(checkpoint) == ()
