"""Importing the package, its command line or its scheduler loads nothing heavy.

Each claim is checked in a fresh interpreter, because this one has loaded everything already.
"""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from source_tree import ROOT

from quantcli import catalog

HEAVY = frozenset(
    {
        "gguf",
        "huggingface_hub",
        "jinja2",
        "llvmlite",
        "ml_dtypes",
        "numba",
        "numpy",
        "prompt_toolkit",
        "psutil",
        "rich",
        "safetensors",
        "sentencepiece",
        "starlette",
        "tokenizers",
        "uvicorn",
    }
)
ASK_FOR_HELP = """
from quantcli.cli.app import main
sys.argv = ["quantcli", *{arguments!r}]
try:
    code = main()
except SystemExit as stop:
    code = stop.code
assert not code, code
"""


def loaded_by(code: str) -> set[str]:
    """Return the top-level modules that a fresh interpreter holds after running some code."""
    report = "print('\\n' + json.dumps(sorted(m.partition('.')[0] for m in sys.modules)))"
    command = [sys.executable, "-c", f"import json, sys\n{code}\n{report}"]
    done = subprocess.run(
        command,
        capture_output=True,
        check=False,
        encoding="utf-8",
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
    )
    assert done.returncode == 0, done.stderr
    return set(json.loads(done.stdout.splitlines()[-1]))


def test_import_quantcli_loads_the_standard_library_only() -> None:
    third_party = loaded_by("import quantcli") - loaded_by("") - set(sys.stdlib_module_names)
    assert third_party == {"quantcli"}


def test_import_quantcli_loads_no_other_module_of_its_own() -> None:
    code = "import quantcli\nassert [m for m in sys.modules if m.startswith('quantcli.')] == []"
    loaded_by(code)


def test_importing_the_command_line_loads_nothing_heavy() -> None:
    assert not HEAVY & loaded_by("import quantcli.cli.app")


@pytest.mark.parametrize("command", ["", *catalog.names("command")])
def test_help_loads_nothing_heavy(command: str) -> None:
    arguments = [*command.split(), "--help"]
    assert not HEAVY & loaded_by(ASK_FOR_HELP.format(arguments=arguments))


def test_version_loads_nothing_heavy() -> None:
    assert not HEAVY & loaded_by(ASK_FOR_HELP.format(arguments=["--version"]))


@pytest.mark.parametrize(
    "module", ["engine.request", "engine.scheduler", "kvcache.contiguous", "kvcache.paged", "plan"]
)
def test_scheduling_runs_without_arrays(module: str) -> None:
    loaded = loaded_by(f"import quantcli.{module}")
    assert not {"numpy", "numba", "llvmlite"} & loaded
