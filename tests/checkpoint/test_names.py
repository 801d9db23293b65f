"""What a model's name means: paths, known models, hub names, and what is none of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from quantcli.checkpoint.names import HubName, parse
from quantcli.checkpoint.sources import find
from quantcli.errors import UnknownName, UsageError


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Work in a folder that holds `models/tiny.gguf` and `readme.txt`."""
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / "tiny.gguf").write_bytes(b"GGUF")
    (tmp_path / "readme.txt").write_bytes(b"")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize("name", ["models/tiny.gguf", "./models/tiny.gguf", "models", "readme.txt"])
def test_a_path_that_exists_is_returned_as_it_is(name: str) -> None:
    assert parse(name) == Path(name)


def test_the_home_folder_may_be_a_tilde(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(here))
    monkeypatch.setenv("USERPROFILE", str(here))
    assert parse("~/models/tiny.gguf") == here / "models" / "tiny.gguf"


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("models/tinny.gguf", r"no such file: models.tinny\.gguf\. Did you mean tiny\.gguf\?"),
        ("models/another.gguf", r"That folder has tiny\.gguf"),
        ("./nothing", r"no such file: nothing\. That folder has no \.gguf file"),
        ("model.gguf", r"no such file: model\.gguf\."),
        ("models/sub/model.gguf", r"There is no folder models.sub either"),
        ("model.safetensors", r"no such file: model\.safetensors"),
        (r"C:\nowhere\model.gguf", r"no such file: C:"),
    ],
)
def test_a_path_that_is_missing_names_what_lies_near(name: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        parse(name)


@pytest.mark.usefixtures("here")
def test_three_parts_are_a_hub_name_unless_the_first_is_a_folder() -> None:
    assert parse("nowhere/sub/model.gguf") == HubName("nowhere/sub", file="model.gguf")
    with pytest.raises(UsageError, match="no such file"):
        parse("models/sub/model.gguf")
    assert parse("hf.co/models/sub/model.gguf") == HubName("models/sub", file="model.gguf")


def test_a_known_name_is_its_row_in_any_case() -> None:
    assert parse("smollm2") == parse("SmolLM2") == find("smollm2")
    assert parse("smollm2-135m") == find("smollm2")


def test_a_folder_of_the_same_name_does_not_hide_a_known_model(here: Path) -> None:
    (here / "smollm2").mkdir()
    assert parse("smollm2") == find("smollm2")
    assert parse("./smollm2") == Path("smollm2")


def test_a_known_name_takes_another_quantization_from_its_repository() -> None:
    row = find("smollm2")
    assert parse("smollm2:q4_1") == row
    assert parse("smollm2:Q8_0") == HubName(row.hub.repo, quant="Q8_0")


def test_an_unknown_word_names_the_closest_model() -> None:
    with pytest.raises(UnknownName, match=r"unknown model 'smolm2'\. Did you mean smollm2\?"):
        parse("smolm2")


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("org/repo", HubName("org/repo")),
        ("org/repo:Q4_K_M", HubName("org/repo", quant="Q4_K_M")),
        ("hf.co/org/repo:q8_0", HubName("org/repo", quant="q8_0")),
        ("huggingface.co/org/re.po-1", HubName("org/re.po-1")),
        ("https://huggingface.co/org/repo/", HubName("org/repo")),
        ("org/repo/model.gguf", HubName("org/repo", file="model.gguf")),
        ("org/repo/Q4/model.GGUF", HubName("org/repo", file="Q4/model.GGUF")),
        (
            "https://huggingface.co/org/repo/blob/main/a/model.gguf",
            HubName("org/repo", file="a/model.gguf"),
        ),
        (
            "https://huggingface.co/org/repo/resolve/v1/my%20model.gguf?download=true",
            HubName("org/repo", file="my model.gguf", revision="v1"),
        ),
    ],
)
def test_hub_names(name: str, expected: HubName) -> None:
    assert parse(name) == expected


@pytest.mark.parametrize(
    "name",
    [
        "",
        "  ",
        "org/",
        "hf.co/org",
        "hf.co/../repo",
        "hf.co/org/repo/../../x.gguf",
        "org/repo:",
        "org/repo:a b",
        "org/repo/readme.md",
        "org/repo:Q4/model.gguf",
        "or--g/repo",
        "org/r\u00e9po",
        "org/repo\x00",
    ],
)
def test_what_is_no_name_is_one_sentence(name: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse(name)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["org/repo", "org/repo:Q4_K_M", "org/repo/model.gguf"])
def test_a_hub_name_is_spelt_as_it_is_read(name: str) -> None:
    assert str(parse(name)) == name
