"""The SIMD operations that kernels are written in, for the instruction set in use.

Vectors have 16 lanes. Addresses are int64. `+ - * /` work on f32x16; everything else is a
function below. One module per instruction set supplies the few operations that differ.
"""

from __future__ import annotations

import operator
from importlib import import_module

from numba.core import types
from numba.extending import intrinsic, overload

from quantcli.kernels.jit import ISA
from quantcli.kernels.simd import emit
from quantcli.kernels.simd.vectors import (
    F32,
    F32X16,
    I8,
    I8X16,
    I16,
    I16X16,
    I32,
    I32X16,
    I64,
    VOID,
    Vec,
    f32x16,
    i32x16,
)

machine = import_module(f"quantcli.kernels.simd.{ISA.module}")

TILE_TOKENS: int = machine.TILE_TOKENS
SIGNED_OFFSET: int = machine.SIGNED_OFFSET

_ADDRESS = types.int64
_I64 = types.int64
_I32 = types.int32
_F32 = types.float32


def isa_name() -> str:
    """Return the name of the instruction set in use."""
    return ISA.name


def define(result, params, emitter):
    """Return a Numba intrinsic of fixed types from a function (builder, *values) -> value."""
    signature = result(*params)

    def codegen(context, builder, signature, args):
        value = emitter(builder, *args)
        return context.get_dummy_value() if result is types.void else value

    typers = {
        0: lambda typingctx: (signature, codegen),
        1: lambda typingctx, a: (signature, codegen),
        2: lambda typingctx, a, b: (signature, codegen),
        3: lambda typingctx, a, b, c: (signature, codegen),
        4: lambda typingctx, a, b, c, d: (signature, codegen),
        5: lambda typingctx, a, b, c, d, e: (signature, codegen),
    }
    return intrinsic(typers[len(params)])


def _scalar_load(kind, widen=None):
    def emitter(b, address):
        value = emit.load(b, kind, address)
        return widen(b, value) if widen else value

    return emitter


def _store(b, address, value):
    emit.store(b, value, address)


# ---- memory, scalars
load_f32 = define(_F32, (_ADDRESS,), _scalar_load(F32))
load_i64 = define(_I64, (_ADDRESS,), _scalar_load(I64))
load_i32 = define(_I32, (_ADDRESS,), _scalar_load(I32))
load_u8 = define(_I64, (_ADDRESS,), _scalar_load(I8, lambda b, v: b.zext(v, I64)))
load_i8 = define(_I64, (_ADDRESS,), _scalar_load(I8, lambda b, v: b.sext(v, I64)))
load_u16 = define(_I64, (_ADDRESS,), _scalar_load(I16, lambda b, v: b.zext(v, I64)))
store_f32 = define(types.void, (_ADDRESS, _F32), _store)
store_i64 = define(types.void, (_ADDRESS, _I64), _store)
store_i32 = define(types.void, (_ADDRESS, _I32), _store)
store_u8 = define(types.void, (_ADDRESS, _I64), lambda b, a, v: emit.store(b, b.trunc(v, I8), a))
store_u16 = define(types.void, (_ADDRESS, _I64), lambda b, a, v: emit.store(b, b.trunc(v, I16), a))


@intrinsic
def view(typingctx, address, dtype):
    """Return the record of a structured dtype that lies at an address; fields by name."""
    record = dtype.dtype

    def codegen(context, builder, signature, args):
        return builder.inttoptr(args[0], context.get_value_type(record))

    return record(_ADDRESS, dtype), codegen


# ---- memory, vectors
load_f32x16 = define(f32x16, (_ADDRESS,), _scalar_load(F32X16))
store_f32x16 = define(types.void, (_ADDRESS, f32x16), _store)
load_i32x16 = define(i32x16, (_ADDRESS,), _scalar_load(I32X16))
store_i32x16 = define(types.void, (_ADDRESS, i32x16), _store)
load_f16x16 = define(f32x16, (_ADDRESS,), _scalar_load(I16X16, machine.f16_to_f32))
load_bf16x16 = define(f32x16, (_ADDRESS,), _scalar_load(I16X16, emit.bf16_to_f32))
load_i8x16 = define(f32x16, (_ADDRESS,), _scalar_load(I8X16, emit.i8_to_f32))
load_u8x16 = define(f32x16, (_ADDRESS,), _scalar_load(I8X16, emit.u8_to_f32))
splat_f32_at = define(f32x16, (_ADDRESS,), lambda b, a: emit.splat_load(b, F32, a))
store_f16x16 = define(
    types.void, (_ADDRESS, f32x16), lambda b, a, v: emit.store(b, machine.f32_to_f16(b, v), a)
)
store_i8x16 = define(
    types.void, (_ADDRESS, i32x16), lambda b, a, v: emit.store(b, emit.narrow_to_i8(b, v), a)
)


def _f16_lane(b, bits):
    vector = emit.splat(b, bits)
    return b.extract_element(machine.f16_to_f32(b, vector), I32(0))


load_f16 = define(_F32, (_ADDRESS,), _scalar_load(I16, _f16_lane))


def _store_f16(b, address, value):
    bits = machine.f32_to_f16(b, emit.splat(b, value))
    emit.store(b, b.extract_element(bits, I32(0)), address)


store_f16 = define(types.void, (_ADDRESS, _F32), _store_f16)

# ---- lanes
splat = define(f32x16, (_F32,), emit.splat)
splat_i32 = define(i32x16, (_I32,), emit.splat)
lane_ids = define(i32x16, (), lambda b: I32X16(list(range(16))))
_EVEN, _ODD = list(range(0, 32, 2)), list(range(1, 32, 2))
even_lanes = define(f32x16, (f32x16, f32x16), lambda b, x, y: emit.shuffle(b, x, y, _EVEN))
odd_lanes = define(f32x16, (f32x16, f32x16), lambda b, x, y: emit.shuffle(b, x, y, _ODD))
_ZIP = [i // 2 + 16 * (i % 2) for i in range(32)]
zip_low = define(f32x16, (f32x16, f32x16), lambda b, x, y: emit.shuffle(b, x, y, _ZIP[:16]))
zip_high = define(f32x16, (f32x16, f32x16), lambda b, x, y: emit.shuffle(b, x, y, _ZIP[16:]))


def _lanes_between(b, x, start, stop, fill):
    ids = I32X16(list(range(16)))
    inside = b.and_(
        b.icmp_signed(">=", ids, emit.splat(b, start)),
        b.icmp_signed("<", ids, emit.splat(b, stop)),
    )
    return b.select(inside, x, emit.splat(b, fill))


lanes_between = define(
    f32x16,
    (
        f32x16,
        _I32,
        _I32,
        _F32,
    ),
    _lanes_between,
)


def _less_then(b, x, limit, small, other):
    return b.select(b.fcmp_ordered("<", x, limit), small, other)


select_less = define(f32x16, (f32x16, f32x16, f32x16, f32x16), _less_then)

# ---- arithmetic
vadd = define(f32x16, (f32x16, f32x16), lambda b, x, y: b.fadd(x, y))
vsub = define(f32x16, (f32x16, f32x16), lambda b, x, y: b.fsub(x, y))
vmul = define(f32x16, (f32x16, f32x16), lambda b, x, y: b.fmul(x, y))
vdiv = define(f32x16, (f32x16, f32x16), lambda b, x, y: b.fdiv(x, y))
fma = define(f32x16, (f32x16, f32x16, f32x16), machine.fma)
maximum = define(f32x16, (f32x16, f32x16), emit.maximum)
minimum = define(f32x16, (f32x16, f32x16), emit.minimum)
absolute = define(f32x16, (f32x16,), emit.absolute)
sqrt = define(f32x16, (f32x16,), lambda b, x: emit.call(b, "llvm.sqrt.v16f32", F32X16, x))
round_to_i32 = define(i32x16, (f32x16,), emit.round_to_i32)
i32_to_f32 = define(f32x16, (i32x16,), lambda b, x: b.sitofp(x, F32X16))
iadd = define(i32x16, (i32x16, i32x16), lambda b, x, y: b.add(x, y))


def _scale_by_power_of_two(b, x, n):
    exponent = b.shl(b.add(n, emit.constant(I32X16, 127)), emit.constant(I32X16, 23))
    return b.fmul(x, b.bitcast(exponent, F32X16))


ldexp = define(f32x16, (f32x16, i32x16), _scale_by_power_of_two)

# ---- reductions, each a fixed tree
hsum = define(_F32, (f32x16,), lambda b, x: emit.tree(b, x, b.fadd))
hmax = define(_F32, (f32x16,), lambda b, x: emit.tree(b, x, lambda p, q: emit.maximum(b, p, q)))


def _hmax_abs(b, x, y):
    """Largest magnitude, compared as integers: for magnitudes the order is the same, and NaN,
    above infinity, is not lost."""
    bits = [b.bitcast(emit.absolute(b, v), I32X16) for v in (x, y)]

    def larger(p, q):
        return b.select(b.icmp_signed(">", p, q), p, q)

    return b.bitcast(emit.tree(b, larger(*bits), larger), F32)


hmax_abs = define(_F32, (f32x16, f32x16), _hmax_abs)
hsum_i32 = define(_I32, (i32x16,), lambda b, x: emit.tree(b, x, b.add))


@overload(operator.add)
def _add(x, y):
    if isinstance(x, Vec) and isinstance(y, Vec):
        return lambda x, y: vadd(x, y)
    return None


@overload(operator.sub)
def _sub(x, y):
    if isinstance(x, Vec) and isinstance(y, Vec):
        return lambda x, y: vsub(x, y)
    return None


@overload(operator.mul)
def _mul(x, y):
    if isinstance(x, Vec) and isinstance(y, Vec):
        return lambda x, y: vmul(x, y)
    return None


@overload(operator.truediv)
def _truediv(x, y):
    if isinstance(x, Vec) and isinstance(y, Vec):
        return lambda x, y: vdiv(x, y)
    return None


# ---- threads
def _atomic_add(b, address, value):
    pointer = b.inttoptr(address, I64.as_pointer())
    return b.atomic_rmw("add", pointer, value, "acq_rel")


def _atomic_load(b, address):
    return b.load_atomic(b.inttoptr(address, I64.as_pointer()), "acquire", 8)


def _atomic_store(b, address, value):
    b.store_atomic(value, b.inttoptr(address, I64.as_pointer()), "release", 8)


def _call_op(b, function, args, thread, n_threads):
    from llvmlite import ir

    kind = ir.FunctionType(VOID, [I64, I64, I64])
    b.call(b.inttoptr(function, kind.as_pointer()), [args, thread, n_threads])


def _call_with_int(b, function, value):
    from llvmlite import ir

    kind = ir.FunctionType(I32, [I32])
    return b.call(b.inttoptr(function, kind.as_pointer()), [value])


atomic_add = define(_I64, (_ADDRESS, _I64), _atomic_add)
atomic_load = define(_I64, (_ADDRESS,), _atomic_load)
atomic_store = define(types.void, (_ADDRESS, _I64), _atomic_store)
call_op = define(types.void, (_I64, _I64, _I64, _I64), _call_op)
call_with_int = define(_I32, (_I64, _I32), _call_with_int)
pause = define(types.void, (), machine.pause)
