"""The house rules of compiled code: where Numba is used, with which flags, and f32 literals."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

from source_tree import PACKAGE, called_name, dotted, functions, modules, tree, where

COMPILED_HOMES = (PACKAGE / "kernels", PACKAGE / "runtime" / "executor.py")
NUMBA_COMPILERS = {"cfunc", "guvectorize", "njit", "stencil", "vectorize"}
OUR_COMPILERS = {"inline", "njit", "op"}  # exported by quantcli/kernels/jit.py
WIDTHS = {"f32", "f64"}  # f32(0.5) says how wide a literal is; a bare 0.5 is f64
CONSTANTS = {"math.e", "math.inf", "math.nan", "math.pi", "np.e", "np.inf", "np.nan", "np.pi"}


def compiled_paths() -> list[Path]:
    """Return the files that may hold compiled code."""
    return [p for p in modules().values() if any(p.is_relative_to(h) for h in COMPILED_HOMES)]


def compiled_functions(path: Path) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    """Yield the functions that a decorator of kernels/jit.py, or a call of one, compiles."""
    passed = {
        dotted(node.args[0])
        for node in ast.walk(tree(path))
        if isinstance(node, ast.Call) and _compiles(node.func) and node.args
    }
    for function in functions(tree(path)):
        if function.name in passed or any(map(_compiles, function.decorator_list)):
            yield function


def _compiles(node: ast.expr) -> bool:
    return dotted(node).rpartition(".")[2] in OUR_COMPILERS | NUMBA_COMPILERS


def floats(function: ast.AST) -> Iterator[ast.expr]:
    """Yield the float literals and constants that no width is written around."""
    for child in ast.iter_child_nodes(function):
        if isinstance(child, ast.Call) and called_name(child).rpartition(".")[2] in WIDTHS:
            continue
        is_literal = isinstance(child, ast.Constant) and isinstance(child.value, float)
        if is_literal or (isinstance(child, ast.Attribute) and dotted(child) in CONSTANTS):
            yield child
        yield from floats(child)


def test_numba_compiles_only_in_kernels_and_the_executor() -> None:
    wrong = []
    for path in set(modules().values()) - set(compiled_paths()):
        for node in ast.walk(tree(path)):
            name = dotted(node).rpartition(".")[2] if isinstance(node, ast.expr) else ""
            if name in NUMBA_COMPILERS:
                wrong.append(f"{where(path, node.lineno)} uses {name}")
    assert not wrong, "\n" + "\n".join(wrong)


def test_numba_flags_are_set_in_one_file() -> None:
    wrong = []
    for path in set(compiled_paths()) - {PACKAGE / "kernels" / "jit.py"}:
        for node in ast.walk(tree(path)):
            if isinstance(node, ast.Call) and called_name(node).rpartition(".")[2] in (
                NUMBA_COMPILERS | OUR_COMPILERS
            ):
                wrong += [f"{where(path, node.lineno)} sets {k.arg}" for k in node.keywords]
    assert not wrong, "\n" + "\n".join(wrong)


def test_nothing_asks_for_fast_math_or_numba_threads() -> None:
    wrong = []
    for path in modules().values():
        for node in ast.walk(tree(path)):
            if isinstance(node, ast.keyword) and node.arg in {"fastmath", "parallel"}:
                wrong.append(f"{where(path, node.value.lineno)} sets {node.arg}")
            elif isinstance(node, ast.expr) and dotted(node).rpartition(".")[2] == "prange":
                wrong.append(f"{where(path, node.lineno)} uses prange")
    assert not wrong, "\n" + "\n".join(wrong)


def test_every_float_literal_in_compiled_code_has_a_width() -> None:
    wrong = []
    for path in compiled_paths():
        for function in compiled_functions(path):
            for statement in function.body:
                wrong += [where(path, node.lineno) for node in floats(ast.Module([statement], []))]
    assert not wrong, "write f32(...) around the literal, for f32 times a bare one is f64:\n" + (
        "\n".join(wrong)
    )


def test_no_compiled_code_reads_a_module_constant_without_a_width() -> None:
    wrong = []
    for path in compiled_paths():
        bare = {
            dotted(target)
            for node in tree(path).body
            if isinstance(node, ast.Assign) and list(floats(node))
            for target in node.targets
        }
        for function in compiled_functions(path):
            for node in ast.walk(function):
                if isinstance(node, ast.Name) and node.id in bare:
                    wrong.append(f"{where(path, node.lineno)} reads {node.id}")
    assert not wrong, "write NAME = f32(...):\n" + "\n".join(wrong)


def test_the_check_of_literals_sees_what_it_should() -> None:
    code = "y = f32(0.5) * x + 2.0 * np.inf - f32(-1.0) + jit.f32(np.pi) - 3"
    assert [ast.unparse(node) for node in floats(ast.parse(code))] == ["2.0", "np.inf"]
