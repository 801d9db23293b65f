"""Folders converted to GGUF: what llama.cpp converts them to, key by key and byte by byte."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from gguf_contents import contents
from hf_cases import CASES
from hf_folders import write_folder

from quantcli.huggingface.convert import convert, plan_conversion
from quantcli.huggingface.folder import open_model

GOLDENS = json.loads(
    (Path(__file__).parent.parent / "goldens" / "convert.json").read_text(encoding="utf-8")
)
PRE = "gpt-2"


def converted(folder: Path, type_name: str = "auto", **options: bool) -> Path:
    """Convert a folder beside itself and return the file."""
    path = folder.parent / "out.gguf"
    with open_model(folder, pre=PRE) as checkpoint:
        convert(checkpoint, plan_conversion(checkpoint, path, type_name), **options)
    return path


@pytest.mark.parametrize("name", GOLDENS)
def test_keys_and_tensors_are_those_of_llama_cpps_converter(name: str, tmp_path: Path) -> None:
    case, _, type_name = name.rpartition("-")
    folder = write_folder(tmp_path / case, CASES[case])
    found = json.loads(json.dumps(contents(converted(folder, type_name))))
    want = GOLDENS[name]
    assert found["keys"] == want["keys"]
    assert found["tensors"] == want["tensors"]
