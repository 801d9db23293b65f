"""Facts of this machine that only `doctor` shows: the processor's name, the size of a folder."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from pathlib import Path


def cpu_name() -> str:
    """Return what the processor calls itself, as far as the system tells."""
    if sys.platform == "darwin":
        name = _sysctl("machdep.cpu.brand_string")
    elif sys.platform == "win32":
        name = _registry_name()
    else:
        name = _cpuinfo(Path("/proc/cpuinfo"))
    return name or platform.processor() or platform.machine() or "unknown"


def folder_nbytes(folder: Path) -> int:
    """Return the bytes of the files under a folder, each file once however many links it has."""
    seen: set[tuple[int, int]] = set()
    total = 0
    for parent, _, names in os.walk(folder):
        for name in names:
            try:
                stat = os.lstat(os.path.join(parent, name))
            except OSError:
                continue  # removed meanwhile
            if (stat.st_dev, stat.st_ino) not in seen:
                seen.add((stat.st_dev, stat.st_ino))
                total += stat.st_size
    return total


def _cpuinfo(path: Path) -> str:
    try:
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return ""
    for line in lines:
        key, _, value = line.partition(":")
        if key.strip() in ("model name", "Hardware", "Model"):
            return value.strip()
    return ""


def _sysctl(key: str) -> str:
    try:
        done = subprocess.run(
            ["sysctl", "-n", key], capture_output=True, text=True, timeout=5, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip()


def _registry_name() -> str:
    if sys.platform != "win32":
        return ""
    import winreg

    try:
        path = r"HARDWARE\DESCRIPTION\System\CentralProcessor\0"
        with winreg.OpenKey(winreg.HKEY_LOCAL_MACHINE, path) as key:
            return str(winreg.QueryValueEx(key, "ProcessorNameString")[0]).strip()
    except OSError:
        return ""
