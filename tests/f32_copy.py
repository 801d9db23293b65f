"""A copy of a GGUF file whose weights are all F32: the same model without a quantized format."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from gguf import GGUFReader, GGUFValueType, GGUFWriter
from gguf.quants import dequantize

_OWN = ("general.architecture", "general.file_type")  # written by the writer, or no longer true


def write_f32_copy(path: Path, copy: Path) -> Path:
    """Write the copy and return its path."""
    reader = GGUFReader(path)
    writer = GGUFWriter(copy, reader.fields["general.architecture"].contents())
    for name, field in reader.fields.items():
        if not name.startswith("GGUF.") and name not in _OWN:
            kind = field.types[0]
            inner = field.types[-1] if kind == GGUFValueType.ARRAY else None
            writer.add_key_value(name, field.contents(), kind, sub_type=inner)
    for tensor in reader.tensors:
        weights = dequantize(tensor.data, tensor.tensor_type)
        writer.add_tensor(tensor.name, np.ascontiguousarray(weights, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return copy
