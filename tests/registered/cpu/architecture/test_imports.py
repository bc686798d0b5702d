"""One package and one name per module: what is installed, what it exports, and how its sources import each other."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

import specmatrix
from specmatrix import HOME, engine

ROOT = HOME
FOLDERS = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["setuptools"]["package-dir"]
TOP = set(FOLDERS.values())
SOURCES = sorted(path for folder in (*TOP, "specmatrix", "tests", "examples") for path in (ROOT / folder).rglob("*.py"))
# An import in code that stands in a string.
QUOTED = re.compile(rf"\b(?:from|import) (?:[\w.]+, )*(?:{'|'.join(TOP)})(?:[.,;]| import|$)", re.MULTILINE)
IN_STRINGS = re.compile(r"^ *from specmatrix[\w.]* import [\w, ]+$", re.MULTILINE)
# Rings are named by their folders; an installation lies beside a project that has an `engine` of its own.
OTHER_NAMES = {"test_rings.py", "test_installed.py"}


@cache
def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def texts(path: Path) -> Iterator[ast.Constant]:
    """The strings that are no docstrings."""
    docs = {id(node.value) for node in ast.walk(tree(path)) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docs:
            yield node


def names_a_module(text: str) -> bool:
    if not re.fullmatch(r"\w+(\.\w+)+", text) or text.split(".")[0] not in TOP:
        return False
    path = ROOT.joinpath(*text.split(".")[:2])
    return path.is_dir() or path.with_suffix(".py").is_file()


def test_no_string_names_a_module_by_a_second_name():
    wrong = []
    for path in SOURCES:
        for node in texts(path) if path.name not in OTHER_NAMES else ():
            if names_a_module(node.value) or QUOTED.search(node.value):
                wrong.append(f"{path.relative_to(ROOT)}:{node.lineno} {node.value!r}")
    assert not wrong


def test_imports_in_strings_name_what_exists():
    """Such code runs in its own processes, some of it at night only."""
    wrong = []
    for path in SOURCES:
        for line in (line for node in texts(path) for line in IN_STRINGS.findall(node.value)):
            try:
                exec(line.strip(), {})
            except ImportError as error:
                wrong.append(f"{path.relative_to(ROOT)}: {error}")
    assert not wrong


def test_every_source_lies_in_a_package():
    bare = {path.parent for folder in TOP for path in (ROOT / folder).rglob("*.py")}
    assert not [folder for folder in bare if not (folder / "__init__.py").is_file()]


def test_a_checkout_is_one_package_with_its_folders_beside_it():
    assert specmatrix.HOME == ROOT
    assert {f"specmatrix.{folder}": folder for folder in TOP} == FOLDERS


def test_the_links_for_the_type_checker_lay_the_sources_out_as_installed():
    linked = (path for path in (ROOT / ".lint" / "specmatrix").iterdir() if path.name != "__pycache__")
    links = {path.name: path.resolve() for path in linked}
    own = {path.name: path for path in (ROOT / "specmatrix").iterdir() if path.is_file()}
    assert links == {folder: ROOT / folder for folder in TOP} | own


def test_the_public_names_are_those_that_the_type_checker_sees():
    (only,) = [node for node in tree(ROOT / "engine" / "__init__.py").body if isinstance(node, ast.If)]
    seen = {node.names[0].name: node.module for node in only.body if isinstance(node, ast.ImportFrom)}
    assert seen == {name: f"specmatrix.engine.{home}" for name, home in engine.HOMES.items()}
    assert all(getattr(engine, name).__name__ == name for name in engine.HOMES)


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match=r"^module 'specmatrix\.engine' has no attribute 'LML'$"):
        _ = engine.LML


def test_configuration_and_errors_need_no_torch():
    code = (
        "import sys\n"
        "from specmatrix.engine import ConfigError, EngineConfig, RequestError, SamplingParams\n"
        "sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=False).returncode == 0
