"""Files spoilt at random either open or are refused; nothing dies, hangs or raises otherwise."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


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
