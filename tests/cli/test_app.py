"""The border: what each kind of error becomes, on which stream, with which exit code."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest
import typer
from source_tree import ROOT

from quantcli import __version__, catalog
from quantcli.cli import app
from quantcli.errors import CheckpointError, DownloadError, ResourceError, UsageError


def quantcli(*args: str, **settings: object) -> subprocess.CompletedProcess[str]:
    """Run the command line as a user does."""
    command = [sys.executable, "-m", "quantcli", *args]
    return subprocess.run(  # type: ignore[call-overload, no-any-return]
        command,
        cwd=ROOT,
        **{"capture_output": True, "encoding": "utf-8", "stdin": subprocess.DEVNULL, **settings},
        check=False,
    )


@pytest.mark.parametrize(
    ("error", "code", "message"),
    [
        (UsageError("two prompts."), 2, "two prompts."),
        (CheckpointError("m.gguf: bad\nmagic"), 1, "m.gguf: bad magic"),
        (ResourceError("too big."), 1, "too big."),
        (DownloadError("no network."), 1, "no network."),
        (KeyboardInterrupt(), 130, ""),
        (OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "out.txt"), 1, "space"),
        (
            PermissionError(errno.EACCES, "Permission denied", "p.txt"),
            1,
            "permission denied: p.txt",
        ),
        (OSError(errno.EMFILE, "Too many open files"), 1, "too many open files"),
        (FileNotFoundError(errno.ENOENT, "No such file", "a\x1b[2J.txt"), 1, "a\\x1b[2J.txt"),
        (MemoryError(), 1, "out of memory"),
        (typer.BadParameter("no"), 2, "quantcli --help"),
        (AssertionError("ours"), 70, "bug in quantcli"),
        (RuntimeError("ours"), 70, "bug in quantcli"),
        (OSError("without a number"), 70, "bug in quantcli"),
    ],
)
def test_every_error_is_one_line_with_its_exit_code(
    error: BaseException, code: int, message: str
) -> None:
    got_code, got = app.explain(error)
    assert got_code == code
    assert message in got
    assert got.isprintable()


def test_without_arguments_help_is_shown() -> None:
    done = quantcli()
    assert done.returncode == 0
    assert done.stderr == ""
    assert "Usage: quantcli" in done.stdout


def test_version_is_the_packages() -> None:
    assert quantcli("--version").stdout == f"quantcli {__version__}\n"


def test_an_unknown_command_says_what_was_meant() -> None:
    done = quantcli("rnu")
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.startswith("error: unknown command 'rnu'. Did you mean run?")
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["run"], "no model is named"),
        (["run", "a", "-m", "b"], "two models are named"),
        (["run", "m", "-p", "x", "-f", "y"], "two prompts"),
        (["run", "m", "-p", ""], "the prompt is empty"),
        (["run", "m", "-n", "-5"], "must be -1 or more"),
        (["run", "m", "-t", "0", "-p", "x"], "must be 1 or more"),
        (["run", "m", "-p", "x", "--kv-type", "q3"], "unknown KV cache type 'q3'"),
        (["run", "m", "-p", "x", "-ctk", "f16", "-ctv", "q8_0"], "one type"),
        (["run", "m", "-p", "x", "--cache", "ring"], "unknown cache 'ring'"),
        (["run", "m", "-p", "x", "--backend", "gpu"], "unknown backend 'gpu'"),
        (["run", "m", "-p", "x", "--temp", "-1"], "temperature"),
        (["run", "m", "-p", "x", "--top-p", "7"], "top_p"),
        (["run", "m", "-p", "x", "-l", "abc"], "--logit-bias 'abc'"),
        (["run", "m", "-p", "x", "-r", ""], "stop string"),
        (["bench", "m", "-p", "0", "-n", "0"], "nothing to measure"),
        (["bench", "m", "-p", "many"], "--n-prompt 'many'"),
        (["bench", "m", "-o", "xml"], "unknown output format 'xml'"),
        (["tokenize", "m", "a", "-p", "b"], "two texts"),
        (["inspect", "m", "extra"], "extra"),
    ],
)
def test_bad_usage_is_one_line_and_exit_code_2(
    capsys: pytest.CaptureFixture[str], args: list[str], message: str
) -> None:
    assert app.main(args) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("error: ")
    assert message in captured.err
    assert captured.err.count("\n") == 1


@pytest.mark.parametrize("args", [["--debug", "run"], ["run", "--debug"]])
def test_debug_brings_the_traceback_wherever_it_stands(
    capsys: pytest.CaptureFixture[str], args: list[str]
) -> None:
    assert app.main(args) == 2
    err = capsys.readouterr().err
    assert "Traceback" in err
    assert err.splitlines()[-1].startswith("error: no model is named")


def test_debug_after_two_dashes_is_an_argument() -> None:
    words = ["tokenize", "m", "--", "--debug"]
    assert not app._take_debug(words)
    assert words == ["tokenize", "m", "--", "--debug"]


def test_the_environment_can_ask_for_the_traceback() -> None:
    done = quantcli("run", env={**os.environ, "QUANTCLI_DEBUG": "1"})
    assert "Traceback" in done.stderr


@pytest.mark.skipif(sys.platform == "win32", reason="no POSIX shell")
def test_a_closed_pipe_is_quiet() -> None:
    command = f"( {sys.executable} -m quantcli run --help; echo $? >&2 ) | true"
    done = subprocess.run(
        ["sh", "-c", command], capture_output=True, check=False, cwd=ROOT, encoding="utf-8"
    )
    assert done.stderr.strip() in (str(app.EXIT_PIPE), "0")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full")
def test_a_full_disk_behind_the_output_is_one_sentence() -> None:
    with open("/dev/full", "w", encoding="utf-8") as full:
        done = quantcli("--help", capture_output=False, stdout=full, stderr=subprocess.PIPE)
    assert done.returncode == 1
    assert done.stderr == "error: no space left on device\n"


@pytest.mark.skipif(sys.platform == "win32", reason="no POSIX shell")
def test_closed_streams_are_no_error() -> None:
    command = f"{sys.executable} -m quantcli --help >&- 2>&-"
    assert subprocess.run(["sh", "-c", command], check=False, cwd=ROOT).returncode == 0


def test_output_is_utf_8_under_any_locale() -> None:
    environment = {**os.environ, "PYTHONIOENCODING": "cp1252", "LC_ALL": "C"}
    done = quantcli("rnu\u4e2d\u6587", env=environment)
    assert done.returncode == 2
    assert "rnu\u4e2d\u6587" in done.stderr


def test_every_command_of_the_catalog_is_there() -> None:
    command = typer.main.get_command(app.build())
    assert sorted(command.commands) == list(catalog.names("command"))  # type: ignore[attr-defined]
