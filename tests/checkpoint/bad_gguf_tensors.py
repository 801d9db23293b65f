"""GGUF files that are no model or whose tensors are malformed, and what their refusal must say."""

from __future__ import annotations

from bad_gguf import ARCHITECTURE, BIG, FIRST, HEADER, KEYS, SECOND, Bad, keys, tensors
from gguf_builder import GGUF, Tensor, key

from quantcli.checkpoint.gguf_layout import F32, I32, U32
from quantcli.errors import UnsupportedModel


def alignment(value: int, type_id: int = U32) -> bytes:
    """Return a file that says it is aligned so."""
    return keys(key("general.alignment", value, type_id))


AT_ALIGNMENT = SECOND + 8 + len("general.alignment") + 4

MODEL = (
    Bad(
        "16 alignment 0", alignment(0), ("general.alignment", "is 0", "power of two"), AT_ALIGNMENT
    ),
    Bad("16 alignment 13", alignment(13), ("is 13", "power of two"), AT_ALIGNMENT),
    Bad("16 alignment 2^31", alignment(1 << 31), (str(1 << 31), "up to 1048576"), AT_ALIGNMENT),
    Bad("16 alignment 2 MiB", alignment(2 << 20), ("2097152", "up to 1048576"), AT_ALIGNMENT),
    Bad("16 alignment i32", alignment(32, I32), ("is i32", "must be u32"), AT_ALIGNMENT),
    Bad("16 alignment f32", alignment(32, F32), ("is f32", "must be u32"), AT_ALIGNMENT),
    Bad(
        "16 alignment in text",
        keys(key("general.alignment", "32")),
        ("is str", "must be u32"),
        AT_ALIGNMENT + 8,
    ),
    Bad(
        "17 no architecture",
        GGUF([key("general.name", "x")], [Tensor("w", (32,))]).build(),
        ("general.architecture", "missing"),
    ),
    Bad(
        "17 architecture is a number",
        GGUF([key("general.architecture", 7)], [Tensor("w", (32,))]).build(),
        ("general.architecture", "u32", "str"),
        FIRST + 8 + 20 + 4,
    ),
    Bad(
        "17 architecture is a list",
        GGUF([key("general.architecture", ["llama"])], [Tensor("w", (32,))]).build(),
        ("general.architecture", "[str]"),
        FIRST + 8 + 20 + 16,
    ),
    Bad(
        "9 architecture is not UTF-8",
        GGUF([key("general.architecture", b"ll\xff")], [Tensor("w", (32,))]).build(),
        ("general.architecture", r"'ll\\xff'", "UTF-8"),
        FIRST + 8 + 20 + 12,
    ),
    Bad(
        "39 adapter",
        keys(key("general.type", "adapter"), key("adapter.type", "lora")),
        ("a LoRA adapter", "--lora"),
        error=UnsupportedModel,
    ),
    Bad(
        "39 importance matrix",
        GGUF([key("general.type", "imatrix")], [Tensor("w.in_sum2", (32,))]).build(),
        ("an importance matrix",),
        error=UnsupportedModel,
    ),
    Bad(
        "39 projector",
        GGUF([key("general.type", "mmproj"), key("general.architecture", "clip")]).build(),
        ("a multimodal projector",),
        error=UnsupportedModel,
    ),
    Bad(
        "39 projector without a type",
        GGUF([key("general.architecture", "clip"), key("clip.projector_type", "mlp")]).build(),
        ("a multimodal projector",),
        error=UnsupportedModel,
    ),
    Bad(
        "39 control vector",
        GGUF([key("general.architecture", "controlvector")], [Tensor("direction.1", (4,))]).build(),
        ("a control vector",),
        error=UnsupportedModel,
    ),
    Bad(
        "39 vocabulary only",
        GGUF([ARCHITECTURE, key("tokenizer.ggml.tokens", ["a", "b"])], alignment=1).build(),
        ("no tensors", "the model's own"),
        error=UnsupportedModel,
    ),
)

ROW = SECOND  # the row of the first tensor
AT_DIMS = ROW + 8 + 1 + 4  # of a tensor named with one character
AT_NUMBER = ROW + 8 + 1
MAX_OFFSET = 2**64 - 32

TENSORS = (
    Bad(
        "18 duplicate tensor",
        tensors(Tensor("w", (8,)), Tensor("w", (8,))),
        ("the name of tensor 1", "'w' a second time", "unique"),
        ROW + 33,
    ),
    Bad(
        "19 name of 64 bytes",
        tensors(Tensor("w" * 64, (8,))),
        ("name of tensor 0", "64", "at most 63"),
        ROW,
    ),
    Bad("19 empty name", tensors(Tensor("", (8,))), ("name of tensor 0", "''"), ROW),
    Bad("19 name with NUL", tensors(Tensor("a\0b", (8,))), (r"'a\x00b'", "printable"), ROW),
    Bad("19 name with escape", tensors(Tensor("\x1b[0m", (8,))), (r"\x1b[0m", "printable"), ROW),
    Bad("19 name not UTF-8", tensors(Tensor(b"\xc3(", (8,))), ("name of tensor 0", "UTF-8"), ROW),
    Bad("19 name of a path", tensors(Tensor("../x", (8,))), ("'../x'", "free of /"), ROW),
    Bad("19 name of a path, Windows", tensors(Tensor("a\\x", (8,))), ("free of /",), ROW),
    Bad("20 no dimensions", tensors(Tensor("w", ())), ("'w'", "is 0", "1 to 4"), AT_NUMBER),
    Bad("20 five", tensors(Tensor("w", (1,) * 5)), ("is 5", "1 to 4"), AT_NUMBER),
    Bad("20 2^32-1", tensors(Tensor("w", (8,), n_dims=-1)), ("4294967295", "1 to 4"), AT_NUMBER),
    Bad("21 dimension 0", tensors(Tensor("w", (0,))), ("dimension 0 of tensor 'w'", "0"), AT_DIMS),
    Bad("21 dimension 0 of 2", tensors(Tensor("w", (8, 0))), ("dimension 1", "is 0"), AT_DIMS + 8),
    Bad("21 dimension -1", tensors(Tensor("w", (-1,))), (str(2**64 - 1), "from 1 to"), AT_DIMS),
    Bad("21 dimension 2^63", tensors(Tensor("w", (BIG,))), (str(BIG), "from 1 to"), AT_DIMS),
    Bad(
        "21 product wraps to 4 bytes",
        tensors(Tensor("w", (4, (1 << 30) - 1, (1 << 30) + 1))),
        ("the size of tensor 'w'", str(16 * (2**60 - 1)), "below 2**63"),
        ROW,
    ),
    Bad(
        "21 terabytes",
        tensors(Tensor("w", (1 << 20, 1 << 20))),
        ("the file", "bytes long", "'w'", str(4 << 40), "incomplete"),
    ),
    Bad(
        "21 product wraps to 0",
        tensors(Tensor("w", (1 << 62, 1 << 62, 1 << 62, 1 << 62))),
        ("the size of tensor 'w'", str(4 << 248), "below 2**63"),
        ROW,
    ),
    Bad(
        "22 half a block",
        tensors(Tensor("w", (48, 2), 2)),
        ("row length of tensor 'w'", "48", "a multiple of 32", "q4_0"),
        AT_DIMS,
    ),
    Bad("22 half a superblock", tensors(Tensor("w", (128,), 12)), ("128", "256", "q4_k"), AT_DIMS),
    Bad("23 type 255", tensors(Tensor("w", (32,), 255)), ("'w'", "255, unknown"), AT_DIMS + 8),
    Bad("23 type 42", tensors(Tensor("w", (32,), 42)), ("42, unknown", "q4_0"), AT_DIMS + 8),
    Bad("23 type -1", tensors(Tensor("w", (32,), -1)), ("4294967295, unknown",), AT_DIMS + 8),
    *(
        Bad(f"23 type {n}", tensors(Tensor("w", (32,), n)), (f"{n}, the removed",), AT_DIMS + 8)
        for n in (4, 5, 31, 32, 33, 36, 37, 38)
    ),
    Bad(
        "23 type q8_k",
        tensors(Tensor("w", (256,), 15)),
        ("'w'", "q8_k", "does not decode", "q4_0", "q6_k"),
        error=UnsupportedModel,
    ),
    Bad("23 iq2_xxs, cut", tensors(Tensor("w", (256,), 16))[:-32], ("'w'", "incomplete")),
    Bad(
        "24 offset 16",
        tensors(Tensor("w", (32,), offset=16)),
        ("offset of tensor 'w'", "16", "a multiple of 32"),
        ROW,
    ),
    Bad(
        "25 cut by a byte",
        tensors(Tensor("v", (32,)), Tensor("w", (32,)))[:-1],
        ("the file", "bytes long", "at least", "'w'", "incomplete", "fetch"),
    ),
    Bad("25 cut in half", tensors(Tensor("w", (4096,)))[:8192], ("8192 bytes", "'w'", "16384")),
    Bad(
        "25 offset past the end", tensors(Tensor("w", (8,), offset=1 << 40)), ("bytes long", "'w'")
    ),
    Bad(
        "26 same bytes",
        tensors(Tensor("v", (32,)), Tensor("w", (32,), offset=0)),
        ("the start of tensor 'w'", "at least", "'v' ends"),
        ROW + 33,
    ),
    Bad(
        "26 overlap",
        tensors(Tensor("v", (32,), offset=96), Tensor("w", (32,), offset=0), Tensor("x", (32,))),
        ("the start of tensor 'v'", "'w' ends"),
        ROW,
    ),
    Bad(
        "26 offset -32, in the header",
        tensors(Tensor("w", (8,), offset=-32)),
        ("offset of tensor 'w'", str(MAX_OFFSET), "2**64"),
        ROW,
    ),
    Bad(
        "27 offset wraps",
        tensors(Tensor("w", (1 << 20,), offset=MAX_OFFSET)),
        ("offset of tensor 'w'", str(MAX_OFFSET), "2**64"),
        ROW,
    ),
    Bad(
        "28 no data section",
        GGUF([ARCHITECTURE], [Tensor("w", (32,))]).head(),
        ("the file", "bytes long", "at least"),
    ),
    Bad(
        "28 cut in the table", tensors(Tensor("w", (32,)))[: ROW + 20], ("at least", "dimension 0")
    ),
)

ALL = (*HEADER, *KEYS, *MODEL, *TENSORS)
