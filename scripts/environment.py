"""Where the scripts run: the repository's root and the interpreter that has the dev tools."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv"


def interpreter() -> str:
    """Return the active virtual environment's Python, else .venv's, else the running one."""
    if sys.prefix != sys.base_prefix:
        return sys.executable
    for path in (VENV / "bin" / "python", VENV / "Scripts" / "python.exe"):
        if path.exists():
            return str(path)
    return sys.executable


def run(*args: str) -> None:
    """Run `python -m ARGS` from the root; end this script with its exit code if it fails."""
    print("+ python -m", *args, file=sys.stderr, flush=True)
    code = subprocess.run([interpreter(), "-m", *args], cwd=ROOT, check=False).returncode
    if code:
        raise SystemExit(code)
