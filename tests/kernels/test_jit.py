"""Compiling: on first use, once a machine, and not again in the next process."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from quantcli.kernels import jit, matmul

pytestmark = pytest.mark.jit

KERNELS = """
from quantcli.kernels import activations, attention, elementwise, heads, jit, matmul
modules = [activations, attention, elementwise, heads, *map(matmul.module, matmul.names())]
kernels = {id(v): v for m in modules for v in vars(m).values() if isinstance(v, jit.OpKernel)}
"""
ALL = (
    KERNELS
    + """
from quantcli.runtime.executor import Executor
import sys
for kernel in kernels.values():
    assert not kernel.is_compiled
    assert kernel.address
    assert kernel.is_compiled
Executor(1).close()
hits = [sum(k._compiled.cache_hits for k in kernels.values()), len(kernels)]
print(*hits, jit.cache_dir())
"""
)


def run(code: str) -> list[str]:
    """Return what a fresh process prints; warnings are errors there too."""
    command = [sys.executable, "-W", "error", "-c", code]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


def files(folder: str) -> dict[Path, int]:
    return {path: path.stat().st_mtime_ns for path in Path(folder).rglob("*.nb*")}


def test_a_second_process_compiles_nothing() -> None:
    _, n_kernels, folder = run(ALL)
    before = files(folder)
    assert len(before) >= 2 * int(n_kernels), "an index and the code of each"
    hits, _, _ = run(ALL)
    assert hits == n_kernels
    assert files(folder) == before


def test_nothing_is_compiled_by_importing() -> None:
    code = KERNELS + "print(sum(k.is_compiled for k in kernels.values()), len(kernels))"
    compiled, n_kernels = run(code)
    assert compiled == "0"
    assert int(n_kernels) > 3 * len(matmul.names())


def test_the_cache_folder_is_of_these_sources_and_this_instruction_set() -> None:
    folder = jit.cache_dir()
    assert folder.name.endswith(f"-{jit._sources_digest()}-{jit.ISA.name}")
    assert os.environ["NUMBA_CACHE_DIR"] == str(folder)


ONE = """
from quantcli.kernels import elementwise, jit
kernel = next(v for v in vars(elementwise).values() if isinstance(v, jit.OpKernel))
assert kernel.address
print(kernel._compiled.cache_hits)
"""
FULL_DISK = """
import errno
from quantcli.kernels import jit
from numba.core.caching import IndexDataCacheFile
def save(self, key, data):
    raise OSError(errno.ENOSPC, "No space left on device")
IndexDataCacheFile.save = save
"""


@pytest.mark.parametrize("kind", ["*.nbc", "*.nbi", "*.nb*"])
@pytest.mark.parametrize("left", [0, 20], ids=["empty", "cut short"])
def test_a_damaged_entry_is_compiled_anew_and_replaced(
    one_kernel: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, left: int
) -> None:
    folder = shutil.copytree(one_kernel, tmp_path / "cache")
    monkeypatch.setenv("QUANTCLI_CACHE_DIR", str(folder))
    for path in folder.rglob(kind):
        os.truncate(path, left)
    assert run(ONE) == ["0"]
    assert run(ONE) == ["1"]


def test_a_kernel_that_cannot_be_kept_is_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("QUANTCLI_CACHE_DIR", str(tmp_path))
    assert run(FULL_DISK + ONE) == ["0"]
    assert files(str(tmp_path)) == {}


@pytest.fixture(scope="module")
def one_kernel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a cache folder that holds one kernel."""
    folder = tmp_path_factory.mktemp("cache")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("QUANTCLI_CACHE_DIR", str(folder))
        assert run(ONE) == ["0"]
    return folder


OFFLINE = """
import sys
from pathlib import Path
from quantcli.kernels import jit
jit._OFFLINE = Path({folder!r})
sys.path.insert(0, {folder!r})
import double
assert double.twice(3) == double.FACTOR * 3
print(sum(double.twice.stats.cache_hits.values()))
"""


def test_offline_kernels_are_compiled_anew_when_one_of_their_sources_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("QUANTCLI_CACHE_DIR", str(tmp_path / "cache"))
    folder = tmp_path / "sources"
    folder.mkdir()
    code = OFFLINE.format(folder=str(folder))
    double = "from factor import FACTOR\nfrom quantcli.kernels.jit import njit\n\n\n@njit\n"
    double += "def twice(x):\n    return FACTOR * x\n"
    (folder / "double.py").write_text(double, encoding="utf-8")
    (folder / "factor.py").write_text("FACTOR = 2\n", encoding="utf-8")
    assert [run(code), run(code)] == [["0"], ["1"]]
    (folder / "factor.py").write_text("FACTOR = 4\n", encoding="utf-8")
    assert [run(code), run(code)] == [["0"], ["1"]]
