"""GGUF files whose header or metadata is malformed, and what their refusal must say."""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import NamedTuple

from gguf_builder import GGUF, Key, Tensor, key, text, u32, u64

from quantcli.checkpoint import GGUFError
from quantcli.checkpoint.gguf_layout import ARRAY, BOOL, I8, I32, STRING, U32, U64
from quantcli.errors import CheckpointError, UnsupportedModel

ARCHITECTURE = key("general.architecture", "llama")


class Bad(NamedTuple):
    """A bad file and its refusal.

    data    its bytes, or what makes them if they are many
    says    fragments of the message, which is one line and names the file
    offset  GGUFError.offset, or None where there is no one place
    """

    name: str
    data: bytes | Callable[[], bytes]
    says: tuple[str, ...]
    offset: int | None = None
    error: type[CheckpointError | UnsupportedModel] = GGUFError

    def build(self) -> bytes:
        """Return the file."""
        return self.data if isinstance(self.data, bytes) else self.data()


def keys(*entries: Key, n_keys: int | None = None) -> bytes:
    """Return a file with an architecture, these keys and one tensor."""
    return GGUF([ARCHITECTURE, *entries], [Tensor("w", (32,))], n_keys=n_keys).build()


def tensors(*rows: Tensor, **fields: int) -> bytes:
    """Return a file with these tensors."""
    return GGUF([ARCHITECTURE], list(rows), **fields).build()  # type: ignore[arg-type]


FIRST = 24  # the first key
SECOND = FIRST + len(ARCHITECTURE.build())  # the key after the architecture; or the first tensor
BIG = 1 << 63

HEADER = (
    Bad("1 empty", b"", ("empty", "a GGUF file")),
    Bad("1 three bytes", b"GGU", ("b'GGU'", "b'GGUF'"), 0),
    Bad("1 magic only", b"GGUF", ("4", "at least 8", "the version")),
    Bad("1 cut in the header", GGUF().build()[:20], ("20", "at least 24", "number of keys")),
    Bad("2 zip", b"PK\x03\x04" + bytes(60), ("a zip archive", "PyTorch", "convert"), 0),
    Bad("2 pickle", b"\x80\x02}q\x00" + bytes(60), ("a Python pickle", "convert"), 0),
    Bad(
        "2 safetensors",
        struct.pack("<Q", 40) + b'{"w":{"dtype":"F32","shape":[1]}}',
        ("safetensors", "convert"),
        0,
    ),
    Bad("2 web page", b"\n<!DOCTYPE html><html>...", ("a web page", "download"), 0),
    Bad("2 web page without a doctype", b"<HTML>\n<head>", ("a web page",), 0),
    Bad(
        "2 LFS pointer",
        b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 98362432\n",
        ("a Git LFS pointer", "git lfs pull"),
        0,
    ),
    Bad("2 JSON", b'{"error": "not found"}', ("a JSON text",), 0),
    Bad("2 GGML", b"tjgg\x03\0\0\0" + bytes(60), ("before GGUF",), 0),
    Bad("2 swapped magic", b"FUGG" + bytes(60), ("byte-swapped",), 0),
    Bad("2 gzip", b"\x1f\x8b\x08" + bytes(60), ("a compressed file", "unpack"), 0),
    Bad("2 HDF5", b"\x89HDF\r\n\x1a\n", ("HDF5",), 0),
    Bad("2 text", b"not found", ("a text file",), 0),
    Bad("2 zeros", bytes(4096), ("never arrived", "fetch it again"), 0),
    Bad("2 noise", bytes(range(128, 228)), ("magic number", "b'GGUF'"), 0),
    Bad("3 version 0", GGUF(version=0).build(), ("version", "is 0", "2 or 3"), 4),
    Bad("3 version 1", GGUF(version=1).build(), ("version", "is 1", "2 or 3"), 4),
    Bad("3 version 4", GGUF(version=4).build(), ("version", "is 4", "2 or 3"), 4),
    Bad("3 version 2^32-1", GGUF(version=-1).build(), ("4294967295", "2 or 3"), 4),
    Bad("4 big-endian 3", GGUF(version=3 << 24).build(), ("3, big-endian", "little-endian"), 4),
    Bad("4 big-endian 2", GGUF(version=2 << 24).build(), ("2, big-endian", "little-endian"), 4),
    Bad("5 2^63 keys", GGUF(n_keys=BIG).build(), ("number of keys", str(BIG), "at most 0"), 16),
    Bad("5 -1 keys", GGUF(n_keys=-1).build(), ("number of keys", str(2**64 - 1)), 16),
    Bad(
        "5 one key too many",
        keys(n_keys=2),
        ("the name of tensor 0", "''", "printable"),  # key 1 is the row of the tensor
        SECOND + 14,
    ),
    Bad("6 2^63 tensors", GGUF(n_tensors=BIG).build(), ("number of tensors", str(BIG)), 8),
    Bad(
        "6 more than would fit",
        GGUF(n_tensors=100, alignment=1, tail=bytes(3000)).build(),
        ("number of tensors", "100", "at most 91", "3008 bytes are left"),
        8,
    ),
    Bad(
        "6 more than we take",
        lambda: GGUF(n_tensors=65537, tail=bytes(65537 * 37)).build(),
        ("number of tensors", "65537", "at most 65536"),
        8,
    ),
    Bad(
        "5 more than we take",
        lambda: GGUF(n_keys=65537, tail=bytes(65537 * 14)).build(),
        ("number of keys", "65537", "at most 65536"),
        16,
    ),
)

KEYS = (
    Bad(
        "7 key of 65536 bytes",
        keys(Key("k" * 65536, U32, 1)),
        ("length of key 1", "65536", "at most 65535"),
        SECOND,
    ),
    Bad(
        "7 key past the end",
        keys(Key("k", U32, 1, length=1000)),
        ("length of key 1", "1000", "bytes are left"),
        SECOND,
    ),
    Bad(
        "7 key of 2^63 bytes", keys(Key("k", U32, length=BIG)), ("key 1", str(BIG), "left"), SECOND
    ),
    Bad("8 empty key", keys(Key("", U32, 1)), ("key 1", "''", "printable"), SECOND),
    Bad("9 key not UTF-8", keys(Key(b"\xff\xfe", U32)), ("key 1", r"\xff", "UTF-8"), SECOND),
    Bad("9 key with escapes", keys(Key("a\x1b[2Jb", U32)), (r"a\x1b[2Jb", "printable"), SECOND),
    Bad("9 key with a newline", keys(Key("a\nb", U32)), (r"'a\nb'", "printable"), SECOND),
    Bad("10 type 13", keys(Key("k", 0, raw=u32(13))), ("'k'", "is 13", "0 to 12"), SECOND + 9),
    Bad("10 type 255", keys(Key("k", 0, raw=u32(255))), ("is 255", "0 to 12"), SECOND + 9),
    Bad("10 type -1", keys(Key("k", 0, raw=u32(-1))), ("4294967295", "0 to 12"), SECOND + 9),
    Bad(
        "11 duplicate key",
        keys(key("k", 1), key("k", 2)),
        ("key 2", "'k' a second time", "unique"),
        SECOND + 17,
    ),
    Bad(
        "12 string of 2^63",
        keys(Key("k", 0, raw=u32(STRING) + text("v", BIG))),
        ("the value of key 'k'", str(BIG), "bytes are left"),
        SECOND + 13,
    ),
    Bad(
        "12 string of 2^31",
        keys(Key("k", 0, raw=u32(STRING) + text("v", 1 << 31))),
        (str(1 << 31), "bytes are left"),
        SECOND + 13,
    ),
    Bad(
        "12 string one byte too long",
        GGUF([ARCHITECTURE, Key("k", 0, raw=u32(STRING) + text("v", 2))], alignment=1).build(),
        ("is 2", "at most 1"),
        SECOND + 13,
    ),
    Bad(
        "12 string over our limit",
        lambda: keys(key("tokenizer.chat_template", "x" * ((16 << 20) + 1))),
        ("tokenizer.chat_template", "16777217", "at most 16777216"),
        SECOND + 8 + 23 + 4,
    ),
    Bad(
        "12 string of an array past the end",
        keys(Key("k", 0, raw=u32(ARRAY) + u32(STRING) + u64(2) + text("a") + text("b", 1 << 40))),
        ("string 1 of the value of key 'k'", str(1 << 40), "bytes are left"),
        SECOND + 9 + 16 + 9,
    ),
    Bad(
        "12 string of an array of 2^64-1",
        keys(Key("k", 0, raw=u32(ARRAY) + u32(STRING) + u64(2) + text("a", -1) + text("b"))),
        ("string 0 of the value of key 'k'", str(2**64 - 1)),
        SECOND + 9 + 16,
    ),
    Bad(
        "12 strings that fill the file before the last",
        GGUF(
            [Key("k", 0, raw=u32(ARRAY) + u32(STRING) + u64(2) + text("x" * 40))], alignment=1
        ).build(),
        ("the size in bytes is 97", "at least 105", "the strings of the value of key 'k'"),
    ),
    Bad(
        "13 array longer than the file",
        keys(Key("k", ARRAY, [1], I32, n_items=1000)),
        ("number of items", "'k'", "1000", "at most"),
        SECOND + 17,
    ),
    Bad(
        "13 array of 2^61 f64",
        keys(Key("k", ARRAY, [1], U64, n_items=1 << 61)),
        (str(1 << 61), "at most"),
        SECOND + 17,
    ),
    Bad(
        "13 array of 2^63 u8",
        keys(Key("k", ARRAY, [1], 0, n_items=BIG)),
        (str(BIG), "at most"),
        SECOND + 17,
    ),
    Bad(
        "13 array of 2^61 strings",
        keys(Key("k", ARRAY, ["a"], STRING, n_items=1 << 61)),
        (str(1 << 61), "at most"),
        SECOND + 17,
    ),
    Bad(
        "13 array over our limit",
        lambda: keys(Key("k", ARRAY, b"", I8, n_items=(1 << 23) + 1)) + bytes(1 << 24),
        ("8388609", "at most 8388608"),
        SECOND + 17,
    ),
    Bad(
        "13 strings over our limit",
        lambda: keys(Key("k", ARRAY, b"", STRING, n_items=(1 << 21) + 1)) + bytes(1 << 25),
        ("2097153", "at most 2097152"),
        SECOND + 17,
    ),
    Bad(
        "13 item type 13",
        keys(Key("k", 0, raw=u32(ARRAY) + u32(13) + u64(1))),
        ("item type", "'k'", "is 13", "0 to 12"),
        SECOND + 13,
    ),
    Bad(
        "14 nested array",
        keys(Key("k", 0, raw=u32(ARRAY) * 2 + u64(1) + u32(U32) + u64(1) + u32(7))),
        ("'k'", "9, an array", "do not nest"),
        SECOND + 13,
    ),
    Bad(
        "14 1000 levels",
        keys(Key("k", 0, raw=u32(ARRAY) + (u32(ARRAY) + u64(1)) * 1000)),
        ("9, an array", "do not nest"),
        SECOND + 13,
    ),
    Bad("15 bool of 2", keys(Key("k", 0, raw=u32(BOOL) + b"\2")), ("is 2", "0 or 1"), SECOND + 13),
    Bad(
        "15 bool of 7 in an array",
        keys(Key("k", 0, raw=u32(ARRAY) + u32(BOOL) + u64(3) + b"\0\7\1")),
        ("item of the value of key 'k'", "is 7", "0 or 1"),
        SECOND + 25,
    ),
    Bad("cut in a value", keys(key("k", 1))[: SECOND + 14], ("at least", "'k'", "incomplete")),
    Bad(
        "metadata over our limit",
        lambda: keys(*(key(f"k{i}", "x" * (16 << 20)) for i in range(5))),
        ("'k3'", "within the first 67108864 bytes"),
        SECOND + 3 * (8 + 2 + 4 + 8 + (16 << 20)) + 8 + 2 + 4 + 8,
    ),
)
