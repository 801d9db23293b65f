"""What the Linux control groups of this process allow: CPU time and memory, version 1 and 2.

Everywhere else, and for anything that cannot be read, the answer is None: no limit known.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

ROOT = Path("/")
_V1_UNLIMITED = 1 << 60  # version 1 writes 2^63 rounded down to a page for "no limit"


def cpu_quota(root: Path = ROOT) -> float | None:
    """Return the CPUs' worth of time this process may use, or None without a limit.

    The tightest limit of the process's own group and all groups above it. `root` stands in for
    the file system's root in tests.
    """
    quotas: list[float] = []
    for folder in _folders(root, "cpu"):
        v2 = _words(folder / "cpu.max")
        if len(v2) == 2 and v2[0] != "max":
            quotas.append(int(v2[0]) / int(v2[1]))
        quota, period = _int(folder / "cpu.cfs_quota_us"), _int(folder / "cpu.cfs_period_us")
        if quota is not None and period is not None and quota > 0 and period > 0:
            quotas.append(quota / period)
    return min(quotas, default=None)


def memory_limit(root: Path = ROOT) -> int | None:
    """Return the bytes of memory this process's groups may hold together, or None."""
    limits = [limit for limit, _ in _memory(root)]
    return min(limits, default=None)


def memory_left(root: Path = ROOT) -> int | None:
    """Return the bytes that may still be taken before a limit is hit, or None without a limit.

    File pages that the kernel would drop first (inactive_file) count as free.
    """
    left = [max(0, limit - used) for limit, used in _memory(root)]
    return min(left, default=None)


def _memory(root: Path) -> Iterator[tuple[int, int]]:
    """Yield (limit, bytes in use that cannot be dropped) of each group that has a limit."""
    for folder in _folders(root, "memory"):
        for limit_file, usage_file, cache_key in (
            ("memory.max", "memory.current", "inactive_file"),
            ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
        ):
            limit, usage = _int(folder / limit_file), _int(folder / usage_file)
            if limit is None or usage is None or limit >= _V1_UNLIMITED:
                continue
            words = _words(folder / "memory.stat")
            stat = dict(zip(words[::2], words[1::2], strict=False))
            droppable = stat.get(cache_key, "0")
            yield limit, usage - (int(droppable) if droppable.isdigit() else 0)


def _folders(root: Path, controller: str) -> Iterator[Path]:
    """Yield the folders of this process's group and of every group above it, both versions.

    Inside a container the path in /proc may name a folder that only the host can see; the mount
    point itself, always included, is then the container's own group.
    """
    for line in _lines(root / "proc/self/cgroup"):
        hierarchy, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if hierarchy == "0":
            mounts = ["sys/fs/cgroup", "sys/fs/cgroup/unified"]
        elif controller in controllers.split(","):
            mounts = [f"sys/fs/cgroup/{name}" for name in {controllers, controller}]
        else:
            continue
        parts = [part for part in path.split("/") if part not in ("", "..")]
        for mount in mounts:
            for depth in range(len(parts), -1, -1):
                folder = root.joinpath(mount, *parts[:depth])
                if folder.is_dir():
                    yield folder


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return []


def _words(path: Path) -> list[str]:
    return [word for line in _lines(path) for word in line.split()]


def _int(path: Path) -> int | None:
    words = _words(path)
    try:
        return int(words[0]) if words else None
    except ValueError:
        return None  # "max": no limit
