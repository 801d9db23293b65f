"""What GGUF files are made of: constants, type tables, our limits, and the error for bad ones.

Source: the GGUF specification, https://github.com/ggml-org/ggml/blob/master/docs/gguf.md.
"""

from __future__ import annotations

from pathlib import Path
from struct import Struct
from typing import NamedTuple

from quantcli.errors import CheckpointError

MAGIC = b"GGUF"
VERSIONS = (2, 3)  # 1 had 32-bit lengths and died in 2023
HEADER_NBYTES = 24  # magic, version u32, n_tensors u64, n_keys u64
DEFAULT_ALIGNMENT = 32
SHARD_NAME = "{prefix}-{number:05d}-of-{count:05d}.gguf"  # number counts from 1, split.no from 0

# Limits. A file past one of them is refused before anything of that size is allocated, so that
# every refusal stays under a second and 200 MB.
MAX_METADATA_NBYTES = 64 << 20  # ten times the largest known, Gemma's 6.5 MB
MAX_KEYS = 65_536  # real files have fewer than 100
MAX_KEY_NBYTES = 65_535  # the specification's own
MAX_STRING_NBYTES = 16 << 20  # chat templates are below 100 KB
MAX_STRINGS = 1 << 21  # in a file; four times a vocabulary of 262,144 with 262,144 merges
MAX_ITEMS = 1 << 23  # in one array of numbers; 32 times a vocabulary of 262,144
MAX_TENSORS = 65_536  # the largest models have a few thousand
MAX_NAME_NBYTES = 63  # ggml's name field, less its final NUL
MAX_DIMS = 4  # ggml's
MAX_ALIGNMENT = 1 << 20  # real files use 32; each tensor may waste this much
MAX_SHARDS = 512  # one open file each; the largest models come in about 100

# The least bytes of a key with its value (length, one byte, type, one byte) and of a tensor's
# entry (length, one byte, n_dims, one dimension, type, offset): counts are held against them.
MIN_KEY_ENTRY_NBYTES = 8 + 1 + 4 + 1
MIN_TENSOR_ENTRY_NBYTES = 8 + 1 + 4 + 8 + 4 + 8

U8, I8, U16, I16, U32, I32, F32, BOOL, STRING, ARRAY, U64, I64, F64 = range(13)


class Scalar(NamedTuple):
    """One type of number in metadata: its name, and how one is read."""

    name: str
    code: Struct
    dtype: str


SCALARS = {
    U8: Scalar("u8", Struct("<B"), "<u1"),
    I8: Scalar("i8", Struct("<b"), "<i1"),
    U16: Scalar("u16", Struct("<H"), "<u2"),
    I16: Scalar("i16", Struct("<h"), "<i2"),
    U32: Scalar("u32", Struct("<I"), "<u4"),
    I32: Scalar("i32", Struct("<i"), "<i4"),
    F32: Scalar("f32", Struct("<f"), "<f4"),
    BOOL: Scalar("bool", Struct("<B"), "|u1"),
    U64: Scalar("u64", Struct("<Q"), "<u8"),
    I64: Scalar("i64", Struct("<q"), "<i8"),
    F64: Scalar("f64", Struct("<d"), "<f8"),
}


class GGMLType(NamedTuple):
    """How one of ggml's tensor types lies in a file."""

    name: str
    weights_per_block: int
    block_nbytes: int


# All of ggml's types, so that sizes are checked for those quantcli does not decode, too.
TENSOR_TYPES = {
    0: GGMLType("f32", 1, 4),
    1: GGMLType("f16", 1, 2),
    2: GGMLType("q4_0", 32, 18),
    3: GGMLType("q4_1", 32, 20),
    6: GGMLType("q5_0", 32, 22),
    7: GGMLType("q5_1", 32, 24),
    8: GGMLType("q8_0", 32, 34),
    9: GGMLType("q8_1", 32, 40),
    10: GGMLType("q2_k", 256, 84),
    11: GGMLType("q3_k", 256, 110),
    12: GGMLType("q4_k", 256, 144),
    13: GGMLType("q5_k", 256, 176),
    14: GGMLType("q6_k", 256, 210),
    15: GGMLType("q8_k", 256, 292),
    16: GGMLType("iq2_xxs", 256, 66),
    17: GGMLType("iq2_xs", 256, 74),
    18: GGMLType("iq3_xxs", 256, 98),
    19: GGMLType("iq1_s", 256, 50),
    20: GGMLType("iq4_nl", 32, 18),
    21: GGMLType("iq3_s", 256, 110),
    22: GGMLType("iq2_s", 256, 82),
    23: GGMLType("iq4_xs", 256, 136),
    24: GGMLType("i8", 1, 1),
    25: GGMLType("i16", 1, 2),
    26: GGMLType("i32", 1, 4),
    27: GGMLType("i64", 1, 8),
    28: GGMLType("f64", 1, 8),
    29: GGMLType("iq1_m", 256, 56),
    30: GGMLType("bf16", 1, 2),
    34: GGMLType("tq1_0", 256, 54),
    35: GGMLType("tq2_0", 256, 66),
    39: GGMLType("mxfp4", 32, 17),
    40: GGMLType("nvfp4", 64, 36),
    41: GGMLType("q1_0", 128, 18),
}
REMOVED_TENSOR_TYPES = {
    4: "q4_2",
    5: "q4_3",
    31: "q4_0_4_4",
    32: "q4_0_4_8",
    33: "q4_0_8_8",
    36: "iq4_nl_4_4",
    37: "iq4_nl_4_8",
    38: "iq4_nl_8_8",
}


class GGUFError(CheckpointError):
    """A GGUF file that breaks the format or one of our limits.

    path     the file
    what     the place: a field, key or tensor
    got      the value seen there
    allowed  what would be right
    offset   the byte of the file where the place starts, or None if it is not one place
    """

    def __init__(
        self, path: Path, what: str, got: object, allowed: str, offset: int | None = None
    ) -> None:
        """Build the one-sentence message from its parts."""
        self.path = path
        self.what = what
        self.got = str(got)
        self.allowed = allowed
        self.offset = offset
        at = "" if offset is None else f" (byte {offset})"
        super().__init__(f"{path}: {what}{at} is {self.got}; it must be {allowed}.")


def quoted(text: str | bytes) -> str:
    """Return text from a file for use in a message: in quotes, escaped, on one line, not long."""
    shown = text[:64]
    if isinstance(shown, bytes):
        shown = shown.decode("utf-8", "backslashreplace")
    return repr(shown) + ("..." if len(text) > 64 else "")
