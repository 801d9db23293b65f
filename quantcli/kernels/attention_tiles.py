"""The two inner tiles of attention: 16 scores, and 16 values folded in, for up to T entries.

An entry is one query head of one row. Entries of a group share each load of K and V. As in the
matmul tile, an entry's additions come in one order whatever T is.
"""

from __future__ import annotations

from numba.core import cgutils, types
from numba.extending import intrinsic

from quantcli.kernels.simd import emit, machine
from quantcli.kernels.simd.vectors import F32, F32X16, I8X16, I16, I16X16, I64


def _emit_score_run(b, kv, n_entries, keys, queries, first, count):
    """Sum over `count` dimensions, even and odd apart; return the totals of each entry."""
    zero = emit.constant(F32X16, 0.0)
    sums = [cgutils.alloca_once(b, F32X16) for _ in range(2 * n_entries)]
    for slot in sums:
        b.store(zero, slot)
    width = 32 if kv.name == "f16" else 16  # bytes of one dimension of 16 keys
    with cgutils.for_range(b, b.lshr(count, I64(1))) as loop:
        for odd in (0, 1):
            dim = b.add(first, b.add(b.shl(loop.index, I64(1)), I64(odd)))
            address = emit.at(b, keys, b.mul(dim, I64(width)))
            if kv.name == "f16":
                key = machine.f16_to_f32(b, emit.load(b, I16X16, address))
            else:
                key = emit.i8_to_f32(b, emit.load(b, I8X16, address))
            query = emit.at(b, queries, b.mul(dim, I64(4 * n_entries)))
            for e in range(n_entries):
                slot = sums[2 * e + odd]
                value = emit.splat_load(b, F32, query, 4 * e)
                b.store(machine.fma(b, key, value, b.load(slot)), slot)
    return [b.fadd(b.load(sums[2 * e]), b.load(sums[2 * e + 1])) for e in range(n_entries)]


def _emit_scores(b, kv, n_entries, args):
    keys, queries, head_dim, out, out_stride = args
    if kv.name == "f16":
        totals = _emit_score_run(b, kv, n_entries, keys, queries, I64(0), head_dim)
    else:
        scales = emit.at(b, keys, b.mul(head_dim, I64(16)))
        slots = [cgutils.alloca_once_value(b, emit.constant(F32X16, 0.0)) for _ in range(n_entries)]
        with cgutils.for_range(b, b.lshr(head_dim, I64(5))) as loop:
            address = emit.at(b, scales, b.shl(loop.index, I64(5)))
            scale = machine.f16_to_f32(b, emit.load(b, I16X16, address))
            first = b.shl(loop.index, I64(5))
            parts = _emit_score_run(b, kv, n_entries, keys, queries, first, I64(32))
            for part, slot in zip(parts, slots, strict=True):
                b.store(machine.fma(b, part, scale, b.load(slot)), slot)
        totals = [b.load(slot) for slot in slots]
    for e, total in enumerate(totals):
        emit.store(b, total, emit.at(b, out, b.mul(out_stride, I64(e))))


@intrinsic(prefer_literal=True)
def score_tile(typingctx, kv, n_entries, keys, queries, head_dim, out, out_stride):
    """Write the dots of 16 keys with T queries.

    kv, n_entries    the KvFormat and T, known when compiling
    keys             address of a record of 16 keys
    queries          address of f32 (head_dim, T)
    out, out_stride  address of the first entry's 16 scores; bytes between entries
    """
    kv_format, count = kv.value, n_entries.literal_value

    def codegen(context, builder, signature, args):
        _emit_scores(builder, kv_format, count, args[2:])
        return context.get_dummy_value()

    i = types.int64
    return types.void(kv, n_entries, i, i, i, i, i), codegen


def _emit_values(b, kv, n_entries, n_vectors, args):
    values, head_dim, dim, n_keys, weights, weights_stride, out, out_stride = args
    slots = {}
    for e in range(n_entries):
        row = emit.at(b, out, b.mul(out_stride, I64(e)))
        for v in range(n_vectors):
            slots[e, v] = cgutils.alloca_once_value(b, emit.load(b, F32X16, row, 64 * v))
    rows = [emit.at(b, weights, b.mul(weights_stride, I64(e))) for e in range(n_entries)]
    n_scales = b.lshr(head_dim, I64(5))
    scales = emit.at(b, values, b.mul(head_dim, I64(16)))
    with cgutils.for_range(b, n_keys) as loop:
        at = b.add(b.mul(loop.index, head_dim), dim)
        if kv.name == "f16":
            address = emit.at(b, values, b.shl(at, I64(1)))
            vectors = [
                machine.f16_to_f32(b, emit.load(b, I16X16, address, 32 * v))
                for v in range(n_vectors)
            ]
        else:
            # dim is a multiple of 32 here, so one scale serves up to two vectors.
            index = b.add(b.mul(loop.index, n_scales), b.lshr(dim, I64(5)))
            half = emit.load(b, I16, emit.at(b, scales, b.shl(index, I64(1))))
            scale = machine.f16_to_f32(b, emit.splat(b, half))
            address = emit.at(b, values, at)
            vectors = [
                b.fmul(emit.i8_to_f32(b, emit.load(b, I8X16, address, 16 * v)), scale)
                for v in range(n_vectors)
            ]
        for e in range(n_entries):
            weight = emit.splat_load(b, F32, emit.at(b, rows[e], b.shl(loop.index, I64(2))))
            for v in range(n_vectors):
                slot = slots[e, v]
                b.store(machine.fma(b, vectors[v], weight, b.load(slot)), slot)
    for e in range(n_entries):
        row = emit.at(b, out, b.mul(out_stride, I64(e)))
        for v in range(n_vectors):
            emit.store(b, b.load(slots[e, v]), row, 64 * v)


@intrinsic(prefer_literal=True)
def value_tile(
    typingctx,
    kv,
    n_entries,
    n_vectors,
    values,
    head_dim,
    dim,
    n_keys,
    weights,
    weights_stride,
    out,
    out_stride,
):
    """Add the weighted values of up to 16 keys to T entries, 16 * n_vectors dimensions of them.

    kv, n_entries, n_vectors   known when compiling
    values                     address of a record of 16 values
    dim                        first dimension; `out` is already there
    n_keys                     keys of the record to add, from the first
    weights, weights_stride    address of f32 (16) of the first entry; bytes between entries
    out, out_stride            address of f32 (16 * n_vectors) of the first entry, and stride
    """
    kv_format = kv.value
    count, vectors = n_entries.literal_value, n_vectors.literal_value

    def codegen(context, builder, signature, args):
        _emit_values(builder, kv_format, count, vectors, args[3:])
        return context.get_dummy_value()

    i = types.int64
    return types.void(kv, n_entries, n_vectors, i, i, i, i, i, i, i, i), codegen
