"""doctor says where kernels are kept, and when they cannot be."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path


def folders(cache: Path) -> dict[str, object]:
    done = subprocess.run(
        [sys.executable, "-m", "quantcli", "doctor", "--json"],
        env={**os.environ, "QUANTCLI_CACHE_DIR": str(cache)},
        capture_output=True,
        text=True,
        check=True,
    )
    found = json.loads(done.stdout)["folders"]
    assert isinstance(found, dict)
    return found


def test_a_folder_that_is_not_there_yet_will_be_filled(tmp_path: Path) -> None:
    found = folders(tmp_path / "new")
    assert str(found["kernels"]).startswith(str(tmp_path / "new"))
    assert found["kernels_state"] == "empty; the first run compiles, once"


def test_a_place_that_cannot_hold_kernels_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x", encoding="utf-8")
    state = str(folders(tmp_path / "file")["kernels_state"])
    assert state.startswith(f"cannot be kept: {tmp_path / 'file'} is not a folder")
    assert "QUANTCLI_CACHE_DIR" in state
