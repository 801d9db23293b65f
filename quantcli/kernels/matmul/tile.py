"""The matmul tile: 16 rows by T tokens, emitted as LLVM IR for one panel format.

The additions of a row come in one order whatever T is, so a token's result has the same bits
alone and among others. Weights are unpacked once for all T tokens.
"""

from __future__ import annotations

from llvmlite import ir
from numba.core import cgutils, types
from numba.extending import intrinsic, overload

from quantcli.kernels.matmul import PanelFormat
from quantcli.kernels.simd import emit, machine
from quantcli.kernels.simd.vectors import F32, F32X16, I8X64, I32, I32X16, I64
from quantcli.kernels.static import register_static

register_static(PanelFormat)


def pack_block(fmt, src, dst, row):
    """Pack one block of one row by the format's own function."""


def unpack_block(fmt, block, row, out):
    """Write the f32 weights of one row of a panel block by the format's own function."""


@overload(pack_block)
def _pack_block(fmt, src, dst, row):
    function = fmt.value.pack_block
    return lambda fmt, src, dst, row: function(src, dst, row)


@overload(unpack_block)
def _unpack_block(fmt, block, row, out):
    function = fmt.value.unpack_block
    return lambda fmt, block, row, out: function(block, row, out)


class _Activations:
    """The addresses of one block of a group of T tokens: codes, then scales, then words."""

    def __init__(self, b, n_tokens, block, words) -> None:
        self.b = b
        self.n_tokens = n_tokens
        self.block = block
        self.words = words

    def quad(self, token, j):
        """Inputs 4j .. 4j + 3 of a token in every lane, as i8x64."""
        value = emit.splat_load(self.b, I32, self.block, 32 * token + 4 * j)
        return self.b.bitcast(value, I8X64)

    def scale(self, token):
        """The block's scale of a token in every lane."""
        return emit.splat_load(self.b, F32, self.block, 32 * self.n_tokens + 4 * token)

    def word(self, kind, index, token):
        """Word `index` of this format for a token in every lane."""
        return emit.splat_load(self.b, kind, self.words, 4 * (index * self.n_tokens + token))


def _dots(b, fmt, acts, step, part):
    """Return the integer dots, i32 (16) for each token, of one part of a step."""
    n_quads = 8 // fmt.n_parts
    n_words = len(fmt.words)
    starts_folded = n_words > 0 and not fmt.words[0][0]
    zero = emit.constant(I32X16, 0)
    accs = [acts.word(I32, part, t) if starts_folded else zero for t in range(acts.n_tokens)]
    # Quads j and j + 4 share bytes in the 4-bit layouts: taken together, each byte loads once.
    order = [q for j in range(4) for q in (j, j + 4)] if fmt.n_parts == 1 else range(n_quads)
    quads = [j + part * n_quads for j in order]
    n_joined = 0 if fmt.is_signed else machine.PAIR_LIMIT // (2 * 127 * fmt.max_code)
    if n_joined > 1:
        for start in range(0, n_quads, n_joined):
            accs = _joined_dots(b, fmt, acts, step, quads[start : start + n_joined], accs)
        return accs
    dot = machine.dot_signed if fmt.is_signed else machine.dot_unsigned
    for quad in quads:
        codes = fmt.codes(b, step, quad)
        accs = [dot(b, acc, codes, acts.quad(t, quad)) for t, acc in enumerate(accs)]
    return accs


def _joined_dots(b, fmt, acts, step, quads, accs):
    """Add the dots of quads whose sums of pairs fit 16 bits together."""
    sums = None
    for quad in quads:
        codes = fmt.codes(b, step, quad)
        pairs = [machine.pairs(b, codes, acts.quad(t, quad)) for t in range(acts.n_tokens)]
        sums = pairs if sums is None else [b.add(x, y) for x, y in zip(sums, pairs, strict=True)]
    return [machine.add_pairs(b, acc, total) for acc, total in zip(accs, sums, strict=True)]


def _emit_step(b, fmt, acts, head, step, sums):
    """Add a step of 32 inputs to f32 (16) for each token, and return the new sums."""
    scales = fmt.scales(b, head, step)
    scaled = None
    for part, scale in enumerate(scales):
        floats = [b.sitofp(acc, F32X16) for acc in _dots(b, fmt, acts, step, part)]
        if scaled is None:
            scaled = [b.fmul(x, scale) for x in floats]
        else:
            scaled = [machine.fma(b, x, scale, y) for x, y in zip(floats, scaled, strict=True)]
    sums = [machine.fma(b, x, acts.scale(t), sums[t]) for t, x in enumerate(scaled)]
    for index, minimum in enumerate(fmt.minima(b, head, step)):
        sums = [
            machine.fma(b, minimum, acts.word(F32, index, t), total) for t, total in enumerate(sums)
        ]
    return sums


def _write(b, sums, out, out_stride, bias, is_add):
    """Store each token's 16 results, plus a bias, plus what was there."""
    has_bias = b.icmp_unsigned("!=", bias, I64(0))
    adds = b.icmp_unsigned("!=", is_add, I64(0))
    for token, total in enumerate(sums):
        address = emit.at(b, out, b.mul(out_stride, I64(token)))
        result = cgutils.alloca_once_value(b, total)
        with b.if_then(has_bias):
            b.store(b.fadd(b.load(result), emit.load(b, F32X16, bias)), result)
        with b.if_then(adds):
            b.store(b.fadd(b.load(result), emit.load(b, F32X16, address)), result)
        emit.store(b, b.load(result), address)


def _emit_tile(b, fmt, n_tokens, args):
    weights, acts, stride, words, n_blocks, out, out_stride, bias, is_add = args
    act_stride, words = b.mul(stride, I64(n_tokens)), b.mul(words, I64(n_tokens))
    zero = emit.constant(F32X16, 0.0)
    sums = [cgutils.alloca_once_value(b, zero) for _ in range(n_tokens)]
    n_steps = fmt.n_inputs // 32
    with cgutils.for_range(b, n_blocks) as block_loop:
        block = emit.at(b, weights, b.mul(block_loop.index, I64(fmt.block_nbytes)))
        head = fmt.head(b, block)
        first = b.mul(block_loop.index, I64(n_steps))
        with cgutils.for_range(b, I64(n_steps)) as step_loop:
            step = emit.at(b, block, fmt.head_nbytes)
            step = emit.at(b, step, b.mul(step_loop.index, I64(fmt.step_nbytes)))
            index = b.add(first, step_loop.index)
            at = emit.at(b, acts, b.mul(index, act_stride))
            view = _Activations(b, n_tokens, at, b.add(at, words))
            new = _emit_step(b, fmt, view, head, step, [b.load(s) for s in sums])
            for slot, value in zip(sums, new, strict=True):
                b.store(value, slot)
    _write(b, [b.load(s) for s in sums], out, out_stride, bias, is_add)


def _emit_float_tile(b, fmt, n_tokens, args):
    """Multiply f32, f16 or bf16 weights by f32; even and odd inputs are summed apart."""
    n_lanes = machine.FLOAT_LANES if n_tokens > 2 else 16
    parts = [_float_sums(b, fmt, n_tokens, args, n_lanes, part) for part in range(16 // n_lanes)]
    totals = [emit.join(b, list(rows)) for rows in zip(*parts, strict=True)]
    out, out_stride, bias, is_add = args[5:]
    _write(b, totals, out, out_stride, bias, is_add)


def _float_sums(b, fmt, n_tokens, args, n_lanes, part):
    """Return f32 (n_lanes) for each token: the sums of one part of the rows."""
    weights, acts, _, _, n_blocks = args[:5]
    n_pairs = b.mul(n_blocks, I64(fmt.n_inputs // 2))
    zero = emit.constant(ir.VectorType(F32, n_lanes), 0.0)
    sums = [cgutils.alloca_once_value(b, zero) for _ in range(2 * n_tokens)]
    with cgutils.for_range(b, n_pairs) as loop:
        for odd in (0, 1):
            index = b.add(b.shl(loop.index, I64(1)), I64(odd))
            row = emit.at(b, weights, b.mul(index, I64(fmt.step_nbytes)))
            weight = emit.part(b, fmt.codes(b, row, 0), part, n_lanes)
            x = emit.at(b, acts, b.mul(index, I64(4 * n_tokens)))
            for t in range(n_tokens):
                slot = sums[2 * t + odd]
                value = emit.splat(b, emit.load(b, F32, x, 4 * t), n_lanes)
                b.store(machine.fma(b, weight, value, b.load(slot)), slot)
    return [b.fadd(b.load(sums[2 * t]), b.load(sums[2 * t + 1])) for t in range(n_tokens)]


@intrinsic(prefer_literal=True)
def tile(
    typingctx, fmt, n_tokens, weights, acts, stride, words, n_blocks, out, out_stride, bias, add
):
    """Multiply one panel by a group of T tokens and write 16 outputs of each.

    fmt, n_tokens    the panel format and T, known when compiling
    weights          address of the panel
    acts             address of the group, see kernels.activations
    stride, words    bytes of a block, and where this format's words start in it, a token
    n_blocks         panel blocks in a row
    out, out_stride  address of the first token's 16 results; bytes between tokens
    bias             address of 16 f32 to add, or 0
    add              nonzero: add to what `out` holds
    """
    panel_format, count = fmt.value, n_tokens.literal_value
    emit_tile = _emit_float_tile if panel_format.is_float else _emit_tile

    def codegen(context, builder, signature, args):
        emit_tile(builder, panel_format, count, args[2:])
        return context.get_dummy_value()

    i = types.int64
    return types.void(fmt, n_tokens, i, i, i, i, i, i, i, i, i), codegen
