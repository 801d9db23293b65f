"""The package as syntax trees: what the tests of layers and house rules walk over."""

from __future__ import annotations

import ast
import subprocess
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "quantcli"


@cache
def modules() -> dict[str, Path]:
    """Return every module of the package by dotted name: quantcli.engine is its __init__."""
    found = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        parts = path.relative_to(ROOT).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


@cache
def tree(path: Path) -> ast.Module:
    """Return a file's syntax tree."""
    return ast.parse(path.read_text(encoding="utf-8"), filename=str(path))


@cache
def python_files() -> tuple[Path, ...]:
    """Return the project's Python files: package, tests and scripts, with or without .py."""
    scripts = [p for p in (ROOT / "scripts").iterdir() if p.is_file() and is_python(p)]
    return (*modules().values(), *sorted((ROOT / "tests").rglob("*.py")), *sorted(scripts))


def is_python(path: Path) -> bool:
    """Return whether a file is Python by its name or its first line."""
    if path.suffix:
        return path.suffix == ".py"
    with path.open("rb") as file:
        return b"python" in file.readline()


def functions(node: ast.AST) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    """Yield every function in a tree, methods and nested ones too."""
    for child in ast.walk(node):
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
            yield child


def imports(module: str) -> Iterator[tuple[str, int]]:
    """Yield (dotted name, line) of everything a module imports, wherever the statement stands.

    `from a import b` yields `a.b`, which names a module or something in module `a`. A call of
    import_module with a literal counts.
    """
    for node in ast.walk(tree(modules()[module])):
        if isinstance(node, ast.Import):
            yield from ((alias.name, node.lineno) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, f"{module}:{node.lineno} imports relatively"
            yield from ((f"{node.module}.{alias.name}", node.lineno) for alias in node.names)
        elif isinstance(node, ast.Call) and called_name(node).endswith("import_module"):
            literals = [arg for arg in node.args[:1] if isinstance(arg, ast.Constant)]
            yield from ((str(arg.value), arg.lineno) for arg in literals)


def called_name(node: ast.Call) -> str:
    """Return the dotted name that a call calls, or what is readable of it."""
    return dotted(node.func)


def dotted(node: ast.expr) -> str:
    """Return `a.b.c` for such an expression, "" for any other."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        return f"{dotted(node.value)}.{node.attr}"
    if isinstance(node, ast.Call):
        return dotted(node.func)
    return ""


def where(path: Path, line: int) -> str:
    """Return `file:line` relative to the root."""
    return f"{path.relative_to(ROOT).as_posix()}:{line}"


@cache
def tracked_files() -> tuple[tuple[str, Path], ...]:
    """Return (git's file mode, path) of every tracked file; empty outside a git checkout."""
    try:
        command = ["git", "-C", str(ROOT), "ls-files", "--stage", "-z"]
        out = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError):
        return ()
    entries = [entry.split("\t", 1) for entry in out.split("\0") if entry]
    return tuple((meta.split()[0], ROOT / name) for meta, name in entries)
