"""quantcli serve, as a process: what it says, what it refuses, how it stops."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest
from source_tree import ROOT
from tiny import write_tiny

from quantcli.cli.app import main
from quantcli.cli.serve_log import logger
from quantcli.cli.serve_model import served_name

LISTENS = re.compile(r"is served at (http://\S+),")

needs_signals = pytest.mark.skipif(
    sys.platform == "win32", reason="Windows ends a process where POSIX sends it a signal"
)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny(tmp_path_factory.mktemp("serve") / "small.gguf", "llama")


class Server:
    """A running `quantcli serve`."""

    def __init__(self, process: subprocess.Popen[str], url: str, lines: list[str]) -> None:
        self.process = process
        self.url = url
        self.lines = lines

    def post(self, path: str, body: object, **options: object) -> httpx.Response:
        settings = {"timeout": 30, "trust_env": False} | options
        return httpx.post(self.url + path, json=body, **settings)  # type: ignore[arg-type]

    def stop(self, number: int) -> tuple[int, str]:
        """Send a signal; return the exit code and the rest of standard error."""
        self.process.send_signal(number)
        _, rest = self.process.communicate(timeout=60)
        return self.process.returncode, rest


@contextmanager
def serving(model: Path, *options: str, **environment: str) -> Iterator[Server]:
    """Start a server on the reference backend, which needs no compiling, and wait for it."""
    command = [sys.executable, "-m", "quantcli", "serve", str(model), "--port", "0"]
    process = subprocess.Popen(
        [*command, "--backend", "reference", "--ctx", "256", *options],
        stderr=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stdin=subprocess.DEVNULL,
        encoding="utf-8",
        cwd=ROOT,
        env=os.environ | environment,
    )
    assert process.stderr is not None
    lines: list[str] = []
    try:
        for line in process.stderr:
            lines.append(line)
            found = LISTENS.search(line) or re.search(r'"url": "(\S+?)"', line)
            if found:
                yield Server(process, found[1], lines)
                break
        else:
            raise AssertionError("".join(lines))
    finally:
        if process.poll() is None:
            process.kill()
        process.communicate(timeout=30)


CHAT = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 4}


@needs_signals
def test_it_answers_under_its_name_and_stops_at_a_signal(model: Path) -> None:
    with serving(model, "--alias", "my model") as server:
        body = server.post("/v1/chat/completions", CHAT).json()
        assert body["model"] == "my model"
        assert body["usage"]["completion_tokens"] <= 4
        code, rest = server.stop(signal.SIGTERM)
    assert code == 0
    assert re.search(r"POST /v1/chat/completions 200 \d+\.\d+ s \d+ \+ \d tokens\n", rest)
    assert "Traceback" not in rest


@needs_signals
def test_the_log_as_json_and_ctrl_c_with_an_answer_under_way(model: Path) -> None:
    with serving(model, "--log-json", "--grace", "0.3") as server:
        endless = CHAT | {"max_tokens": 200, "stream": True, "ignore_eos": True}
        with httpx.stream(
            "POST", server.url + "/v1/chat/completions", json=endless, timeout=30, trust_env=False
        ) as response:
            pieces = response.iter_text()
            next(pieces)
            server.process.send_signal(signal.SIGINT)
            text = "".join(pieces)
        assert text.endswith("data: [DONE]\n\n") or "the server stops" in text
        _, rest = server.process.communicate(timeout=60)
    assert server.process.returncode == 0
    entries = [json.loads(line) for line in rest.splitlines()]
    (entry,) = [e for e in entries if e.get("path") == "/v1/chat/completions"]
    assert entry["status"] == 200
    assert entry["time"].startswith("20")
    assert "Hi" not in json.dumps(entries)


@needs_signals
def test_a_second_signal_does_not_wait(model: Path) -> None:
    with serving(model, "--grace", "3600", "--ctx", "512") as server:
        endless = CHAT | {"max_tokens": 450, "n": 8, "stream": True, "ignore_eos": True}
        with httpx.stream(
            "POST", server.url + "/v1/chat/completions", json=endless, timeout=30, trust_env=False
        ) as response:
            next(response.iter_text())
            server.process.send_signal(signal.SIGINT)
            time.sleep(0.3)
            code, rest = server.stop(signal.SIGINT)
    assert code in (0, -signal.SIGINT)  # the second one may meet Python on its way out
    assert "Traceback" not in rest


def test_drafts_and_no_prefix_cache(model: Path) -> None:
    with serving(model, "--spec", "ngram", "--draft", str(model), "--no-prefix-caching") as server:
        bodies = [server.post("/v1/chat/completions", CHAT | {"seed": 1}).json() for _ in range(2)]
        assert bodies[0]["choices"] == bodies[1]["choices"]
        assert bodies[1]["usage"]["prompt_tokens_details"]["cached_tokens"] == 0


def test_keys_come_from_a_file_or_the_environment(model: Path, tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    keys.write_text("# mine\n first-key \n\nsecond\n", encoding="utf-8")
    with serving(model, "--api-key-file", str(keys), QUANTCLI_API_KEY="third") as server:
        assert server.post("/v1/chat/completions", CHAT).status_code == 401
        for key in ("first-key", "second", "third"):
            headers = {"authorization": f"Bearer {key}"}
            response = server.post("/tokenize", {"content": "a"}, headers=headers)
            assert response.status_code == 200


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--host", "0.0.0.0"], "lets other machines in, and there is no API key"),
        (["--cors-origin", "*"], "is not an origin"),
        (["--api-key-file", "/nonexistent/keys"], "no such file or directory"),
        (["--port", "70000"], "70000"),
        (["--parallel", "0"], "must be 1 or more"),
        (["--spec", "magic"], "unknown speculation 'magic'"),
        (["--cache", "tree"], "unknown cache 'tree'"),
        (["--host", "256.1.1.1", "--no-auth"], "cannot listen at 256.1.1.1"),
    ],
)
def test_what_cannot_be_is_refused_before_loading(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["serve", "no-such-model", *arguments]) in (1, 2)
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1


def test_a_file_of_keys_must_have_some(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    keys = tmp_path / "keys"
    keys.write_text("# none\n", encoding="utf-8")
    assert main(["serve", "x", "--api-key-file", str(keys)]) == 2
    assert "has no API key" in capsys.readouterr().err
    keys.write_bytes(b"\xff\xfe")
    assert main(["serve", "x", "--api-key-file", str(keys)]) == 2
    assert "is no text" in capsys.readouterr().err


def test_a_port_that_is_taken_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    import socket

    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        assert main(["serve", "x", "--port", port]) == 1
    error = capsys.readouterr().err
    assert f"cannot listen at 127.0.0.1 port {port}" in error
    assert error.count("\n") == 1


def test_the_libraries_of_the_extra_are_asked_for(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert main(["serve", "x"]) == 2
    assert "pip install 'quantcli[serve]'" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "served"),
    [("smollm2", "smollm2"), ("a/b/Model-Q4_0.gguf", "Model-Q4_0"), ("hf.co/a/b", "hf.co/a/b")],
)
def test_the_name_in_answers(name: str, served: str) -> None:
    assert served_name(name) == served


def test_what_a_client_sends_moves_no_cursor(capsys: pytest.CaptureFixture[str]) -> None:
    log = logger(as_json=False, quiet=False)
    assert log is not None
    log({"method": "GET", "path": "/\x1b[2J", "status": 404, "seconds": 0.5})
    assert "\x1b" not in capsys.readouterr().err


def test_quiet_tells_errors_alone(capsys: pytest.CaptureFixture[str]) -> None:
    log = logger(as_json=False, quiet=True)
    assert log is not None
    log({"method": "GET", "path": "/", "status": 200, "seconds": 0.5})
    assert capsys.readouterr().err == ""
    log({"level": "error", "traceback": "Traceback: x\n"})
    assert capsys.readouterr().err == "Traceback: x\n"
