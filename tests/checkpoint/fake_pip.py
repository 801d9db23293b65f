"""Stands in for pip: called as `python fake_pip.py download NAME==VERSION ... --dest FOLDER`.

FAKE_PIP_WHEELS is the folder it copies wheels from, FAKE_PIP_LOG a file it writes its arguments
to, FAKE_PIP_FAULT what goes wrong.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import time
from pathlib import Path

FAULTS = {
    "missing": "/usr/bin/python3: No module named pip",
    "absent": "ERROR: No matching distribution found for tiny==1.0",
    "full": "ERROR: Could not install packages: [Errno 28] No space left on device",
    "proxy": "WARNING: Retrying\nERROR: HTTP error 407 while getting the index\n",
    "silent": "",
}


def say(line: str) -> None:
    """Print a line."""
    sys.stdout.write(line + "\n")


def main(arguments: list[str]) -> int:
    """Copy one wheel, or fail as asked."""
    fault = os.environ.get("FAKE_PIP_FAULT", "")
    with open(os.environ["FAKE_PIP_LOG"], "a", encoding="utf-8") as log:
        log.write(json.dumps(arguments) + "\n")
    if fault == "old" and "--progress-bar=raw" in arguments:
        say("option --progress-bar: invalid choice: 'raw' (choose from 'off', 'on')")
        return 2
    if fault in FAULTS:
        sys.stderr.write(FAULTS[fault])
        return 1
    name, _, version = arguments[1].partition("==")
    folder = Path(arguments[arguments.index("--dest") + 1])
    wheel = f"{name.replace('-', '_')}-{version}-py3-none-any.whl"
    source = Path(os.environ["FAKE_PIP_WHEELS"]) / wheel
    total = source.stat().st_size
    # pip's temporary files lie where TMPDIR says until the wheel is complete.
    temporary = Path(os.environ["TMPDIR"]) / "pip-unpack" / wheel
    temporary.parent.mkdir()
    temporary.write_bytes(source.read_bytes()[: total // 2])
    say(f"Collecting {name}=={version}")
    for done in (0, total // 2):
        say(f"Progress {done} of {total}")
    if fault == "hang":
        time.sleep(60)
    if fault == "slow":
        time.sleep(0.3)
    say(f"Progress {total} of {total}")
    if fault != "nothing":
        shutil.copy(source, folder)
    if fault == "truncated":
        os.truncate(folder / wheel, total // 2)
    shutil.rmtree(temporary.parent)
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
