"""What a GGUF file holds, short enough for a golden, as the `gguf` package reads it."""

from __future__ import annotations

import json
from hashlib import sha256
from pathlib import Path

from gguf import GGUFReader


def contents(path: Path) -> dict[str, object]:
    """Return a file's keys with their types, and its tensors with the hashes of their bytes."""
    reader = GGUFReader(path)
    keys = {
        name: [[kind.name.lower() for kind in field.types], short(field.contents())]
        for name, field in reader.fields.items()
        if not name.startswith("GGUF.")
    }
    tensors = {
        tensor.name: [
            tensor.tensor_type.name.lower(),
            [int(n) for n in tensor.shape[::-1]],
            sha256(tensor.data.tobytes()).hexdigest()[:32],
        ]
        for tensor in reader.tensors
    }
    return {"keys": keys, "tensors": tensors}


def short(value: object) -> object:
    """Return a value, or the hash of a long one."""
    if isinstance(value, list) and len(value) > 8:
        text = json.dumps(value)
        return {"n": len(value), "sha256": sha256(text.encode()).hexdigest()[:32]}
    return value
