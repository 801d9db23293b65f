"""The house rules of CONTRIBUTING.md that a linter does not know, over the project's sources."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from source_tree import (
    PACKAGE,
    ROOT,
    called_name,
    functions,
    imports,
    modules,
    python_files,
    tracked_files,
    tree,
    where,
)

from quantcli import catalog

MAX_FILE_LINES = 400
MAX_FUNCTION_LINES = 60
VAGUE_NAMES = {"common", "helper", "helpers", "misc", "shared", "stuff", "util", "utils"}
BORDERS = ("quantcli/cli/app.py", "quantcli/server/app.py")  # may catch every exception

# An architecture's name may be written in these; `text` has vocabularies of the same names, and
# `peer` calls functions of llama.cpp, all of which begin with one.
ARCH_HOMES = (
    "quantcli/arch/",
    "quantcli/catalog.py",
    "quantcli/text/",
    "quantcli/evaluate/peer.py",
)
OTHER_PROGRAMS = re.compile(
    r"llama\.cpp|llama[-_]cpp|llama-(bench|cli|quantize|imatrix|perplexity)"
)

# Written in pieces, so that this file does not hold what it forbids.
FORBIDDEN_TEXT = tuple(
    re.compile(pattern)
    for pattern in (
        r"\bpypi" + r"\.org",
        r"pythonhosted" + r"\.org",
        r"registry\." + r"npmjs",
        r"deb\." + r"debian",
        r"(?<![\w.~/])/" + r"root/",
        r"(?<![\w.~/])/" + r"work/(main|shared|\.library)",
        r"(?<![\w.~/])/" + r"home/\w+/",
        r"(?<![\w.~/])/" + r"Users/\w+/",
        r"\b[A-Z]:\\+" + r"Users",
    )
)


def report(wrong: list[str]) -> None:
    """Fail with one finding a line, if there are any."""
    assert not wrong, "\n" + "\n".join(wrong)


def relative(path: Path) -> str:
    """Return a path below the root with forward slashes."""
    return path.relative_to(ROOT).as_posix()


def test_no_file_is_longer_than_the_limit() -> None:
    lengths = {p: len(p.read_text(encoding="utf-8").splitlines()) for p in python_files()}
    too_long = {p: n for p, n in lengths.items() if n > MAX_FILE_LINES}
    report([f"{relative(p)}: {n} lines, at most {MAX_FILE_LINES}" for p, n in too_long.items()])


def test_no_function_is_longer_than_the_limit() -> None:
    wrong = []
    for path in python_files():
        for function in functions(tree(path)):
            n_lines = (function.end_lineno or 0) - function.lineno + 1
            if n_lines > MAX_FUNCTION_LINES:
                wrong.append(f"{where(path, function.lineno)} {function.name}: {n_lines} lines")
    report(wrong)


def test_no_file_has_a_name_that_says_nothing() -> None:
    report([relative(p) for p in python_files() if p.stem in VAGUE_NAMES])


def test_no_two_test_files_have_one_name() -> None:
    """pytest imports them by name alone; of two of a name, one would not run."""
    paths: dict[str, list[Path]] = {}
    for path in (ROOT / "tests").rglob("*.py"):
        if path.name != "conftest.py":
            paths.setdefault(path.name, []).append(path.relative_to(ROOT))
    report([f"{name}: {', '.join(map(str, p))}" for name, p in sorted(paths.items()) if p[1:]])


def test_architecture_names_stay_in_their_files() -> None:
    wrong = []
    for path in modules().values():
        if not relative(path).startswith(ARCH_HOMES):
            for word, line in words_of_code(path):
                if word in catalog.names("architecture"):
                    wrong.append(f"{where(path, line)} names the architecture {word}")
    report(wrong)


def words_of_code(path: Path) -> Iterator[tuple[str, int]]:
    """Yield (word, line) of names and strings, docstrings and comments left out."""
    prose = {id(node) for node in docstrings(tree(path))}
    for node in ast.walk(tree(path)):
        text = ""
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in prose:
            text = node.value
        elif isinstance(node, ast.Name):
            text = node.id
        elif isinstance(node, ast.Attribute):
            text = node.attr
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            text = node.name
        for word in re.split(r"[^a-z0-9]+", OTHER_PROGRAMS.sub("", text.lower())):
            yield word, getattr(node, "lineno", 0)


def docstrings(node: ast.AST) -> Iterator[ast.Constant]:
    """Yield the constants that are docstrings, attributes' ones too."""
    for child in ast.walk(node):
        if isinstance(child, ast.Expr) and isinstance(child.value, ast.Constant):
            yield child.value


def test_only_the_command_line_prints() -> None:
    wrong = []
    for path in modules().values():
        if not relative(path).startswith(("quantcli/cli/", "quantcli/__main__.py")):
            for node in ast.walk(tree(path)):
                if isinstance(node, ast.Call) and called_name(node) in {
                    "print",
                    "sys.stdout.write",
                    "sys.stderr.write",
                }:
                    wrong.append(where(path, node.lineno))
    report(wrong)


def test_everything_public_has_a_docstring() -> None:
    report(
        [
            f"{where(path, getattr(node, 'lineno', 1))} {name}"
            for path in modules().values()
            for name, node in public(tree(path), "module")
            if not ast.get_docstring(node)
        ]
    )


Documented = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


def public(node: Documented, name: str) -> Iterator[tuple[str, Documented]]:
    """Yield a node and the public classes, functions and methods in it."""
    yield name, node
    for child in node.body:
        if isinstance(child, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            if child.name.startswith("_") or "overload" in map(ast.unparse, child.decorator_list):
                continue
            if isinstance(child, ast.ClassDef):
                yield from public(child, child.name)
            else:
                yield child.name, child


def test_exceptions_are_defined_in_one_file() -> None:
    wrong = []
    for path in set(modules().values()) - {PACKAGE / "errors.py"}:
        for node in ast.walk(tree(path)):
            if isinstance(node, ast.ClassDef) and _is_exception(node):
                is_gguf = node.name == "GGUFError" and "checkpoint" in path.parts
                if not is_gguf and not _is_signal(node, path):
                    wrong.append(f"{where(path, node.lineno)} {node.name}: belongs in errors.py")
    report(wrong)


def _is_signal(node: ast.ClassDef, path: Path) -> bool:
    """Return whether an exception is no error: raised, caught and known in one file only."""
    handlers = [n for n in ast.walk(tree(path)) if isinstance(n, ast.ExceptHandler) and n.type]
    is_caught = any(re.search(rf"\b{node.name}\b", ast.unparse(h.type)) for h in handlers if h.type)
    importers = [m for m in modules() if any(n.endswith(f".{node.name}") for n, _ in imports(m))]
    return is_caught and not importers and not node.name.endswith("Error")


def _is_exception(node: ast.ClassDef) -> bool:
    errors = {n.name for n in tree(PACKAGE / "errors.py").body if isinstance(n, ast.ClassDef)}
    bases = {ast.unparse(base).rpartition(".")[2] for base in node.bases}
    return any(base in errors or base.endswith(("Error", "Exception")) for base in bases)


def test_only_the_borders_catch_everything() -> None:
    wrong = []
    for path in modules().values():
        if relative(path) not in BORDERS:
            lines = path.read_text(encoding="utf-8").splitlines()
            for node in ast.walk(tree(path)):
                if isinstance(node, ast.ExceptHandler) and _catches_all(node, lines):
                    wrong.append(f"{where(path, node.lineno)} catches everything")
    report(wrong)


def _catches_all(handler: ast.ExceptHandler, lines: list[str]) -> bool:
    """Return whether a handler is bare or broad, and neither raises again nor hands over."""
    last = handler.body[-1]
    if isinstance(last, ast.Raise) and last.exc is None:
        return False  # tidies up and passes the error on
    if _hands_over(handler, lines[handler.lineno - 1]):
        return False
    if handler.type is None:
        return True
    types = handler.type.elts if isinstance(handler.type, ast.Tuple) else [handler.type]
    return any(ast.unparse(t) in {"Exception", "BaseException"} for t in types)


def _hands_over(handler: ast.ExceptHandler, line: str) -> bool:
    """Return whether a handler does nothing but keep the error for the thread that waits."""
    statement = ast.unparse(handler.body[0])
    keeps = statement.endswith((f" = {handler.name}", f".append({handler.name})"))
    return len(handler.body) == 1 and keeps and "raised again" in line


def test_the_catalog_is_sorted_without_duplicates() -> None:
    for kind in catalog._KINDS:
        names = list(catalog.names(kind))
        assert names == sorted(set(names)), kind


def test_no_tracked_file_names_a_registry_or_a_machine_path() -> None:
    if not tracked_files():
        pytest.skip("not a git checkout")
    wrong = []
    for _, path in tracked_files():
        data = path.read_bytes() if path.is_file() else b""
        if b"\0" in data:
            continue  # a binary file
        for number, line in enumerate(data.decode("utf-8", "replace").splitlines(), 1):
            found = [m.group() for p in FORBIDDEN_TEXT if (m := p.search(line))]
            wrong += [f"{where(path, number)} names {text}" for text in found]
    report(wrong)


def test_every_script_is_executable() -> None:
    if not tracked_files():
        pytest.skip("not a git checkout")
    wrong = [
        relative(path)
        for mode, path in tracked_files()
        if path.parent in {ROOT / "scripts", ROOT / ".ci"}
        and path.is_file()
        and path.read_bytes().startswith(b"#!")
        and mode != "100755"
    ]
    report([f"{name}: git update-index --chmod=+x {name}" for name in wrong])
