"""Ways to spoil a GGUF file: of its bytes, and of its keys and tensors as a program would see them.

A mutation of either kind takes a `random.Random` and returns the bytes of a file; what comes out
may well be a good file.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from random import Random

from gguf import GGUFReader
from gguf_builder import GGUF, Key, Plain, Tensor

from quantcli.checkpoint.gguf_layout import ARRAY, BOOL, F32, F64, SCALARS, STRING, TENSOR_TYPES

INTEGERS = (
    *(0, 1, 2, 3, 7, 31, 32, 33, 64, 127, 128, 255, 256, 1000, 65535, 65536, 1 << 20, 10**6),
    *(2**31 - 1, 2**31, 2**32 - 1, 2**32, 2**53, 2**61, 2**62, 2**63 - 1, 2**63, 2**64 - 32),
    *(-1, -2, -32, -128),
)
FLOATS = (0.0, -0.0, 1.0, -1.0, 0.5, 1e-45, 1e-6, 1e6, 1e38, -1e38)
NOT_FINITE = (float("nan"), float("inf"), float("-inf"))
WORDS = ("", "llama", "qwen2", "qwen3", "gemma3", "gpt2", "default", "model", "adapter", "none")
WORDS_MORE = ("linear", "yarn", "x", "\0", "\n", "\ud7ff\U0001f600", "<|im_start|>", "a" * 5000)
NOT_TEXT = (b"\xff", b"\xc3(", b"\xed\xa0\x80", b"abc\xe2\x82")
TEMPLATES = (
    "{{ ''.__class__.__mro__ }}",
    "{% for i in range(10**9) %}x{% endfor %}",
    "{{ 'x' * 10**9 }}",
    "{% for m in messages %}{{ m['content'] }}",
    "{{ raise_exception('no') }}",
    "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
    "{{ messages[0]['content'][99] }}{{ 1 / 0 }}",
)


def load(path: Path) -> GGUF:
    """Return a good file as a builder, read by another reader than ours."""
    reader = GGUFReader(path)
    keys = []
    for entry in reader.fields.values():
        if not entry.name.startswith("GGUF."):
            types = [int(t) for t in entry.types]
            items = types[-1] if types[0] == ARRAY else None
            keys.append(Key(entry.name, types[0], entry.contents(), items))
    tensors = [
        Tensor(t.name, tuple(map(int, t.shape)), int(t.tensor_type), t.data.tobytes())
        for t in reader.tensors
    ]
    return GGUF(keys, tensors, alignment=int(reader.alignment))


# Of bytes


def spoil_bytes(data: bytes, head_nbytes: int, random: Random) -> bytes:
    """Return a file with one to eight changes, most of them in its head."""
    spoilt = bytearray(data)
    for _ in range(random.choice((1, 1, 1, 2, 3, 8))):
        if not spoilt:
            break
        stop = min(head_nbytes, len(spoilt)) if random.random() < 0.9 else len(spoilt)
        random.choice(_OF_BYTES)(spoilt, random.randrange(max(stop, 1)), random)
    return bytes(spoilt)


def _flip_bit(data: bytearray, at: int, random: Random) -> None:
    data[at] ^= 1 << random.randrange(8)


def _set_byte(data: bytearray, at: int, random: Random) -> None:
    data[at] = random.choice((0, 1, 2, 8, 9, 13, 127, 128, 255, random.randrange(256)))


def _set_number(data: bytearray, at: int, random: Random) -> None:
    size = random.choice((4, 8))
    number = random.choice(INTEGERS) & ((1 << 8 * size) - 1)
    data[at : at + size] = number.to_bytes(size, "little")[: len(data) - at]


def _add_to_number(data: bytearray, at: int, random: Random) -> None:
    size = random.choice((4, 8))
    old = int.from_bytes(data[at : at + size], "little")
    new = (old + random.choice((-32, -8, -1, 1, 8, 32))) & ((1 << 8 * size) - 1)
    data[at : at + size] = new.to_bytes(size, "little")[: len(data) - at]


def _insert(data: bytearray, at: int, random: Random) -> None:
    n = random.choice((1, 2, 4, 8, 32, 1000))
    data[at:at] = random.choice((bytes(n), random.randbytes(n), bytes(data[at : at + n])))


def _delete(data: bytearray, at: int, random: Random) -> None:
    del data[at : at + random.choice((1, 2, 4, 8, 32, 1000))]


def _cut(data: bytearray, at: int, random: Random) -> None:
    del data[random.choice((at, random.randrange(len(data)))) :]


def _copy_over(data: bytearray, at: int, random: Random) -> None:
    start, n = random.randrange(len(data)), random.choice((4, 8, 16, 64))
    part = data[start : start + n]
    data[at : at + len(part)] = part


_OF_BYTES: tuple[Callable[[bytearray, int, Random], None], ...] = (
    *(_flip_bit, _set_byte, _set_number, _set_number, _add_to_number),
    *(_insert, _delete, _cut, _copy_over),
)


# Of keys and tensors


def spoil_fields(good: GGUF, random: Random) -> bytes:
    """Return a file, well formed or nearly so, in which one to three fields are wrong."""
    bad = copy.copy(good)
    bad.keys = [copy.copy(entry) for entry in good.keys]
    bad.tensors = [copy.copy(tensor) for tensor in good.tensors]
    for _ in range(random.choice((1, 1, 1, 2, 3))):
        random.choice(_OF_FIELDS)(bad, random)
    return bad.build()


def _any_value(type_id: int, random: Random) -> Plain:
    """Return an odd value that fits a type."""
    if type_id == STRING:
        return random.choice(WORDS + WORDS_MORE + NOT_TEXT + TEMPLATES)
    if type_id == BOOL:
        return random.choice((True, False))
    if type_id in (F32, F64):
        return random.choice(FLOATS + NOT_FINITE)
    return random.choice(INTEGERS)


def _as_type(value: Plain, type_id: int) -> Plain:
    """Return a value as another type would have it."""
    if type_id == STRING:
        return value if isinstance(value, str | bytes) else str(value)
    if isinstance(value, str | bytes):
        return len(value)
    return float(value) if type_id in (F32, F64) else value


def _set_value(bad: GGUF, random: Random) -> None:
    entry = random.choice(bad.keys)
    if entry.type_id != ARRAY:
        entry.value = _any_value(entry.type_id, random)
        return
    assert isinstance(entry.value, list)
    assert entry.item is not None
    items = list(entry.value)
    for _ in range(random.choice((1, 1, 2, 10)) if items else 0):
        items[random.randrange(len(items))] = random.choice(
            (_any_value(entry.item, random), random.choice(items))
        )
    entry.value = items


def _nudge_value(bad: GGUF, random: Random) -> None:
    numbers = [e for e in bad.keys if isinstance(e.value, int) and e.type_id not in (ARRAY, BOOL)]
    if numbers:
        entry = random.choice(numbers)
        assert isinstance(entry.value, int)
        entry.value = random.choice((entry.value - 1, entry.value + 1, entry.value * 2))


def _set_type(bad: GGUF, random: Random) -> None:
    entry = random.choice(bad.keys)
    type_id = random.choice((*SCALARS, STRING))
    if entry.type_id == ARRAY:
        assert isinstance(entry.value, list)
        entry.item = type_id
        entry.value = [_as_type(v, type_id) for v in entry.value]
    elif random.random() < 0.3:
        entry.item, entry.type_id, entry.value = entry.type_id, ARRAY, [entry.value]
    else:
        assert isinstance(entry.value, Plain)
        entry.type_id, entry.value = type_id, _as_type(entry.value, type_id)


def _resize_array(bad: GGUF, random: Random) -> None:
    arrays = [entry for entry in bad.keys if entry.type_id == ARRAY]
    if arrays:
        entry = random.choice(arrays)
        assert isinstance(entry.value, list)
        n = len(entry.value)
        keep = random.choice((0, 1, n // 2, max(n - 1, 0)))
        entry.value = random.choice((entry.value[:keep], entry.value + entry.value[:1]))


def _miscount_array(bad: GGUF, random: Random) -> None:
    arrays = [entry for entry in bad.keys if entry.type_id == ARRAY]
    if arrays:
        random.choice(arrays).n_items = random.choice(INTEGERS)


def _drop_key(bad: GGUF, random: Random) -> None:
    bad.keys.pop(random.randrange(len(bad.keys)))
    bad.keys = bad.keys or [Key("k", 0)]


def _swap_values(bad: GGUF, random: Random) -> None:
    one, other = random.choice(bad.keys), random.choice(bad.keys)
    one.name, other.name = other.name, one.name


def _rename_key(bad: GGUF, random: Random) -> None:
    entry = random.choice(bad.keys)
    entry.name = random.choice((random.choice(bad.keys).name, "", "split.count", "adapter.type"))


def _add_key(bad: GGUF, random: Random) -> None:
    entry = random.choice(
        (
            Key("general.alignment", 4, random.choice(INTEGERS)),
            Key("split.count", 2, random.choice(INTEGERS)),
            Key("general.type", STRING, random.choice(WORDS)),
            Key("tokenizer.chat_template", STRING, random.choice(TEMPLATES)),
            copy.copy(random.choice(bad.keys)),
        )
    )
    bad.keys = [e for e in bad.keys if e.name != entry.name or random.random() < 0.1] + [entry]


def _spoil_tensor(bad: GGUF, random: Random) -> None:
    if not bad.tensors:
        return
    at = random.randrange(len(bad.tensors))
    tensor = bad.tensors[at]
    match random.randrange(8):
        case 0:
            bad.tensors.pop(at)
        case 1:
            dims = list(tensor.dims)
            dims[random.randrange(len(dims))] = random.choice(INTEGERS)
            tensor.dims = tuple(dims)
        case 2:
            tensor.dims = random.choice(
                (tensor.dims[::-1], (*tensor.dims, 1), tensor.dims[:1], (*tensor.dims, 0), ())
            )
        case 3:
            tensor.type_id = random.choice((*TENSOR_TYPES, 4, 31, 99, -1))
            tensor.data = random.choice((None, tensor.data))
        case 4:
            tensor.offset = random.choice((*INTEGERS, 2**64 - 32, 2**64 - 64))
        case 5:
            tensor.name = random.choice((random.choice(bad.tensors).name, "x.weight", "", "../x"))
        case 6:
            tensor.n_dims = random.choice(INTEGERS)
        case _:
            tensor.data = random.randbytes(len(tensor.payload()))


def _spoil_header(bad: GGUF, random: Random) -> None:
    name = random.choice(("version", "n_keys", "n_tensors", "alignment"))
    n = random.choice(INTEGERS)
    setattr(bad, name, random.choice((1, 8, 16, 64, 4096)) if name == "alignment" else n)


_OF_FIELDS: tuple[Callable[[GGUF, Random], None], ...] = (
    *(_set_value,) * 6,
    *(_nudge_value, _set_type, _resize_array, _miscount_array) * 2,
    *(_drop_key, _swap_values, _rename_key, _add_key) * 2,
    *(_spoil_tensor,) * 4,
    _spoil_header,
)
