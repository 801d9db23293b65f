"""Print the assembly of some kernels for an instruction set, on a machine that need not have it.

    python kernel_assembly.py avx2               compiled by Numba, as it would be used
    python kernel_assembly.py neon TRIPLE ...    the tiles alone, and some kernels, for other CPUs

Nothing compiled here runs. In the second form Numba compiles for this machine, in whose LLVM IR
the kernels named below hold nothing of any one instruction set; LLVM then compiles that for the
other. Tiles have such things, so they are written straight to a module of their own.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence

import llvmlite.binding as llvm
from llvmlite import ir

from quantcli.kernels import isa

I64 = ir.IntType(64)
CPUS = {"aarch64": ("generic", "+neon,+dotprod,+fullfp16"), "arm64": ("apple-m1", "")}


def choose(name: str, pretend: bool) -> None:
    """Make the kernels use an instruction set; `pretend`: only its operations, not its features."""
    level = next(level for level in isa.ISAS if level.name == name)
    if pretend:
        level = isa.Isa(level.name, level.module, (), ())
    os.environ["QUANTCLI_ISA"] = name
    isa.usable = lambda: (level,)  # type: ignore[assignment]


def by_numba() -> str:
    """Return the assembly of a signed product, of staging and of a half-precision store."""
    from quantcli.kernels import activations, heads, matmul

    kernels = [matmul.module("q8_0").matmul, activations.stage, heads.prepare_f16]
    return "\n".join(_compiled(kernel).get_asm_str() for kernel in kernels)


def _compiled(kernel):  # type: ignore[no-untyped-def]
    """Compile a kernel as OpKernel does, but not into the cache, which keeps no assembly."""
    import numba

    from quantcli.kernels.jit import OP_SIGNATURE

    make = numba.cfunc(OP_SIGNATURE, nopython=True, error_model="numpy")
    return make(kernel.function)._library


def for_targets(triples: Sequence[str]) -> list[str]:
    """Return the assembly of tiles and kernels for other machines."""
    from quantcli.kernels import activations, heads

    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    texts = [str(tiles())]
    for kernel in (activations.stage, heads.prepare_f16):
        texts.append(str(_compiled(kernel)._final_module))
    return ["\n".join(_assembly(text, triple) for text in texts) for triple in triples]


def _assembly(text: str, triple: str) -> str:
    cpu, features = CPUS[triple.split("-")[0]]
    target = llvm.Target.from_triple(triple)
    machine = target.create_target_machine(cpu=cpu, features=features, opt=3)
    lines = [
        x for x in text.splitlines() if not x.startswith(("target triple", "target datalayout"))
    ]
    module = llvm.parse_assembly("\n".join(lines))
    module.triple, module.data_layout = triple, str(machine.target_data)
    module.verify()
    options = llvm.create_pipeline_tuning_options(speed_level=3)
    builder = llvm.create_pass_builder(machine, options)
    builder.getModulePassManager().run(module, builder)
    return str(machine.emit_assembly(module))


def tiles() -> ir.Module:
    """Return a module with the tiles of products and of attention, for one row and for a group."""
    from quantcli.kernels import matmul
    from quantcli.kernels.attention_tiles import _emit_scores, _emit_values
    from quantcli.kernels.kv_cache import KV_FORMATS
    from quantcli.kernels.matmul.tile import _emit_float_tile, _emit_tile
    from quantcli.kernels.simd import TILE_TOKENS

    module = ir.Module("tiles")
    for n in (1, TILE_TOKENS):
        for name in ("q8_0", "q4_0", "q6_k", "q2_k"):
            panel = matmul.module(name).PANEL
            _add(module, f"{name}_{n}", 9, lambda b, a, p=panel, n=n: _emit_tile(b, p, n, a))
        panel = matmul.module("f16").PANEL
        _add(module, f"f16_{n}", 9, lambda b, a, p=panel, n=n: _emit_float_tile(b, p, n, a))
        for name, kv in KV_FORMATS.items():
            _add(module, f"scores_{name}_{n}", 5, lambda b, a, k=kv, n=n: _emit_scores(b, k, n, a))
            _add(
                module, f"values_{name}_{n}", 8, lambda b, a, k=kv, n=n: _emit_values(b, k, n, 2, a)
            )
    return module


def _add(
    module: ir.Module, name: str, n_args: int, emit: Callable[[ir.IRBuilder, list], None]
) -> None:
    kind = ir.FunctionType(ir.VoidType(), [I64] * n_args)
    function = ir.Function(module, kind, name)
    builder = ir.IRBuilder(function.append_basic_block("entry"))
    emit(builder, list(function.args))
    builder.ret_void()


if __name__ == "__main__":
    choose(sys.argv[1], pretend=len(sys.argv) > 2)
    sys.stdout.write("\f".join(for_targets(sys.argv[2:])) if sys.argv[2:] else by_numba())
