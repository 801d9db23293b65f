"""quantcli convert, and folders wherever a model is named."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from hf_cases import Case
from hf_folders import write_folder
from hub_server import Hub, Repo, serving

from quantcli.checkpoint import open_checkpoint
from quantcli.checkpoint.store import installed, remove, resolve, resolve_folder
from quantcli.cli.app import main
from quantcli.errors import DownloadError, UsageError

CASE = Case("Qwen3ForCausalLM", qk_norm=True, vocabulary="spm", n_layers=1, n_files=2)
REPO = "org/Tiny-Model"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_folder(tmp_path / "Tiny-Model", CASE)


@pytest.fixture
def hub(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    files = {path.name: path.read_bytes() for path in folder.iterdir()}
    more = {"onnx/model.onnx": b"x", "pytorch_model.bin": b"x", ".gitattributes": b"x"}
    both = files | {"tiny-Q4_K_M.gguf": b"GGUF"}
    repos = {REPO: Repo(files | more, plain=frozenset({"config.json"})), "org/Both": Repo(both)}
    with serving(Hub(repos)) as server:
        monkeypatch.setenv("HF_ENDPOINT", server.endpoint)
        yield server


def test_the_file_is_named_after_folder_and_type(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(folder.parent)
    assert main(["convert", "Tiny-Model"]) == 0
    assert capsys.readouterr() == ("Tiny-Model-BF16.gguf\n", "")
    with open_checkpoint(folder.parent / "Tiny-Model-BF16.gguf") as checkpoint:
        assert checkpoint.metadata["general.file_type"] == 32


def test_a_document_says_what_was_written(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "x.gguf"
    assert main(["convert", str(folder), "-o", str(out), "--type", "q8_0", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["path"] == str(out)
    assert document["nbytes"] == out.stat().st_size
    assert (document["type"], document["architecture"]) == ("q8_0", "qwen3")
    assert sum(document["tensors"].values()) == document["n_tensors"]


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["FOLDER", "--type", "q4_0"], 2, "unknown type 'q4_0'. Did you mean q8_0?"),
        (["FOLDER", "-o", "none/x.gguf"], 2, "there is no folder none; make it first"),
        (["FOLDER", "-o", "here.gguf"], 2, "here.gguf exists; name another file, or use --force"),
        (["here.gguf"], 2, "here.gguf is a file; give a Hugging Face folder"),
        (["."], 1, "has no config.json"),
        (["smollm2"], 2, "smollm2 means a GGUF file; give a Hugging Face folder"),
        (["./nothing"], 2, "no such file: nothing"),
        ([], 2, "Missing argument 'MODEL'"),
    ],
)
def test_what_goes_wrong_is_one_sentence_and_an_exit_code(
    arguments: list[str],
    code: int,
    message: str,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(folder.parent)
    Path("here.gguf").write_bytes(b"mine")
    words = [folder.name if word == "FOLDER" else word for word in arguments]
    assert main(["convert", *words]) == code
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("error: ")
    assert message in err
    assert err.count("\n") == 1
    assert Path("here.gguf").read_bytes() == b"mine"


def test_a_repository_is_downloaded_as_a_folder(
    hub: Hub, folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "x.gguf"
    assert main(["convert", REPO, "-o", str(out)]) == 0
    assert main(["convert", str(folder), "-o", str(tmp_path / "y.gguf")]) == 0
    assert "is licensed under apache-2.0" in capsys.readouterr().err
    with open_checkpoint(out) as a, open_checkpoint(tmp_path / "y.gguf") as b:
        assert all(a.tensor(n).data.tobytes() == b.tensor(n).data.tobytes() for n in b.tensors)


def test_only_what_a_folder_needs_is_downloaded_and_once(hub: Hub, folder: Path) -> None:
    here = resolve(REPO)
    assert sorted(path.name for path in here.iterdir()) == sorted(
        path.name for path in folder.iterdir()
    )
    n = len(hub.seen)
    assert resolve(REPO) == here
    assert resolve_folder(REPO) == here
    assert len(hub.seen) == n


def test_a_repository_with_both_means_its_file_unless_a_folder_is_asked_for(hub: Hub) -> None:
    assert resolve("org/Both").name == "tiny-Q4_K_M.gguf"
    assert (resolve_folder("org/Both") / "config.json").is_file()


def test_a_repository_without_a_folder_is_told(hub: Hub) -> None:
    hub.repos["org/GGUF"] = Repo({"a-Q8_0.gguf": b"x"})
    with pytest.raises(DownloadError, match=r"org/GGUF has no config\.json with safetensors"):
        resolve_folder("org/GGUF")
    with pytest.raises(UsageError, match="means a GGUF file"):
        resolve_folder("org/GGUF:Q8_0")
    with pytest.raises(DownloadError, match="is not on this machine"):
        resolve_folder("org/GGUF", offline=True)


def test_a_downloaded_folder_is_listed_and_removed(
    hub: Hub, capsys: pytest.CaptureFixture[str]
) -> None:
    here = resolve(REPO)
    (model,) = installed()
    assert (model.name, model.path, model.format()) == (REPO, here, "bf16")
    assert model.nbytes == sum(path.stat().st_size for path in here.iterdir())
    assert main(["list"]) == 0
    assert REPO in capsys.readouterr().out
    assert remove(REPO) == model.nbytes
    assert not installed()
    assert not [path for path in here.rglob("*") if path.is_file()]


def test_half_a_download_is_no_folder(hub: Hub) -> None:
    here = resolve(REPO)
    next(here.glob("*.safetensors")).unlink()
    assert resolve(REPO) == here
    assert len(list(here.glob("*.safetensors"))) == 2


@pytest.mark.parametrize("command", [["inspect"], ["tokenize"], ["doctor"]])
def test_other_commands_take_a_folder(
    command: list[str], folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["the"] if command == ["tokenize"] else []
    assert main([*command, str(folder), *words]) == 0
    assert capsys.readouterr().out
