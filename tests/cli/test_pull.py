"""quantcli pull: the path on standard output, everything else on standard error."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from hub_server import Hub, Repo, serving

from quantcli.checkpoint import hub_cache
from quantcli.cli.app import EXIT_INTERRUPTED, main

REPO = "org/Tiny-GGUF"
DATA = random.Random(1).randbytes(4_000_000)


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    with serving(Hub({REPO: Repo({"tiny-Q8_0.gguf": DATA})})) as server:
        monkeypatch.setenv("HF_ENDPOINT", server.endpoint)
        yield server


def test_the_path_is_the_only_output(hub: Hub, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["pull", REPO]) == 0
    out, err = capsys.readouterr()
    assert Path(out.rstrip("\n")).read_bytes() == DATA
    assert err == f"{REPO} is licensed under apache-2.0.\n"


def test_a_second_pull_says_that_the_model_is_here(
    hub: Hub, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["pull", f"{REPO}:q8_0", "--quiet"]) == 0
    first, err = capsys.readouterr()
    assert err == ""
    assert main(["pull", f"{REPO}:Q8_0"]) == 0
    assert capsys.readouterr() == (first, f"{REPO}:Q8_0 is already here.\n")


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["smolm2"], 2, "unknown model 'smolm2'. Did you mean smollm2?"),
        ([f"{REPO}:Q4_0"], 2, f"{REPO} has no Q4_0. It has Q8_0 (4.0 MB)."),
        (["org/none"], 1, "the hub has no repository org/none"),
        (["./none.gguf"], 2, "no such file: none.gguf."),
        (["smollm2", "--offline"], 1, "smollm2 is not on this machine"),
        ([""], 2, "the model's name is empty"),
        ([], 2, "Missing argument 'MODEL'"),
    ],
)
def test_what_goes_wrong_is_one_sentence_and_an_exit_code(
    hub: Hub,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    code: int,
    message: str,
) -> None:
    assert main(["pull", *arguments]) == code
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith(f"error: {message}"), err
    assert err.count("\n") == 1


@pytest.mark.skipif(os.name == "nt", reason="a test cannot press Ctrl-C for another console")
def test_ctrl_c_ends_at_once_and_the_next_pull_goes_on(hub: Hub) -> None:
    hub.delay_s = 0.02
    with subprocess.Popen(
        [sys.executable, "-m", "quantcli", "pull", REPO],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        partial = hub_cache.repo_folder(REPO) / "blobs"
        arrived = threading.Event()
        while process.poll() is None and not arrived.wait(0.01):
            if any(path.stat().st_size for path in partial.glob("*.incomplete")):
                arrived.set()
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=30)
    assert process.returncode == EXIT_INTERRUPTED
    assert out == ""
    assert "Traceback" not in err
    assert hub_cache.cached(REPO) == []

    hub.delay_s = 0
    hub.n_sent = 0
    assert main(["pull", REPO, "--quiet"]) == 0
    assert 0 < hub.n_sent < len(DATA)
    (found,) = hub_cache.cached(REPO)
    assert found.path.read_bytes() == DATA
