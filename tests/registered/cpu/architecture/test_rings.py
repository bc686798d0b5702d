"""Imports point one way, between packages and inside the engine; its core knows no clock, and only what times steps
knows the lag."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator

import pytest

from tests.support.sources import imported, imports, sources, tree
from tests.support.words import words

CORE = {"engine.core", "errors", "json_text"}
DEVICE = CORE | {"files", "engine.device", "engine.models", "kernels"}
SPEC = DEVICE | {"engine.spec"}
TENSORS = {"torch", "safetensors", "tokenizers", "numpy"}
HTTP = {"fastapi", "starlette", "uvicorn", "pydantic", "prometheus_client", "msgspec"}
GRAMMAR = {"xgrammar", "transformers"}
# Folder or file -> what it may import beside itself and the standard library.
RINGS = {
    "engine/core": CORE,
    "kernels": {"errors", "kernels", "torch", "triton", "numba", "numpy"},
    "engine/device": DEVICE | TENSORS | {"xgrammar"},
    "engine/models": DEVICE | TENSORS,
    "engine/spec": SPEC | TENSORS,
    "engine/server": SPEC | {"engine", "__version__", "child_process", "jinja2", "h11"} | HTTP,
    "engine": SPEC
    | TENSORS
    | GRAMMAR
    | {"engine", "temp_dir", "child_process", "remote", "user_file", "extras", "host_memory"},
}
# The clock, the environment and the world outside have no place where everything must replay.
OUTSIDE = {"time", "datetime", "os", "random", "secrets", "socket", "subprocess", "threading", "asyncio", "locale"}
MAY_SAY_LAG = {
    *(f"engine/{name}.py" for name in ("loop", "build", "readback", "plugin", "device/staging")),
    *(f"engine/core/config/{name}.py" for name in ("asked", "resolve", "defaults", "context")),
    *(f"engine/core/config/rules/{name}.py" for name in ("table", "draft")),
    "engine/core/draft/algorithms.py",
}


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


def test_imports_point_inward():
    outward = {}
    for path in sources("engine", "kernels"):
        others = {module for module in imports(path) if module.split(".")[0] not in sys.stdlib_module_names}
        if wrong := {module for module in others if not within(module, ring(path))}:
            outward[path] = wrong
    assert not outward


# Each package may import those before it; `specmatrix` itself holds what is below all (BELOW), and the command line.
BELOW = {
    "HOME",
    "__version__",
    "child_process",
    "errors",
    "exit_with_parent",
    "extras",
    "files",
    "git",
    "host_memory",
    "json_text",
    "options",
    "plain_text",
    "remote",
    "stopping",
    "temp_dir",
    "user_file",
}
ORDER = ("kernels", "engine", "reports", "matrix", "ci", "benchmarks")


@pytest.mark.parametrize("package", ORDER)
def test_imports_between_packages_point_one_way(package):
    allowed = BELOW | {*ORDER[: ORDER.index(package) + 1]}
    upward = {
        f"{path}: {module}"
        for path in sources(package)
        for node in ast.walk(tree(path))
        if isinstance(node, ast.Import | ast.ImportFrom)
        for module in imported(node)
        if module.startswith("tools.") or (module.startswith("specmatrix.") and module.split(".")[1] not in allowed)
    }
    assert not upward


def test_ring_0_uses_no_clock_and_no_environment():
    known = {path: {m for m in imports(path) if m.split(".")[0] in OUTSIDE} for path in sources("engine/core")}
    assert known and not any(known.values()), {path: modules for path, modules in known.items() if modules}


def test_only_timing_code_mentions_the_lag():
    """Spec v1 and v2 differ in one number; acceptance, drafting and the device code never see it."""
    said = {
        f"{path}:{line} {name}"
        for path in sources("engine", "kernels")
        if path not in MAY_SAY_LAG
        for line, name in identifiers(path)
        if "lag" in words(name)
    }
    assert not said
