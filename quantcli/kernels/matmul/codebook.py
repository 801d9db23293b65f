"""What the panels of formats with codebooks share: nibbles that stand for 16 levels.

The weights of such a format are whole multiples, of few sizes, of a scale: a codebook only says
which sizes may meet. A panel keeps no codebook: d, f32 of 16 rows; 8 steps of one or two i8 scales
a row, then nibbles; weight = d * scale * LEVELS[code], to the bit what the file says. Bit 3 of a
code is the sign, or which way iq1's eighth goes. 4.375 bits a weight, 4.625 with two scales.
"""

from __future__ import annotations

from numpy import float32 as f32

from quantcli.kernels.jit import inline
from quantcli.kernels.matmul import PanelFormat, fold, fold_halves
from quantcli.kernels.matmul.codes import (
    NIBBLES_NBYTES,
    get_nibble,
    i8_rows,
    nibble_quad,
    put_nibble,
)
from quantcli.kernels.simd import (
    SIGNED_OFFSET,
    emit,
    load_f32,
    load_i8,
    load_u16,
    machine,
    store_f32,
)
from quantcli.kernels.simd.vectors import F32X16

HEAD = 64
SCALES = 16  # bytes of a step's scales, for each part
STEP_1 = SCALES + NIBBLES_NBYTES
STEP_2 = 2 * SCALES + NIBBLES_NBYTES


def with_signs(magnitudes):
    """Return the 16 levels of magnitudes, of which there are at most 8."""
    padded = [int(m) for m in magnitudes] + [0] * (8 - len(magnitudes))
    return tuple(padded + [-m for m in padded])


@inline
def even_signs(seven):
    """Return eight signs of which seven are stored: the number of those set is even."""
    odd = seven ^ (seven >> 4)
    odd ^= odd >> 2
    odd ^= odd >> 1
    return seven | ((odd & 1) << 7)


@inline
def load_u32(address):
    """Return 32 bits, unsigned."""
    return load_u16(address) | (load_u16(address + 2) << 16)


@inline
def put_eight(nibbles, row, k, group, signs):
    """Set inputs k .. k + 7 of a row from a group of bit pairs and eight signs."""
    for j in range(8):
        put_nibble(nibbles, row, k + j, ((group >> (2 * j)) & 3) | (((signs >> j) & 1) << 3))


@inline
def put_four(nibbles, row, k, group, signs):
    """Set inputs k .. k + 3 of a row from a group of bit triples and four signs."""
    for j in range(4):
        put_nibble(nibbles, row, k + j, ((group >> (3 * j)) & 7) | (((signs >> j) & 1) << 3))


@inline
def unpack(block, row, out, levels, n_parts):
    """Write the 256 weights of a row, f32.

    Each format has an `unpack_block` of its own that calls this. Made in a function, as `codes`
    below is, they would all have one name, which Numba's cache on disk does not tell apart.
    """
    at_codes, n_inputs = SCALES * n_parts, 32 // n_parts
    d = load_f32(block + 4 * row)
    for s in range(8):
        step = block + HEAD + s * (at_codes + NIBBLES_NBYTES)
        for k in range(32):
            scale = d * f32(load_i8(step + SCALES * (k // n_inputs) + row))
            level = f32(levels[get_nibble(step + at_codes, row, k)])
            store_f32(out + 4 * (32 * s + k), scale * level)


def panel(name, levels, n_parts, pack_block, unpack_block):
    """Return the panel format of 16 levels with one or two scales a step."""
    table = tuple(level + SIGNED_OFFSET for level in levels)
    at_codes = SCALES * n_parts

    def codes(b, step, j):
        return machine.look_up(b, table, nibble_quad(b, emit.at(b, step, at_codes), j))

    def scales(b, head, step):
        return [b.fmul(head[0], i8_rows(b, step, SCALES * part)) for part in range(n_parts)]

    return PanelFormat(
        name=name,
        n_inputs=256,
        head_nbytes=HEAD,
        step_nbytes=at_codes + NIBBLES_NBYTES,
        words=fold(SIGNED_OFFSET) if n_parts == 1 else fold_halves(SIGNED_OFFSET),
        head=lambda b, block: (emit.load(b, F32X16, block),),
        codes=codes,
        scales=scales,
        minima=lambda b, head, step: [],
        is_signed=True,
        n_parts=n_parts,
        pack_block=pack_block,
        unpack_block=unpack_block,
    )
