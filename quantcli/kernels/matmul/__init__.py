"""Matrix products with packed weights: the contract of a panel format and the table of them.

A panel holds 16 rows of a weight, lane r being row r, so that a product needs no horizontal
sums. Each format's module has its PanelFormat and two ops, `pack` and `matmul`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from types import ModuleType

PANEL_ROWS = 16

# What an activation block carries besides its codes and scale; one 4-byte word a token each.
# (is_float, part, factor): part 0 is all 32 values, 1 and 2 the halves. Floats are scale * sum,
# integers factor * sum, ready to start an accumulator with.
Word = tuple[bool, int, int]
SUM: tuple[Word, ...] = ((True, 0, 1),)
SUM_HALVES: tuple[Word, ...] = ((True, 1, 1), (True, 2, 1))


def fold(offset: int) -> tuple[Word, ...]:
    """Return the word that takes an offset off unsigned codes: -offset * sum."""
    return ((False, 0, -offset),) if offset else ()


def fold_halves(offset: int) -> tuple[Word, ...]:
    """Return the words that take an offset off each half of a block."""
    return ((False, 1, -offset), (False, 2, -offset))


@dataclass(frozen=True, slots=True, eq=False)
class PanelFormat:
    """How one weight format lies in memory for the integer tiles, and how a tile reads it.

    name           the format's name in the catalog
    n_inputs       inputs of one panel block: the format's own block, 16 (floats), 32, 64 or 256
    head_nbytes    bytes before the steps; a panel block is head + n_inputs / 32 steps
    step_nbytes    bytes of a step of 32 inputs by 16 rows
    words          what it needs of the activations, see Word
    is_signed      codes are i8 (stored plus SIGNED_OFFSET); otherwise u8 below 64
    pack_block     compiled (src, panel block, row): one block of one row, as in the file
    unpack_block   compiled (panel block, row, out): its weights as f32
    max_code       the largest of unsigned codes
    is_float       codes are the weights themselves, f32x16, a step is one input
    n_parts        1, or 2 where each half of 32 inputs has a scale of its own
    head           (b, block) -> values shared by the block's steps
    codes          (b, step, j) -> i8x64: inputs 4j .. 4j + 3 of all 16 rows
    scales         (b, head, step) -> f32x16 for each part
    minima         (b, head, step) -> f32x16 for each word of SUM or SUM_HALVES, or none
    """

    name: str
    n_inputs: int
    head_nbytes: int
    step_nbytes: int
    words: tuple[Word, ...]
    head: Callable[..., tuple[object, ...]]
    codes: Callable[..., object]
    scales: Callable[..., list[object]]
    minima: Callable[..., list[object]]
    pack_block: Callable[..., None]
    unpack_block: Callable[..., None]
    is_signed: bool = False
    max_code: int = 63
    n_parts: int = 1
    is_float: bool = False

    @property
    def n_steps(self) -> int:
        """Steps in a panel block; a float format's step is one input."""
        return self.n_inputs if self.is_float else self.n_inputs // 32

    @property
    def block_nbytes(self) -> int:
        """Bytes of one panel block."""
        return self.head_nbytes + self.n_steps * self.step_nbytes


_MODULES = (
    "bf16",
    "f16",
    "f32",
    "iq1_m",
    "iq1_s",
    "iq2_s",
    "iq2_xs",
    "iq2_xxs",
    "iq3_s",
    "iq3_xxs",
    "iq4_nl",
    "iq4_xs",
    "mxfp4",
    "nvfp4",
    "q2_k",
    "q3_k",
    "q4_0",
    "q4_1",
    "q4_k",
    "q5_0",
    "q5_1",
    "q5_k",
    "q6_k",
    "q8_0",
    "tq1_0",
    "tq2_0",
)


def names() -> tuple[str, ...]:
    """Return the weight formats that have kernels."""
    return _MODULES


def module(name: str) -> ModuleType:
    """Return the module with a format's `pack`, `matmul` and `unpack` kernels."""
    return import_module(f"quantcli.kernels.matmul.{name}")
