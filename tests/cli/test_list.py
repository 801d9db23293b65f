"""quantcli list: a table for people, the same facts as JSON."""

from __future__ import annotations

import json
from datetime import datetime
from pathlib import Path

import pytest
from gguf_builder import GGUF, Tensor, key

from quantcli.checkpoint import home, hub_cache
from quantcli.checkpoint.sources import find, rows
from quantcli.cli.app import main


@pytest.fixture
def models() -> list[Path]:
    """Have smollm2 in quantcli's own folder, and a repository's file in the hub cache."""
    data = GGUF(
        [key("general.architecture", "llama"), key("general.file_type", 3)],
        [Tensor("token_embd.weight", (32,))],
    ).build()
    row = find("smollm2")
    own = home.StoredModel(row.name, row.file, len(data), row.sha256, row.licence, "a test")
    own.folder.mkdir(parents=True)
    draft = own.folder / "draft"
    draft.write_bytes(data)
    home.publish(own, draft)
    cached = hub_cache.snapshot_path("org/Tiny-GGUF", "c" * 40, "tiny-Q8_0.gguf")
    cached.parent.mkdir(parents=True)
    cached.write_bytes(data)
    return [cached, own.path]


def test_the_table_has_a_line_for_each_model(
    models: list[Path], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["list"]) == 0
    out, err = capsys.readouterr()
    head, tiny, smollm2 = out.splitlines()
    assert head.split() == ["name", "size", "format", "where", "last", "used"]
    assert tiny.startswith("org/Tiny-GGUF:Q8_0 ")
    assert "  q4_1    hub cache  " in tiny
    assert smollm2.startswith("smollm2 ")
    assert "  quantcli  " in smollm2
    assert err == ""


def test_json_has_the_same_facts(models: list[Path], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list", "--json"]) == 0
    tiny, smollm2 = json.loads(capsys.readouterr().out)
    assert [tiny["paths"], smollm2["paths"]] == [[str(path)] for path in models]
    assert (tiny["name"], tiny["where"]) == ("org/Tiny-GGUF:Q8_0", "hub cache")
    assert (smollm2["format"], smollm2["nbytes"]) == ("q4_1", models[0].stat().st_size)
    assert datetime.fromisoformat(smollm2["last_used"]).tzinfo is not None


def test_all_adds_the_models_that_have_a_name(
    models: list[Path], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["list", "--all", "--json"]) == 0
    listed = json.loads(capsys.readouterr().out)
    names = [model["name"] for model in listed]
    assert len(names) == len(set(names))
    assert set(names) == {*rows(), "org/Tiny-GGUF:Q8_0"}
    where = {model["name"]: model["where"] for model in listed[2:]}
    assert where.pop("tiny") == "in quantcli"
    assert set(where.values()) == {"not here"}
    assert main(["list", "--all"]) == 0
    assert "gemma3-270m  " in capsys.readouterr().out


def test_an_interrupted_download_is_listed_as_such(capsys: pytest.CaptureFixture[str]) -> None:
    folder = home.staging(find("smollm2").sha256)
    folder.mkdir(parents=True)
    (folder / "wheel").write_bytes(bytes(1234))
    assert main(["list"]) == 0
    assert "smollm2  1.2 kB          partial download" in capsys.readouterr().out


def test_nothing_here_is_no_error_and_says_what_to_do(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list"]) == 0
    assert capsys.readouterr() == (
        "",
        "No model is here. Run 'quantcli pull smollm2', or see --all.\n",
    )
    assert main(["list", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == []
