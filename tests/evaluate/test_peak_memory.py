"""The peak of a part of the work is told where the system can, and made up nowhere."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

from quantcli.evaluate.peak_memory import PeakMemory

MIB = 1 << 20


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux forgets a peak")
def test_linux_forgets_what_was_before() -> None:
    peak = PeakMemory()
    peak.restart()
    before = peak.nbytes()
    block = np.ones(64 * MIB, np.uint8)
    during = peak.nbytes()
    del block
    peak.restart()
    after = peak.nbytes()
    assert before is not None
    assert during is not None
    assert after is not None
    assert during >= before + 60 * MIB
    assert after <= during - 60 * MIB


def test_elsewhere_only_the_first_part_has_a_peak(tmp_path: Path) -> None:
    peak = PeakMemory(tmp_path / "none" / "status", tmp_path / "none" / "clear_refs")
    peak.restart()
    first = peak.nbytes()
    assert first is not None
    assert first > MIB
    peak.restart()
    assert peak.nbytes() is None
