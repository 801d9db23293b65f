"""Which instruction set is chosen on which machine."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from pathlib import Path

import llvmlite.binding
import pytest

from quantcli.errors import UnknownName, UsageError
from quantcli.kernels import isa

LAPTOP = ("avx2", "fma", "f16c", "avxvnni")
SERVER = ("avx512f", "avx512bw", "avx512vl", "avx512dq", "avx512vnni", "avx2", "fma", "f16c")


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    """Return a function that makes this process believe that it runs on another machine."""

    def pretend(
        name: str, features: tuple[str, ...] = (), system: str = "Linux", cpuinfo: str = ""
    ):
        monkeypatch.setattr(platform, "machine", lambda: name)
        monkeypatch.setattr(platform, "system", lambda: system)
        found = dict.fromkeys(features, True) | {"sse4a": False}
        monkeypatch.setattr(llvmlite.binding, "get_host_cpu_features", lambda: found)
        monkeypatch.setattr(isa, "CPUINFO", tmp_path / "cpuinfo")
        (tmp_path / "cpuinfo").write_text(cpuinfo, encoding="utf-8")
        monkeypatch.delenv("QUANTCLI_ISA", raising=False)

    return pretend


def names() -> list[str]:
    return [level.name for level in isa.usable()]


def test_x86_levels_are_chosen_by_features(machine) -> None:
    for system, name in (("Linux", "x86_64"), ("Darwin", "x86_64"), ("Windows", "AMD64")):
        machine(name, SERVER, system)
        assert names() == ["avx512_vnni", "avx2", "generic"]
        machine(name, LAPTOP, system)
        assert names() == ["avx_vnni", "avx2", "generic"]
        machine(name, LAPTOP[:3], system)
        assert names() == ["avx2", "generic"]
        machine(name, (), system)
        assert names() == ["generic"]


def test_linux_on_arm_is_asked_for_the_dot_product_that_llvm_does_not_list(machine) -> None:
    machine("aarch64", ("neon", "lse"), cpuinfo="Features\t: fp asimd atomics asimddp\n")
    assert names() == ["neon", "generic"]
    machine("aarch64", ("neon",), cpuinfo="Features\t: fp asimd asimddpx\n")
    assert names() == ["generic"]


def test_every_mac_with_arm_has_the_dot_product(machine, monkeypatch: pytest.MonkeyPatch) -> None:
    machine("arm64", (), "Darwin")
    assert names() == ["neon", "generic"]

    def unknown() -> dict[str, bool]:
        raise RuntimeError("failed to get host cpu features.")

    monkeypatch.setattr(llvmlite.binding, "get_host_cpu_features", unknown)
    assert names() == ["neon", "generic"]


def test_windows_on_arm_has_it_where_llvm_says_so(machine) -> None:
    machine("ARM64", ("neon",), "Windows")
    assert names() == ["generic"]
    machine("ARM64", ("neon", "dotprod"), "Windows")
    assert names() == ["neon", "generic"]


def test_wish_is_checked(machine, monkeypatch: pytest.MonkeyPatch) -> None:
    machine("x86_64", LAPTOP[:3])
    monkeypatch.setenv("QUANTCLI_ISA", "avx2")
    assert isa.select().name == "avx2"
    monkeypatch.setenv("QUANTCLI_ISA", "avx512_vnni")
    with pytest.raises(UsageError, match=r"cannot run it\. It can run: avx2, generic"):
        isa.select()
    monkeypatch.setenv("QUANTCLI_ISA", "avx512_vni")
    with pytest.raises(UnknownName, match="Did you mean avx512_vnni"):
        isa.select()


def test_avx_vnni_is_emulated_only_where_avx512_has_it(machine, monkeypatch) -> None:
    machine("x86_64", SERVER)
    monkeypatch.setenv("QUANTCLI_ISA", "avx_vnni")
    assert "+avx512vnni" in isa.select().cpu_features
    machine("x86_64", LAPTOP)
    monkeypatch.setenv("QUANTCLI_ISA", "avx_vnni")
    assert "+avxvnni" in isa.select().cpu_features
    machine("x86_64", LAPTOP[:3])
    monkeypatch.setenv("QUANTCLI_ISA", "avx_vnni")
    with pytest.raises(UsageError):
        isa.select()


def test_every_level_has_a_module_and_features_that_it_needs() -> None:
    for level in isa.ISAS:
        path = Path(isa.__file__).parent / "simd" / f"{level.module}.py"
        assert path.is_file()
        given = level.cpu_features.split(",")
        if level.cpu_features:
            assert all(f"+{need}" in given for need in level.needs), level.name


def settings_of(code: str, **variables: str) -> list[str]:
    """Return what a fresh process prints that imports the kernels with an environment."""
    program = f"import numba\nfrom quantcli.kernels import jit\nfrom numba import config\n{code}"
    environment = {k: v for k, v in os.environ.items() if not k.startswith("NUMBA_")}
    command = [sys.executable, "-c", program]
    return subprocess.run(
        command, env=environment | variables, capture_output=True, text=True, check=True
    ).stdout.split()


def test_numba_is_told_even_if_it_was_imported_before(tmp_path: Path) -> None:
    code = "print(config.CPU_NAME, repr(config.CPU_FEATURES), config.CACHE_DIR, jit.ISA.name)"
    for elsewhere in (str(tmp_path / "elsewhere"), ""):
        cpu, features, folder, name = settings_of(
            code,
            QUANTCLI_ISA="generic",
            QUANTCLI_CACHE_DIR=str(tmp_path),
            NUMBA_CACHE_DIR=elsewhere,
        )
        assert (cpu, features, name) == ("generic", "''", "generic")
        assert Path(folder).parent == tmp_path / "kernels"
        assert folder.endswith("-generic")
