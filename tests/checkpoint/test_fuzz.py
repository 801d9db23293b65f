"""Files spoilt at random either open or are refused; nothing dies, hangs or raises otherwise."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


OFFENCES = """
import os, pathlib, signal, sys, gguf_fuzz
offences = {
    "died by SIGSEGV": lambda checkpoint: os.kill(os.getpid(), signal.SIGSEGV),
    "died by SIGXCPU": lambda checkpoint: all(True for _ in iter(int, 1)),
    "died by SIGALRM": lambda checkpoint: signal.pause(),
    "MemoryError": lambda checkpoint: bytes(300 << 20),
    "ZeroDivisionError": lambda checkpoint: 1 // 0,
    "SystemExit": lambda checkpoint: sys.exit(0),
    "unclosed file": lambda checkpoint: open(os.devnull) and None,
}
path = gguf_fuzz.every_type(pathlib.Path(sys.argv[1]) / "good.gguf")
for says, offence in offences.items():
    gguf_fuzz.PROBES = (offence,)
    gguf_fuzz.WALL_S = 2 if "SIGALRM" in says else 300  # a busy machine is no offence
    outcome = gguf_fuzz.run_limited(path)
    if not outcome.failed or says not in str(outcome):
        raise SystemExit(f"{says}: {outcome}")
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="the limit on memory holds on Linux only")
def test_the_fuzzer_sees_every_offence(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", OFFENCES, str(tmp_path)],
        env=os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT / "tests"), str(ROOT)])},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def fuzz(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run scripts/fuzz: in a process of its own, as it forks and must have no threads."""
    return subprocess.run(
        [sys.executable, str(ROOT / "scripts" / "fuzz"), *arguments],
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs processes that fork")
def test_500_spoilt_files_open_or_are_refused() -> None:
    done = fuzz("500", "--seed", "20")
    assert done.returncode == 0, done.stdout + done.stderr
    opened, refused, failed = map(int, re.findall(r"(\d+) (?:opened|refused|failed)", done.stdout))
    assert opened + refused == 500
    assert failed == 0
    # Some changes must be harmless and most not, or the test looks at nothing.
    assert 25 < opened < 250
