"""The rules of the source tree that only its text can show: rings, words, names and sizes."""

from __future__ import annotations

import ast
import io
import re
import sys
import tokenize
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from specmatrix import HOME

pytestmark = pytest.mark.register(est_seconds=6, stage="pr")

ROOT = HOME
PACKAGES = ("engine", "kernels", "matrix", "ci", "reports", "benchmarks")
CODE_LINES = 400
FUNCTION_LINES = 60

CORE = {"engine.core", "errors"}
DEVICE = CORE | {"engine.device", "engine.models", "kernels"}
SPEC = DEVICE | {"engine.spec"}
TENSORS = {"torch", "safetensors", "tokenizers", "numpy"}
# Folder or file -> what it may import beside itself and the standard library.
RINGS = {
    "engine/core": CORE,
    "kernels": {"errors", "kernels", "torch", "triton"},
    "engine/device": DEVICE | TENSORS,
    "engine/models": DEVICE | TENSORS,
    "engine/spec": SPEC | TENSORS,
    "engine": SPEC | TENSORS | {"engine"},
}
# The clock, the environment and the world outside have no place where everything must replay.
OUTSIDE = {"time", "datetime", "os", "random", "secrets", "socket", "subprocess", "threading", "asyncio", "locale"}
MAY_SAY_LAG = {
    *(f"engine/{name}.py" for name in ("loop", "build", "api", "plugin", "device/staging")),
    *(f"engine/core/config/{name}.py" for name in ("asked", "resolve", "defaults", "context")),
    *(f"engine/core/config/rules/{name}.py" for name in ("table", "draft", "draft_checkpoint")),
    *(f"engine/core/draft/{name}.py" for name in ("algorithms", "algorithm_table")),
}
FORBIDDEN = {"utils", "util", "helper", "helpers", "manager", "info", "base", "tmp", "mixin"}


def sources(*folders: str) -> list[str]:
    return sorted(str(p.relative_to(ROOT)) for f in folders for p in (ROOT / f).rglob("*.py"))


@cache
def tree(path: str) -> ast.Module:
    return ast.parse((ROOT / path).read_text(encoding="utf-8"))


def imported(node: ast.Import | ast.ImportFrom) -> set[str]:
    """Full names that one import statement may refer to: `from specmatrix.engine import loop` names a module."""
    if isinstance(node, ast.Import):
        return {alias.name for alias in node.names}
    assert node.level == 0, f"line {node.lineno} imports relatively"
    return {f"{node.module}.{alias.name}" for alias in node.names}


def imports(path: str) -> set[str]:
    """Every module that the file imports, in functions too; ours without the leading `specmatrix.`."""
    nodes = [node for node in ast.walk(tree(path)) if isinstance(node, ast.Import | ast.ImportFrom)]
    return {module.removeprefix("specmatrix.") for node in nodes for module in imported(node)}


def ring(path: str) -> set[str]:
    return RINGS[max((r for r in RINGS if path.startswith(r + "/")), key=len)]


def within(module: str, packages: set[str]) -> bool:
    return any(module == p or module.startswith(p + ".") for p in packages)


def identifiers(path: str) -> Iterator[tuple[int, str]]:
    for node in ast.walk(tree(path)):
        for field in ("id", "arg", "attr", "name", "asname"):
            value = getattr(node, field, None)
            if isinstance(value, str):
                yield getattr(node, "lineno", 0), value


def words(name: str) -> set[str]:
    """snake_case and CamelCase parts, lower case."""
    return {w.lower() for w in re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z0-9]+", name)}


@pytest.mark.parametrize("path", sources("engine", "kernels"))
def test_imports_point_inward(path):
    allowed = ring(path)
    outward = {m for m in imports(path) if m.split(".")[0] not in sys.stdlib_module_names and not within(m, allowed)}
    assert not outward, f"{path} imports {sorted(outward)}"


# Each package may import those before it; `specmatrix` itself holds the errors, below all, and the command line, above.
ORDER = ("kernels", "engine", "reports", "matrix", "ci", "benchmarks")


@pytest.mark.parametrize("package", ORDER)
def test_imports_between_packages_point_one_way(package):
    allowed = {"errors", "HOME", "__version__", *ORDER[: ORDER.index(package) + 1]}
    upward = {
        f"{path}: {module}"
        for path in sources(package)
        for node in ast.walk(tree(path))
        if isinstance(node, ast.Import | ast.ImportFrom)
        for module in imported(node)
        if module.startswith("specmatrix.") and module.split(".")[1] not in allowed
    }
    assert not upward


@pytest.mark.parametrize("path", sources("engine/core"))
def test_ring_0_knows_no_clock_and_no_environment(path):
    assert not {m for m in imports(path) if m.split(".")[0] in OUTSIDE}


def test_only_timing_knows_the_lag():
    """Spec v1 and v2 differ in one number; acceptance, drafting and the device code never see it."""
    said = {
        f"{path}:{line} {name}"
        for path in sources("engine", "kernels")
        if path not in MAY_SAY_LAG
        for line, name in identifiers(path)
        if "lag" in words(name)
    }
    assert not said


def test_names_say_what_a_thing_is():
    bad = []
    for path in sources(*PACKAGES):
        names = [Path(path).stem, *Path(path).parts[:-1]]
        names += [n.name for n in ast.walk(tree(path)) if isinstance(n, ast.ClassDef)]
        bad += [f"{path}: {n}" for n in names if words(n) & FORBIDDEN or re.search(r"(_v|V)\d+$", n)]
    assert not bad


def code_lines(text: str) -> int:
    """Lines that hold code: no blank lines, comments or docstrings."""
    skipped = (tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER)
    lines: set[int] = set()
    fresh = True  # at the start of a statement
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type in skipped:
            fresh = fresh or token.type == tokenize.NEWLINE
        elif token.type == tokenize.STRING and fresh:
            continue  # a statement that starts with a string is a docstring
        else:
            fresh = False
            lines.update(range(token.start[0], token.end[0] + 1))
    return len(lines)


def test_code_lines_are_counted_without_comments_and_docstrings():
    text = '"""Doc.\n\nMore."""\n\nimport re\n\n# why\ndef f(x):\n    """Doc."""\n'
    text += '    return """a\nb""", [\n        x,\n    ]\n'
    assert code_lines(text) == 6


@pytest.mark.parametrize("package", PACKAGES)
def test_a_file_holds_one_idea(package):
    sizes = {p: code_lines((ROOT / p).read_text(encoding="utf-8")) for p in sources(package)}
    assert not {p: n for p, n in sizes.items() if n > CODE_LINES}


@pytest.mark.parametrize("package", PACKAGES)
def test_a_function_fits_on_a_screen(package):
    long = []
    for path in sources(package):
        for node in ast.walk(tree(path)):
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                length = (node.end_lineno or 0) - node.lineno + 1
                if length > FUNCTION_LINES:
                    long.append(f"{path}:{node.lineno} {node.name} has {length} lines")
    assert not long
