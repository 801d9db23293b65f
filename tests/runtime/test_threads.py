"""Thread count: the smallest of cores, affinity and control-group quota."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from quantcli.runtime import cgroup
from quantcli.runtime.threads import (
    CpuFacts,
    count_cores,
    cpu_facts,
    default_threads,
    threads_for,
)


def write(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return root


@pytest.mark.parametrize(
    ("facts", "n_threads"),
    [
        (CpuFacts(16, 8, 16, 8, None), 8),
        (CpuFacts(16, 8, 4, 4, None), 4),
        (CpuFacts(16, 8, 4, 2, None), 2),
        (CpuFacts(16, 8, 16, 8, 3.0), 3),
        (CpuFacts(16, 8, 16, 8, 1.9), 1),
        (CpuFacts(16, 8, 16, 8, 0.5), 1),
        (CpuFacts(1, 1, 1, 1, None), 1),
    ],
)
def test_threads_are_the_smallest_of_all_limits(facts: CpuFacts, n_threads: int) -> None:
    assert threads_for(facts) == n_threads


def test_default_is_at_least_one_and_at_most_the_cpus_of_this_machine() -> None:
    assert 1 <= default_threads() <= (os.cpu_count() or 1)


def test_hardware_threads_of_one_core_count_once(tmp_path: Path) -> None:
    topology = "sys/devices/system/cpu/cpu{}/topology/thread_siblings_list"
    siblings = {0: "0,4", 4: "0,4", 1: "1,5", 5: "1,5"}
    root = write(tmp_path, {topology.format(cpu): f"{s}\n" for cpu, s in siblings.items()})
    assert count_cores([0, 4], root) == 1
    assert count_cores([0, 1, 4, 5], root) == 2


def test_a_cpu_without_topology_counts_as_a_core(tmp_path: Path) -> None:
    assert count_cores([0, 1, 2], tmp_path) == 3


@pytest.mark.parametrize(
    ("files", "quota"),
    [
        ({}, None),
        ({"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/cpu.max": "max 100000\n"}, None),
        ({"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/cpu.max": "250000 100000\n"}, 2.5),
        (  # the tightest group on the way up counts
            {
                "proc/self/cgroup": "0::/a/b\n",
                "sys/fs/cgroup/a/cpu.max": "100000 100000\n",
                "sys/fs/cgroup/a/b/cpu.max": "400000 100000\n",
            },
            1.0,
        ),
        (  # version 1, the path in /proc being the host's: only the mount point exists
            {
                "proc/self/cgroup": "4:cpu,cpuacct:/docker/0123\n1:name=systemd:/x\n",
                "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us": "300000\n",
                "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us": "100000\n",
            },
            3.0,
        ),
        (
            {
                "proc/self/cgroup": "4:cpu:/\n",
                "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "-1\n",
                "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000\n",
            },
            None,
        ),
        (  # both versions mounted
            {
                "proc/self/cgroup": "4:cpu:/\n0::/\n",
                "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "200000\n",
                "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000\n",
                "sys/fs/cgroup/unified/cpu.max": "max 100000\n",
            },
            2.0,
        ),
        ({"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/cpu.max": "garbage\n"}, None),
    ],
)
def test_cpu_quota_of_both_cgroup_versions(
    tmp_path: Path, files: dict[str, str], quota: float | None
) -> None:
    assert cgroup.cpu_quota(write(tmp_path, files)) == quota


def test_facts_of_this_machine_are_consistent() -> None:
    facts = cpu_facts()
    assert 1 <= facts.cores <= facts.affinity <= facts.logical
    assert 1 <= facts.physical <= facts.logical
