"""Every instruction set: the kernels' tests where this machine can run it, and its assembly.

QUANTCLI_TEST_ISAS=all runs all kernel tests on each; otherwise those of the operations that differ
run, and of formats that use them all.
"""

from __future__ import annotations

import os
import platform
import re
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

from quantcli.errors import UsageError
from quantcli.kernels import isa

pytestmark = pytest.mark.jit

TESTS = Path(__file__).resolve().parent.parent
X86 = ("avx512_vnni", "avx_vnni", "avx2", "generic")
ARM = ("aarch64-unknown-linux-gnu", "arm64-apple-macosx")
FILES = ("kernels", "every/test_kernels.py", "runtime/test_executor.py")
DIFFERING = (
    "test_simd or test_math or test_activations or (test_heads and 64)"
    " or (test_kernels and (q8_0 or q6_k or f16) and not bf16)"
    " or (test_attention and f16 and not q8_0 and (reaches or softmax or tile))"
)
NOT_HERE = "not test_isa and not test_jit"  # these start processes for themselves
# What compiled code may call: Numba's runtime, Python's errors, our own functions, and memory.
CALLS = re.compile(r"_?(numba_|NRT_|Py|_?ZN|\.const|\.?L|mem(set|cpy|move)$)")


def environment(**variables: str) -> dict[str, str]:
    """Return this process's environment without what importing the kernels put there."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("NUMBA_", "QUANTCLI_ISA"))}
    return kept | {"PYTHONPATH": os.pathsep.join([str(TESTS), str(TESTS.parent)])} | variables


def is_usable(name: str) -> bool:
    """Return whether this machine can run an instruction set, if need be in another's encoding."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("QUANTCLI_ISA", name)
        try:
            isa.select()
        except UsageError:
            return False
    return True


@pytest.mark.parametrize("name", [level.name for level in isa.ISAS])
def test_kernels_pass_their_tests(name: str) -> None:
    if not is_usable(name):
        pytest.skip(f"this CPU cannot run {name}")
    if name == isa.usable()[0].name and "QUANTCLI_ISA" not in os.environ:
        pytest.skip(f"the other tests run on {name}")
    everything = os.environ.get("QUANTCLI_TEST_ISAS") == "all"
    selected = NOT_HERE if everything else f"({DIFFERING}) and {NOT_HERE}"
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "-k", selected]
    done = subprocess.run(
        [*command, *(str(TESTS / file) for file in FILES)],
        cwd=TESTS.parent,
        env=environment(QUANTCLI_ISA=name),
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout[-8000:]
    n_passed = int(re.search(r"(\d+) passed", done.stdout)[1])  # type: ignore[index]
    assert n_passed > 250, "the selection above has lost its tests"


@cache
def assembly(*arguments: str) -> str:
    """Return what kernel_assembly.py prints."""
    command = [sys.executable, str(TESTS / "kernel_assembly.py"), *arguments]
    done = subprocess.run(command, env=environment(), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def counts(text: str, *patterns: str) -> list[int]:
    """Return how often each pattern occurs."""
    return [len(re.findall(pattern, text)) for pattern in patterns]


def assert_calls_no_library(text: str) -> None:
    """Fail if the assembly takes the address of a function that computes, or calls one."""
    names = re.findall(r"(?m)^\s+(?:movabsq\s+\$|(?:bl|callq?|jmp)\s+)([A-Za-z_.][\w.]*)", text)
    wrong = {name for name in names if not CALLS.match(name)}
    assert not wrong, wrong


@pytest.mark.parametrize("name", X86)
def test_x86_code_is_of_its_level(name: str) -> None:
    if platform.machine() not in ("x86_64", "AMD64"):
        pytest.skip("Numba compiles for this machine's own kind of CPU")
    text = assembly(name)
    assert_calls_no_library(text)
    dots = counts(text, r"\{vex\}\s+vpdpbusd[^\n]*ymm", r"vpdpbusd[^\n]*zmm", "vpmaddubsw")
    zmm, ymm = counts(text, "%zmm", "%ymm")
    halves, fused = counts(text, "vcvt(ph2ps|ps2ph)", "vfmadd")
    evex = counts(text, r"%[xy]mm(1[6-9]|2\d|3[01])\b", r"%k[1-7]\b")
    vex_dots, wide_dots, pair_dots = dots
    if name == "avx512_vnni":
        assert wide_dots > 0
        assert not vex_dots
    else:
        assert not zmm
        assert not sum(evex)
    if name == "avx_vnni":  # real, not in AVX-512's encoding: that is only for running it
        assert vex_dots == counts(text, "vpdpbusd")[0] > 0
    if name == "avx2":
        assert pair_dots == counts(text, "vpmaddwd")[0] > 0
        assert not counts(text, "vpdpbusd")[0]
    if name == "generic":
        assert not ymm + fused + halves + sum(dots)
    else:
        assert min(ymm, fused, halves) > 0


@pytest.mark.parametrize("triple", ARM)
def test_neon_code_uses_the_dot_product_and_no_library(triple: str) -> None:
    text = assembly("neon", *ARM).split("\f")[ARM.index(triple)]
    assert_calls_no_library(text)
    assert min(counts(text, r"\bsdot", r"\bfmla", r"\bfcvtl2?", r"\bfcvtn2?")) > 0
    assert not sum(counts(text, r"\budot\b", r"__\w+hf\w*", r"\bfmadd.*\bh\d"))
