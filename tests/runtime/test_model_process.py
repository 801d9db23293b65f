"""What a model does to its process: memory while it loads and after, threads at the end.

Each claim is about a process of its own, whose memory nothing else has touched.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from loaded_model import loaded
from source_tree import ROOT
from tiny import write_tiny

pytestmark = pytest.mark.jit

BESIDES = 250 * 10**6  # bytes that a process may take beside the file and the KV cache

USE = """
import json, sys
from quantcli.checkpoint import open_checkpoint
from quantcli.runtime.memory import peak_memory
from quantcli.runtime.model import Batch, Model

def resident():
    import psutil
    return psutil.Process().memory_info().rss

def load(path, **options):
    with open_checkpoint(path) as checkpoint:
        return Model.load(checkpoint, **({"n_threads": 2} | options))

def run(model, n):
    model.kv.reserve(0, n)
    for start in range(0, n, model.max_rows):
        rows = list(range(start, min(n, start + model.max_rows)))
        model.forward(Batch([1] * len(rows), rows, [0] * len(rows), [len(rows) - 1]))
    model.kv.truncate(0, 0)

path = sys.argv[1]
"""


def run(code: str, path: Path) -> subprocess.CompletedProcess[str]:
    """Run code in a fresh interpreter."""
    return subprocess.run(
        [sys.executable, "-W", "error", "-c", USE + code, str(path)],
        capture_output=True,
        text=True,
        cwd=ROOT,
        timeout=600,
        check=False,
    )


def measured(code: str, path: Path) -> dict[str, int]:
    """Run code that prints numbers as JSON, in silence otherwise."""
    done = run(code, path)
    assert (done.returncode, done.stderr) == (0, "")
    return json.loads(done.stdout)


@pytest.mark.model
@pytest.mark.skipif(sys.platform != "linux", reason="resident memory means something else")
@pytest.mark.parametrize("model", ["smollm2", "gemma3"])
def test_peak_memory_is_the_file_the_cache_and_250_mb(
    model: str, request: pytest.FixtureRequest
) -> None:
    path: Path = request.getfixturevalue(f"{model}_path")
    with loaded(path, context=512):
        pass  # compiles what is not on disk yet, which takes more memory
    code = """
model = load(path, context=2048)
loaded = peak_memory()
run(model, 2048)
run(model, 1)
print(json.dumps({"loaded": loaded, "ran": peak_memory(), "kv": model.memory.kv_nbytes}))
"""
    peak = measured(code, path)
    assert peak["loaded"] <= path.stat().st_size + BESIDES
    assert peak["ran"] <= path.stat().st_size + peak["kv"] + BESIDES


@pytest.fixture(scope="module")
def heavy_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a model of about 20 MB."""
    path = tmp_path_factory.mktemp("models") / "m.gguf"
    options = {"d_model": 512, "d_ff": 4096, "n_heads": 8, "head_dim": 64, "n_layers": 3}
    return write_tiny(path, "llama", weight_format="q8_0", **options)


@pytest.mark.skipif(sys.platform != "linux", reason="resident memory means something else")
@pytest.mark.parametrize("ending", ["model.close(); del model", "del model", "model.close()"])
def test_loading_again_and_again_takes_no_more_memory(ending: str, heavy_path: Path) -> None:
    with loaded(heavy_path):
        pass
    code = f"""
import gc
gc.disable()  # memory goes back without it
held = []
for _ in range(10):
    model = load(path, context=2048)
    run(model, 2048)
    {ending}
    held.append(resident())
print(json.dumps({{"early": held[5], "late": held[-1], "weights": 20 << 20}}))
"""
    found = measured(code, heavy_path)
    assert found["late"] - found["early"] < found["weights"] / 2


@pytest.mark.parametrize("n_threads", [1, 4])
@pytest.mark.parametrize(
    "last",
    [
        "import time; run(model, 3); time.sleep(0.3)",  # the workers sleep
        "del model",
        "kept = [model, load(path, n_threads=3)]; run(kept[1], 5)",
        "import gc; gc.disable(); model.itself = model",
    ],
)
def test_a_program_that_closes_nothing_ends_in_silence(
    last: str, n_threads: int, heavy_path: Path
) -> None:
    with loaded(heavy_path):
        pass
    done = run(f"model = load(path, n_threads={n_threads})\n{last}\nprint('ran')", heavy_path)
    assert (done.returncode, done.stdout, done.stderr) == (0, "ran\n", "")


def test_a_program_that_fails_says_only_why(heavy_path: Path) -> None:
    done = run("model = load(path)\nrun(model, 3)\nraise SystemExit(7)", heavy_path)
    assert (done.returncode, done.stdout, done.stderr) == (7, "", "")


def test_a_program_ends_while_another_thread_computes(heavy_path: Path) -> None:
    code = """
import threading
model = load(path, context=512)
started = threading.Event()

def work():
    while True:
        run(model, 256)
        started.set()

threading.Thread(target=work, daemon=True).start()
started.wait()
print("ran")
"""
    done = run(code, heavy_path)
    assert (done.returncode, done.stdout) == (0, "ran\n"), done.stderr
