"""What a file that is no GGUF file looks like, judged by its first bytes."""

from __future__ import annotations

import re

SNIFF_NBYTES = 512

# pattern of the first bytes, what that is, what to do
_KINDS = (
    (rb"PK\x03\x04", "a zip archive, such as a PyTorch checkpoint", "convert it to GGUF"),
    (rb"\x80[\x02-\x05]", "a Python pickle, such as a PyTorch checkpoint", "convert it to GGUF"),
    (rb"(?s).{8}\s*\{\s*\"", "a safetensors file", "convert it to GGUF"),
    (rb"version https://git-lfs", "a Git LFS pointer", "fetch the real file with 'git lfs pull'"),
    (rb"(?i)\s*<(!doctype|html|head|\?xml|!--)", "a web page", "download the file itself"),
    (rb"\s*[{\[]", "a JSON text", "give the path of a model file"),
    (rb"(lmgg|fmgg|tjgg|algg)", "a GGML file from before GGUF", "get the model in GGUF"),
    (rb"FUGG", "a byte-swapped GGUF file", "get the little-endian file"),
    (rb"\x89HDF\r\n", "an HDF5 file", "convert it to GGUF"),
    (rb"(\x1f\x8b|\x28\xb5\x2f\xfd|\xfd7zXZ|BZh|7z\xbc\xaf)", "a compressed file", "unpack it"),
    (rb"(?s)\x00+\Z", "a download that never arrived", "fetch it again"),
    (rb"[\t\r\n\x20-\x7e]+\Z", "a text file", "give the path of a model file"),
)


def looks_like(head: bytes) -> tuple[str, str] | None:
    """Return what the first bytes of a file look like and what to do about it, or None."""
    for pattern, kind, advice in _KINDS:
        if re.match(pattern, head):
            return kind, advice
    return None
