"""The sources as text: what a rule about them reads."""

from __future__ import annotations

import ast
from functools import cache

from specmatrix import HOME

# What the repository ships, by its folders at the top.
PACKAGES = ("engine", "kernels", "matrix", "ci", "reports", "benchmarks")
# All code but the tests themselves, which may name what they test alike.
SHARED = (*PACKAGES, "specmatrix", "examples", "tools", "tests/support")


def sources(*folders: str) -> list[str]:
    """Every Python file under these folders, relative to the repository."""
    return sorted(str(path.relative_to(HOME)) for folder in folders for path in (HOME / folder).rglob("*.py"))


def source(path: str) -> str:
    """The text of a file, by its path relative to the repository."""
    return (HOME / path).read_text(encoding="utf-8")


@cache
def tree(path: str) -> ast.Module:
    """The syntax tree of a file, by its path relative to the repository."""
    return ast.parse(source(path))


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
