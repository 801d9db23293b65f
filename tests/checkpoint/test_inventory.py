"""The models on this machine: which are listed, which a name means, what deleting deletes."""

from __future__ import annotations

from pathlib import Path

import pytest
from gguf_builder import GGUF, Tensor, key
from hub_server import git_sha1, sha256

from quantcli.checkpoint import home, hub_cache
from quantcli.checkpoint.inventory import (
    InstalledModel,
    delete,
    folders,
    installed,
    matching,
    partial,
    remove,
)
from quantcli.checkpoint.sources import find
from quantcli.errors import UnknownName, UsageError

REPO = "org/Tiny-GGUF"


def in_cache(repo: str, files: dict[str, bytes], commit: str = "c" * 40) -> None:
    """Put files into the shared cache as huggingface_hub would."""
    for path, data in files.items():
        blob = hub_cache.repo_folder(repo) / "blobs" / sha256(data)
        blob.parent.mkdir(parents=True, exist_ok=True)
        blob.write_bytes(data)
        hub_cache.link(blob, hub_cache.snapshot_path(repo, commit, path))
    hub_cache.write_ref(repo, "main", commit)


def in_own_folder(name: str = "smollm2", data: bytes = b"GGUF") -> home.StoredModel:
    row = find(name)
    model = home.StoredModel(row.name, row.file, len(data), row.sha256, row.licence, "a test")
    draft = home.staging(row.sha256) / "draft"
    draft.parent.mkdir(parents=True)
    draft.write_bytes(data)
    home.publish(model, draft)
    home.discard(row.sha256)
    return model


def names(models: list[InstalledModel]) -> list[str]:
    return [model.name for model in models]


def test_nothing_is_listed_where_nothing_is() -> None:
    assert installed() == []
    assert partial() == []
    assert not any(path.exists() for path in folders().values())


def test_both_places_are_listed_by_names_that_lead_to_the_files() -> None:
    stored = in_own_folder()
    row = find("qwen3-0.6b")
    in_cache(REPO, {"t-Q4_K_M.gguf": b"4", "t-Q8_0.gguf": b"88", "README.md": b""})
    in_cache("org/Two", {"a-Q8_0.gguf": b"a8", "b-Q8_0.gguf": b"b8", "c.gguf": b"c"})
    in_cache(row.hub.repo, {row.file: b"qwen"})
    found = installed()
    assert names(found) == [
        "org/Tiny-GGUF:Q4_K_M",
        "org/Tiny-GGUF:Q8_0",
        "org/Two/a-Q8_0.gguf",
        "org/Two/b-Q8_0.gguf",
        "org/Two/c.gguf",
        "qwen3-0.6b",
        "smollm2",
    ]
    assert [model.nbytes for model in found] == [1, 2, 2, 2, 1, 4, 4]
    assert {model.where for model in found} == {"hub cache", "quantcli"}
    assert found[-1].path == stored.path
    for model in found:
        assert matching(model.name) == [model]


def test_a_split_model_is_one_entry_and_half_of_it_is_none() -> None:
    shards = {f"t-Q4_0-{i:05}-of-00002.gguf": bytes(i) for i in (1, 2)}
    in_cache(REPO, shards)
    in_cache("org/Half", dict(list(shards.items())[1:]))
    (model,) = installed()
    assert (model.name, model.nbytes, len(model.paths)) == ("org/Tiny-GGUF:Q4_0", 3, 2)


def test_a_file_of_two_snapshots_is_listed_once_and_deleted_from_both() -> None:
    in_cache(REPO, {"t-Q8_0.gguf": b"8"}, "a" * 40)
    in_cache(REPO, {"t-Q8_0.gguf": b"8", "README.md": b"new"}, "b" * 40)
    (model,) = installed()
    assert "b" * 40 in str(model.path)
    assert delete([model]) == 1
    assert installed() == []
    assert hub_cache.cached(REPO) == []


def test_other_kinds_of_files_in_the_cache_are_left_alone() -> None:
    in_cache(REPO, {"t-Q8_0.gguf": b"8", "model.safetensors": b"s", "mmproj-f16.gguf": b"m"})
    assert remove(REPO) == 1
    left = [path.name for path in hub_cache.repo_folder(REPO).rglob("*") if path.is_file()]
    assert {"model.safetensors", "mmproj-f16.gguf"} <= set(left)


def test_a_repository_means_all_its_models_and_a_tag_means_one() -> None:
    in_cache(REPO, {"t-Q4_K_M.gguf": b"4", "t-Q8_0.gguf": b"88"})
    assert names(matching(REPO)) == ["org/Tiny-GGUF:Q4_K_M", "org/Tiny-GGUF:Q8_0"]
    assert names(matching(f"hf.co/{REPO}:q8_0")) == ["org/Tiny-GGUF:Q8_0"]
    assert names(matching(f"{REPO}/T-Q4_K_M.gguf")) == ["org/Tiny-GGUF:Q4_K_M"]
    assert remove(f"{REPO}:Q8_0") == 2
    assert names(installed()) == ["org/Tiny-GGUF:Q4_K_M"]


def test_a_model_in_both_places_is_removed_from_both() -> None:
    row = find("smollm2")
    in_own_folder()
    in_cache(row.hub.repo, {row.file: b"GGUF"}, row.hub.revision)
    assert [model.where for model in matching("smollm2-135m")] == ["hub cache", "quantcli"]
    assert remove("SmolLM2") == 8
    assert installed() == []


def test_what_an_interrupt_left_is_listed_apart_and_can_be_removed() -> None:
    folder = home.staging(find("smollm2").sha256)
    folder.mkdir(parents=True)
    (folder / "part.whl").write_bytes(b"12345")
    in_cache(REPO, {"t-Q8_0.gguf": b"8"})
    blob = hub_cache.repo_folder(REPO) / "blobs" / "half.incomplete"
    blob.write_bytes(b"123")
    assert names(installed()) == ["org/Tiny-GGUF:Q8_0"]
    assert [(m.name, m.nbytes, m.where, m.format()) for m in partial()] == [
        ("smollm2", 5, "partial download", ""),
        ("org/Tiny-GGUF", 3, "partial download", ""),
    ]
    assert remove("smollm2") == 5
    assert remove(REPO) == 3
    assert partial() == []
    assert names(installed()) == ["org/Tiny-GGUF:Q8_0"]


def test_a_users_own_file_is_never_removed(tmp_path: Path) -> None:
    path = tmp_path / "mine.gguf"
    path.write_bytes(b"GGUF")
    in_own_folder()
    with pytest.raises(UsageError, match=r"is your own file; only downloaded models are removed"):
        remove(str(path))
    assert path.exists()


def test_removing_what_is_not_here_says_what_is() -> None:
    with pytest.raises(UsageError, match=r"smollm2 is not here: no model has been downloaded"):
        remove("smollm2")
    in_own_folder()
    with pytest.raises(UnknownName, match=r"unknown downloaded model 'qwen3-0\.6b'.*smollm2"):
        remove("qwen3-0.6b")
    with pytest.raises(UnknownName, match=r"unknown downloaded model 'org/other'"):
        remove("org/other")


@pytest.mark.parametrize(
    ("file_type", "name"), [(15, "q4_k_m"), (3, "q4_1"), (0, "f32"), (7, "q8_0"), (9999, "")]
)
def test_the_format_is_what_the_file_says(file_type: int, name: str) -> None:
    data = GGUF(
        [key("general.architecture", "llama"), key("general.file_type", file_type)],
        [Tensor("token_embd.weight", (32,))],
    ).build()
    in_cache(REPO, {"t.gguf": data})
    (model,) = installed()
    assert model.format() == name


def test_a_file_that_cannot_be_read_has_no_format() -> None:
    in_cache(REPO, {"t.gguf": b"not a model"})
    (model,) = installed()
    assert model.format() == ""


def test_strange_things_in_the_cache_do_not_matter() -> None:
    cache = hub_cache.cache_folder()
    in_cache(REPO, {"t-Q8_0.gguf": b"8"})
    (cache / "models--broken").mkdir()
    (cache / "models--a--file").write_bytes(b"")
    (cache / "datasets--org--d").mkdir()
    empty = hub_cache.repo_folder("org/Empty")
    (empty / "snapshots" / "d").mkdir(parents=True)
    (empty / "snapshots" / "d" / "dangling.gguf").symlink_to("nowhere")
    assert names(installed()) == ["org/Tiny-GGUF:Q8_0"]
    assert remove(REPO) == 1


def test_gits_name_of_a_file_is_known() -> None:
    # git hash-object of an empty file
    assert git_sha1(b"") == "e69de29bb2d1d6434b8b29ae775ad8c2e48c5391"
