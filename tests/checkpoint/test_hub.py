"""Downloads from the hub, against a stand-in server: whole, verified, resumed, or one sentence."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hub_server import TOKEN, Hub, Repo, git_sha1, serving, sha256

from quantcli.checkpoint import hub as client
from quantcli.checkpoint import hub_cache
from quantcli.errors import DownloadError, ResourceError

REPO = "org/Tiny-GGUF"
DATA = random.Random(7).randbytes(3_000_000)
PATH = "Tiny-Q4_K_M.gguf"


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    with serving(Hub({REPO: Repo({PATH: DATA, "README.md": b"# Tiny"})})) as server:
        monkeypatch.setenv("HF_ENDPOINT", server.endpoint)
        yield server


def fetch(repo: str = REPO, **options: object) -> Path:
    listing = client.list_files(repo)
    return client.fetch(listing, listing.files, **options)  # type: ignore[arg-type]


def blob() -> Path:
    return hub_cache.repo_folder(REPO) / "blobs" / sha256(DATA)


def test_a_listing_has_the_models_sizes_digests_commit_and_licence(hub: Hub) -> None:
    listing = client.list_files(REPO)
    assert [(f.path, f.nbytes, f.digest) for f in listing.files] == [
        (PATH, len(DATA), sha256(DATA))
    ]
    assert listing.commit == hub.repos[REPO].commit
    assert listing.licence == "apache-2.0"


def test_a_fetched_file_is_found_by_huggingface_hub_without_the_network(hub: Hub) -> None:
    from huggingface_hub import scan_cache_dir, try_to_load_from_cache

    path = fetch()
    cache = hub_cache.cache_folder()
    assert path.read_bytes() == DATA
    assert try_to_load_from_cache(REPO, PATH, cache_dir=cache) == str(path)
    scan = scan_cache_dir(cache)
    assert not scan.warnings
    (repo,) = scan.repos
    assert (repo.repo_id, repo.size_on_disk, set(repo.refs)) == (REPO, len(DATA), {"main"})
    assert not scan.incomplete_files


def test_what_huggingface_hub_downloads_is_found_by_us(hub: Hub, folders: Path) -> None:
    code = f"from huggingface_hub import hf_hub_download; hf_hub_download({REPO!r}, {PATH!r})"
    environment = {**os.environ, "HF_HUB_DISABLE_XET": "1", "HF_HUB_DISABLE_TELEMETRY": "1"}
    subprocess.run([sys.executable, "-c", code], env=environment, check=True, capture_output=True)
    (found,) = hub_cache.cached(REPO)
    assert (found.file.path, found.file.digest) == (PATH, sha256(DATA))
    assert found.path.read_bytes() == DATA


def test_a_second_fetch_sends_no_file_again(hub: Hub) -> None:
    first = fetch()
    sent = hub.n_sent
    assert fetch() == first
    assert hub.n_sent == sent == len(DATA)


def test_a_new_commit_with_the_same_file_costs_no_download(hub: Hub) -> None:
    first = fetch()
    hub.repos[REPO] = Repo({PATH: DATA, "README.md": b"# changed"})
    second = fetch()
    assert second != first
    assert second.read_bytes() == DATA
    assert hub.n_sent == len(DATA)


def test_progress_goes_from_nothing_to_everything(hub: Hub) -> None:
    steps: list[tuple[str, int, int]] = []
    fetch(progress=lambda *step: steps.append(step))
    done = [n for _, n, _ in steps]
    assert done == sorted(done)
    assert (done[0], done[-1]) == (0, len(DATA))
    assert len(steps) >= 3
    assert {(label, total) for label, _, total in steps} == {(PATH, len(DATA))}


def test_an_interrupted_download_counts_for_nothing_and_goes_on_where_it_stopped(hub: Hub) -> None:
    def interrupt(label: str, done: int, total: int) -> None:
        if done > total // 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fetch(progress=interrupt)
    there = hub_cache.partial_path(blob()).stat().st_size
    assert 0 < there < len(DATA)
    assert not blob().exists()
    assert hub_cache.cached(REPO) == []

    hub.seen.clear()
    path = fetch()
    assert path.read_bytes() == DATA
    assert [request.headers.get("range") for request in hub.asked("/elsewhere/")] == [
        f"bytes={there}-"
    ]
    assert not hub_cache.partial_path(blob()).exists()


def test_a_dropped_connection_is_taken_up_again_within_one_download(hub: Hub) -> None:
    hub.drop_after, hub.n_drops = 2_000_000, 1
    assert fetch().read_bytes() == DATA
    ranges = [request.headers.get("range") for request in hub.asked("/elsewhere/")]
    assert ranges[0] is None
    assert str(ranges[1]).startswith("bytes=")


def test_a_server_that_ignores_the_range_does_not_corrupt_the_file(hub: Hub) -> None:
    partial = hub_cache.partial_path(blob())
    partial.parent.mkdir(parents=True)
    partial.write_bytes(DATA[:1_000_000])
    hub.ignore_range = True
    assert fetch().read_bytes() == DATA


@pytest.mark.parametrize("left", [b"", b"wrong bytes", DATA[:-1], DATA, DATA + b"more"], ids=len)
def test_whatever_partial_file_was_left_the_result_is_whole(hub: Hub, left: bytes) -> None:
    partial = hub_cache.partial_path(blob())
    partial.parent.mkdir(parents=True)
    partial.write_bytes(left)
    assert fetch().read_bytes() == DATA
    assert not partial.exists()


def test_a_file_with_other_bytes_is_refused_and_deleted(hub: Hub) -> None:
    hub.corrupt = True
    with pytest.raises(DownloadError, match=r"Tiny-Q4_K_M\.gguf does not verify"):
        fetch()
    assert not list(blob().parent.iterdir())
    assert hub_cache.cached(REPO) == []


def test_a_small_file_outside_lfs_is_verified_by_gits_sha1(hub: Hub) -> None:
    hub.repos[REPO] = Repo({PATH: DATA}, plain=frozenset({PATH}))
    path = fetch()
    assert path.read_bytes() == DATA
    assert path.resolve().name == git_sha1(DATA)
    path.resolve().unlink()
    path.unlink()
    hub.corrupt = True
    with pytest.raises(DownloadError, match="does not verify"):
        fetch()


def test_the_token_goes_to_the_hub_and_never_to_the_storage_behind_it(
    hub: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub.repos[REPO].private = True
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    assert fetch().read_bytes() == DATA
    assert all("authorization" in request.headers for request in hub.asked("resolve"))
    behind = hub.asked("/elsewhere/")
    assert behind
    assert all("authorization" not in request.headers for request in behind)


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ({"status": 500}, r"error \(status 500\)\. Try again later"),
        ({"status": 429}, r"status 429"),
        ({"status": 403}, r"refuses access to org/Tiny-GGUF \(status 403\)\. Check HF_TOKEN"),
        ({"portal": True}, r"does not answer like the hub.*login page"),
        ({"hang": True}, r"does not answer in time"),
        ({"repos": {}}, r"no repository org/Tiny-GGUF, or it is private.*HF_TOKEN"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else None,
)
def test_a_hub_that_does_not_work_is_one_sentence(
    hub: Hub, fault: dict[str, object], message: str
) -> None:
    for name, value in fault.items():
        setattr(hub, name, value)
    with pytest.raises(DownloadError, match=message) as caught:
        client.list_files(REPO, timeout_s=1)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 300


def test_a_hub_that_cannot_be_reached_is_one_sentence() -> None:
    with pytest.raises(DownloadError, match=r"cannot reach the hub at http://127\.0\.0\.1:9: "):
        client.list_files(REPO, timeout_s=5)


def test_a_gated_repository_says_where_to_accept_its_terms(hub: Hub) -> None:
    hub.repos[REPO].gated = True
    with pytest.raises(DownloadError, match=rf"is gated\. Accept its terms at {hub.endpoint}"):
        fetch()


def test_an_unknown_revision_is_one_sentence(hub: Hub) -> None:
    with pytest.raises(DownloadError, match="no such file or revision"):
        client.list_files(REPO, "v9")


def test_a_pinned_commit_needs_no_ref(hub: Hub) -> None:
    listing = client.list_files(REPO, hub.repos[REPO].commit)
    client.fetch(listing, listing.files)
    assert not (hub_cache.repo_folder(REPO) / "refs").exists()
    assert [found.commit for found in hub_cache.cached(REPO, listing.commit)] == [listing.commit]


def test_paths_that_leave_the_cache_are_not_listed(hub: Hub) -> None:
    evil = ("../../evil.gguf", "/etc/evil.gguf", "a\\..\\evil.gguf", "C:evil.gguf", "a//b.gguf")
    hub.repos[REPO] = Repo({path: DATA for path in (*evil, PATH)})
    assert [file.path for file in client.list_files(REPO).files] == [PATH]


def test_too_little_space_is_said_before_anything_is_asked_for(hub: Hub) -> None:
    listing = client.list_files(REPO)
    (file,) = listing.files
    huge = type(file)(file.path, 10**18, file.digest)
    with pytest.raises(ResourceError, match=r"not enough disk space for org/Tiny-GGUF: it needs"):
        client.fetch(listing, [huge])
    assert not hub.asked("resolve")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")
def test_a_disk_that_fills_up_leaves_nothing_and_says_so(hub: Hub) -> None:
    partial = hub_cache.partial_path(blob())
    partial.parent.mkdir(parents=True)
    partial.symlink_to("/dev/full")
    with pytest.raises(ResourceError, match=r"is full; what was downloaded is deleted") as caught:
        fetch()
    assert not isinstance(caught.value, DownloadError)
    assert not list(partial.parent.iterdir())


def test_where_links_are_refused_the_file_itself_lies_in_the_snapshot(tmp_path: Path) -> None:
    blob_path, pointer = tmp_path / "blobs" / "b", tmp_path / "snapshots" / "c" / "m.gguf"
    blob_path.parent.mkdir()
    blob_path.write_bytes(b"x")
    pointer.parent.mkdir(parents=True)
    pointer.symlink_to("nowhere")  # dangling
    hub_cache.link(blob_path, pointer)
    assert pointer.read_bytes() == b"x"
    hub_cache.link(blob_path, pointer)
    assert pointer.read_bytes() == b"x"


def test_three_processes_fetch_a_file_once(hub: Hub) -> None:
    hub.delay_s = 0.005
    code = (
        "import sys\n"
        "from quantcli.checkpoint import hub\n"
        f"listing = hub.list_files({REPO!r})\n"
        "print(hub.fetch(listing, listing.files, notify=lambda line: print(line)))\n"
    )
    processes = [
        subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
        for _ in range(3)
    ]
    answers = [process.communicate(timeout=60)[0].split("\n") for process in processes]
    assert [process.returncode for process in processes] == [0, 0, 0]
    assert len({lines[-2] for lines in answers}) == 1
    assert Path(answers[0][-2]).read_bytes() == DATA
    assert hub.n_sent == len(DATA)


def test_deleting_one_file_of_a_repository_leaves_the_others(hub: Hub) -> None:
    other = b"another model"
    hub.repos[REPO] = Repo({PATH: DATA, "Tiny-Q8_0.gguf": other})
    fetch()
    found = {cached.file.path: cached for cached in hub_cache.cached(REPO)}
    assert client.delete([found[PATH]]) == len(DATA)
    assert not blob().exists()
    (left,) = hub_cache.cached(REPO)
    assert left.path.read_bytes() == other


def test_a_blob_that_another_snapshot_leads_to_stays(hub: Hub) -> None:
    fetch()
    old = hub_cache.cached(REPO)
    hub.repos[REPO] = Repo({PATH: DATA, "README.md": b"# changed"})
    path = fetch()
    assert client.delete(old) == 0
    assert path.read_bytes() == DATA
