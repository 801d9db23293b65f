"""Our tables of GGUF's types agree with gguf's, and with our block formats."""

from __future__ import annotations

import numpy as np
import pytest
from gguf import GGML_QUANT_SIZES, GGUF_DEFAULT_ALIGNMENT, GGMLQuantizationType, GGUFValueType

from quantcli import formats
from quantcli.checkpoint import gguf_layout as layout


def test_tensor_types_are_those_of_gguf() -> None:
    theirs = {int(t): (t.name.lower(), *GGML_QUANT_SIZES[t]) for t in GGMLQuantizationType}
    # A newer gguf may know more.
    assert {n: tuple(t) for n, t in layout.TENSOR_TYPES.items()}.items() <= theirs.items()
    assert not layout.REMOVED_TENSOR_TYPES.keys() & theirs.keys()


@pytest.mark.parametrize("name", [f.name for f in formats.every()])
def test_block_formats_have_the_sizes_of_their_tensor_type(name: str) -> None:
    fmt = formats.get(name)
    sizes = (fmt.name, fmt.weights_per_block, fmt.block_nbytes)
    assert layout.TENSOR_TYPES[fmt.ggml_id] == sizes


def test_value_types_are_those_of_gguf() -> None:
    ours = {"STRING": layout.STRING, "ARRAY": layout.ARRAY}
    ours |= {name: getattr(layout, name) for name in ("U8", "I8", "U16", "I16", "BOOL")}
    ours |= {name: getattr(layout, name) for name in ("U32", "I32", "U64", "I64", "F32", "F64")}
    long = {"U": "UINT", "I": "INT", "F": "FLOAT"}
    theirs = {t.name: int(t) for t in GGUFValueType}
    assert theirs == {
        long[name[0]] + name[1:] if name[1:].isdigit() else name: type_id
        for name, type_id in ours.items()
    }


def test_scalars_have_one_size() -> None:
    for scalar in layout.SCALARS.values():
        assert np.dtype(scalar.dtype).itemsize == scalar.code.size


def test_the_alignment_is_that_of_gguf() -> None:
    assert layout.DEFAULT_ALIGNMENT == GGUF_DEFAULT_ALIGNMENT


def test_text_from_a_file_is_quoted_on_one_short_line() -> None:
    assert layout.quoted("a\n\x1b[0m") == r"'a\n\x1b[0m'"
    assert layout.quoted(b"a\xff") == r"'a\\xff'"
    assert layout.quoted("x" * 100) == f"'{'x' * 64}'..."
