"""Instruction sets: which exist, which this CPU has, which one QUANTCLI_ISA asks for.

Importing this imports no Numba: the choice has to be in the environment before Numba starts.
"""

from __future__ import annotations

import os
import platform
from dataclasses import dataclass
from pathlib import Path

from quantcli.errors import UnknownName, UsageError


@dataclass(frozen=True, slots=True)
class Isa:
    """One level of SIMD.

    name            what QUANTCLI_ISA says
    module          module of quantcli.kernels.simd with its operations
    needs           CPU features, by LLVM's names, without which it cannot run
    cpu_name, cpu_features   what Numba is told; both empty: this machine as it is
    """

    name: str
    module: str
    machines: tuple[str, ...]
    needs: tuple[str, ...]
    cpu_name: str = ""
    cpu_features: str = ""


CPUINFO = Path("/proc/cpuinfo")

_X86 = ("x86_64", "AMD64")
_ARM = ("arm64", "aarch64", "ARM64")
_HASWELL = "+avx2,+avx,+fma,+f16c,+bmi,+bmi2,+sse4.2,+sse4.1,+ssse3,+sse3,+sse2,+popcnt"
_NO_512 = "-avx512f,-avx512bw,-avx512dq,-avx512vl,-avx512vnni"

# Best first. Naming the CPU alone is not enough: Numba would still use the host's features.
ISAS = (
    Isa(
        "avx512_vnni",
        "x86_avx512",
        _X86,
        ("avx512f", "avx512bw", "avx512vl", "avx512dq", "avx512vnni", "fma", "f16c"),
    ),
    Isa(
        "avx_vnni",
        "x86_avx_vnni",
        _X86,
        ("avxvnni", "avx2", "fma", "f16c"),
        "haswell",
        f"{_HASWELL},+avxvnni,{_NO_512}",
    ),
    Isa("avx2", "x86_avx2", _X86, ("avx2", "fma", "f16c"), "haswell", f"{_HASWELL},{_NO_512}"),
    Isa("neon", "arm_neon", _ARM, ("dotprod",), "", "+dotprod"),
    Isa("generic", "generic", (*_X86, *_ARM), (), "generic", ""),
)


def host_features() -> dict[str, bool]:
    """Return LLVM's features of this CPU. Imports llvmlite, which does not start Numba."""
    import llvmlite.binding as llvm

    try:
        features = dict(llvm.get_host_cpu_features())
    except RuntimeError:  # as documented, where LLVM does not know how to find out
        features = {}
    if platform.machine() in _ARM and not features.get("dotprod"):
        features["dotprod"] = _arm_has_dot_product()  # LLVM lists few of Arm's features
    return features


def _arm_has_dot_product() -> bool:
    """Ask the system for Arm's dot product; every Apple silicon has it."""
    if platform.system() != "Linux":
        return platform.system() == "Darwin"
    try:
        return "asimddp" in CPUINFO.read_text(encoding="utf-8", errors="replace").split()
    except OSError:
        return False


def usable() -> tuple[Isa, ...]:
    """Return the instruction sets this machine can run, best first."""
    features = host_features()
    machine = platform.machine()
    return tuple(
        isa
        for isa in ISAS
        if machine in isa.machines and all(features.get(need, False) for need in isa.needs)
    )


def select() -> Isa:
    """Return the instruction set to use: QUANTCLI_ISA, or the best this machine has.

    Raises UnknownName for a name that is none, UsageError for one this machine cannot run.
    """
    wanted = os.environ.get("QUANTCLI_ISA", "")
    found = usable()
    if not wanted:
        return found[0]
    if wanted not in {isa.name for isa in ISAS}:
        raise UnknownName("instruction set", wanted, [isa.name for isa in ISAS])
    for isa in found:
        if isa.name == wanted:
            return isa
    emulated = _emulated(wanted, found)
    if emulated:
        return emulated
    names = ", ".join(isa.name for isa in found)
    raise UsageError(f"QUANTCLI_ISA={wanted}: this CPU cannot run it. It can run: {names}.")


def _emulated(wanted: str, found: tuple[Isa, ...]) -> Isa | None:
    """Return AVX-VNNI in AVX-512's encoding, for tests on machines that have only the latter."""
    if wanted != "avx_vnni" or not any(isa.name == "avx512_vnni" for isa in found):
        return None
    features = f"{_HASWELL},+avx512f,+avx512vl,+avx512bw,+avx512vnni,+prefer-256-bit"
    return Isa("avx_vnni", "x86_avx_vnni", _X86, (), "haswell", features)
