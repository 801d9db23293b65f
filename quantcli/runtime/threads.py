"""How many threads to use: what the machine has, and what this process may use of it."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from quantcli.runtime import cgroup


@dataclass(frozen=True, slots=True)
class CpuFacts:
    """The CPUs of this machine and this process's share of them.

    logical    logical CPUs of the machine
    physical   physical cores of the machine
    affinity   logical CPUs this process may run on
    cores      physical cores among those
    quota      CPUs' worth of time a control group allows, or None
    """

    logical: int
    physical: int
    affinity: int
    cores: int
    quota: float | None


def default_threads() -> int:
    """Return the number of threads that fits this process's share of the machine."""
    return threads_for(cpu_facts())


def threads_for(facts: CpuFacts) -> int:
    """Return min(physical cores, cores of the affinity, quota), at least 1.

    A fractional quota is rounded down: with one thread more, the kernel stops all of them for
    part of every period, and each barrier waits for the one that was stopped.
    """
    allowed = min(facts.physical, facts.affinity, facts.cores)
    if facts.quota is not None:
        allowed = min(allowed, int(facts.quota))
    return max(1, allowed)


def cpu_facts(root: Path = cgroup.ROOT) -> CpuFacts:
    """Read the facts. `root` stands in for the file system's root in tests."""
    import psutil

    logical = os.cpu_count() or 1
    physical = psutil.cpu_count(logical=False) or logical
    cpus = _affinity(logical)
    cores = count_cores(cpus, root)
    return CpuFacts(logical, physical, len(cpus), cores, cgroup.cpu_quota(root))


def count_cores(cpus: Iterable[int], root: Path = cgroup.ROOT) -> int:
    """Return how many physical cores a set of logical CPUs covers, as far as Linux tells.

    Two hardware threads of one core share its vector units, so the second adds nothing here.
    A CPU whose siblings cannot be read counts as a core.
    """
    cores: set[str] = set()
    for cpu in cpus:
        path = root / f"sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list"
        try:
            cores.add(path.read_text(encoding="ascii").strip())
        except (OSError, UnicodeDecodeError):
            cores.add(str(cpu))
    return max(1, len(cores))


def _affinity(logical: int) -> list[int]:
    """Return the logical CPUs this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return sorted(os.sched_getaffinity(0))
    import psutil

    process = psutil.Process()
    if hasattr(process, "cpu_affinity"):  # Windows; macOS has no affinity
        return list(process.cpu_affinity()) or list(range(logical))
    return list(range(logical))
