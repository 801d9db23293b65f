"""Who may import whom: the layers of ARCHITECTURE.md, and where each library may be used.

Every import counts: inside functions and under TYPE_CHECKING too.
"""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from collections.abc import Iterator
from fnmatch import fnmatchcase

import pytest
from source_tree import ROOT, imports, modules, tree, where

# A layer may import layers below its own. Names in one row never import each other.
LAYERS = (
    ("__main__",),
    ("cli",),
    ("server", "quantize"),
    ("evaluate",),
    ("engine",),
    ("runtime",),
    ("kernels", "huggingface"),
    ("arch", "checkpoint", "text"),
    ("qtensor",),
    ("formats", "plan", "kvcache"),
    ("catalog",),
    ("errors",),
)

# Import name of a library: the modules that may use it, as patterns below `quantcli.`.
HOMES = {
    "click": ("cli", "cli.*"),
    "filelock": ("checkpoint", "checkpoint.*"),
    "gguf": ("checkpoint", "checkpoint.*"),
    "huggingface_hub": ("checkpoint.hub",),
    "jinja2": ("text.chat*",),
    "llama_cpp": ("evaluate.peer",),
    "llguidance": ("engine.grammar",),
    "llvmlite": ("kernels", "kernels.*", "runtime.executor"),
    "ml_dtypes": ("formats.*", "checkpoint.*"),
    "numba": ("kernels", "kernels.*", "runtime.executor"),
    "numpy": ("*",),
    "prompt_toolkit": ("cli", "cli.*"),
    "psutil": ("runtime", "runtime.*"),
    "rich": ("cli", "cli.*"),
    "safetensors": ("checkpoint", "checkpoint.*"),
    "sentencepiece": ("text.spm",),
    "starlette": ("server", "server.*"),
    "tokenizers": ("text", "text.*"),
    "typer": ("cli", "cli.*"),
    "yaml": ("checkpoint.model_card",),
    "uvicorn": ("server", "server.*"),
}

# Scheduling is pure: these work on ints alone, whatever their imports import.
PURE = (
    "catalog",
    "errors",
    "plan",
    "plan.*",
    "kvcache",
    "kvcache.*",
    "engine.scheduler",
    "engine.request",
)
IMPURE = ("numpy", "numba", "llvmlite", "quantcli.runtime", "quantcli.kernels")

# Programs that measurements compare with where they are installed; nothing needs them.
PEERS = {"llama_cpp"}

# Libraries that come with a dependency that pyproject.toml names.
BROUGHT_BY = {"click": "typer", "llvmlite": "numba", "yaml": "gguf"}


def layer(module: str) -> int | None:
    """Return the index in LAYERS of a module of the package, None for the bare package."""
    parts = module.split(".")
    if len(parts) == 1:
        return None
    for index, row in enumerate(LAYERS):
        if parts[1] in row:
            return index
    raise AssertionError(f"{module} belongs to no layer; add it to LAYERS and ARCHITECTURE.md")


def matches(module: str, patterns: tuple[str, ...]) -> bool:
    """Return whether a module of the package matches one of the patterns below `quantcli.`."""
    return any(fnmatchcase(module.removeprefix("quantcli."), pattern) for pattern in patterns)


def target(name: str) -> str:
    """Return the module of the package that an imported dotted name lies in."""
    while name not in modules():
        name = name.rpartition(".")[0]
    return name


def is_stdlib(name: str) -> bool:
    """Return whether a dotted name lies in the standard library."""
    return name.split(".")[0] in sys.stdlib_module_names


def edges(module: str) -> Iterator[tuple[str, int]]:
    """Yield (module of the package, line) that a module imports."""
    for name, line in imports(module):
        if name.split(".")[0] == "quantcli":
            yield target(name), line


def libraries(module: str) -> Iterator[tuple[str, int]]:
    """Yield (third-party library, line) that a module imports."""
    for name, line in imports(module):
        top = name.split(".")[0]
        if top != "quantcli" and not is_stdlib(name):
            yield top, line


def may_import(importer: str, imported: str) -> bool:
    """Return whether the layers allow an import within the package."""
    above, below = layer(importer), layer(imported)
    if above is None or below is None or importer.split(".")[1] == imported.split(".")[1]:
        return True
    return above < below


@pytest.mark.parametrize("module", modules())
def test_every_module_belongs_to_a_layer(module: str) -> None:
    assert module == "quantcli" or layer(module) is not None


def test_imports_only_go_down_the_layers() -> None:
    wrong = [
        f"{where(path, line)} imports {imported}"
        for module, path in modules().items()
        for imported, line in edges(module)
        if not may_import(module, imported)
    ]
    assert not wrong, "\n".join(wrong)


def test_the_bare_package_imports_only_the_standard_library_when_imported() -> None:
    path = modules()["quantcli"]
    statements = [n for n in tree(path).body if isinstance(n, ast.Import | ast.ImportFrom)]
    lines = {statement.lineno for statement in statements}
    wrong = [name for name, line in imports("quantcli") if line in lines and not is_stdlib(name)]
    assert not wrong, f"{path.name} imports {wrong}; resolve names in __getattr__ instead"


def test_each_library_is_used_only_where_it_may_be() -> None:
    wrong = []
    for module, path in modules().items():
        for library, line in libraries(module):
            allowed = HOMES.get(library)
            if allowed is None:
                wrong.append(f"{where(path, line)} uses {library}, which has no row in HOMES")
            elif not matches(module, allowed):
                wrong.append(f"{where(path, line)} uses {library}; only {allowed} may")
            elif library in IMPURE and matches(module, PURE):
                wrong.append(f"{where(path, line)} uses {library} in a pure module")
    assert not wrong, "\n".join(wrong)


def test_every_library_used_is_a_declared_dependency() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    lines = [*project["dependencies"], *project["optional-dependencies"]["serve"]]
    names = {re.split(r"[^\w-]", line)[0] for line in lines}
    declared = {name.lower().replace("-", "_") for name in names}
    used = {library for module in modules() for library, _ in libraries(module)} - PEERS
    assert {BROUGHT_BY.get(library, library) for library in used} <= declared


@pytest.mark.parametrize("module", sorted(m for m in modules() if matches(m, PURE)))
def test_nothing_a_pure_module_imports_reaches_arrays_or_kernels(module: str) -> None:
    came_from: dict[str, str] = {module: ""}
    queue = [module]
    while queue:
        current = queue.pop()
        for name in _everything_loaded_by(current):
            if name not in came_from:
                came_from[name] = current
                queue.extend([name] if name in modules() else [])
    reached = [name for name in came_from if name.startswith(IMPURE)]
    assert not reached, [_chain(name, came_from) for name in reached]


def _everything_loaded_by(module: str) -> set[str]:
    """Return the modules and libraries that importing a module may load, its packages too."""
    loaded = {name for name, _ in libraries(module)}
    for imported in (name for name, _ in edges(module)):
        parts = imported.split(".")
        loaded.update(".".join(parts[:n]) for n in range(1, len(parts) + 1))
    return loaded - {"quantcli"}


def _chain(name: str, came_from: dict[str, str]) -> str:
    """Return `a -> b -> c`: how a module was reached."""
    steps = [name]
    while came_from[steps[0]]:
        steps.insert(0, came_from[steps[0]])
    return " -> ".join(steps)
