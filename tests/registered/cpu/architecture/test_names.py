"""Names of modules and classes say what a thing is."""

from __future__ import annotations

import ast
import re
from pathlib import Path

from tests.support.sources import SHARED, sources, tree
from tests.support.words import words

FORBIDDEN = {"utils", "util", "helper", "helpers", "manager", "info", "base", "tmp", "mixin"}


def test_no_name_holds_a_vague_word():
    bad = []
    for path in sources(*SHARED):
        names = [Path(path).stem, *Path(path).parts[:-1]]
        names += [n.name for n in ast.walk(tree(path)) if isinstance(n, ast.ClassDef)]
        bad += [f"{path}: {n}" for n in names if words(n) & FORBIDDEN or re.search(r"(_v|V)\d+$", n)]
    assert not bad


def test_a_class_name_occurs_once():
    """Classes of test files may share a name with each other only."""
    shared, local = classes(*SHARED), classes("tests/registered")
    assert not {name: paths for name, paths in shared.items() if len(paths) > 1}
    assert not {name: local[name] for name in shared.keys() & local.keys()}


def classes(*folders: str) -> dict[str, list[str]]:
    """The files that define a class, by its name without underscores in front."""
    found: dict[str, list[str]] = {}
    for path in sources(*folders):
        for node in ast.walk(tree(path)):
            if isinstance(node, ast.ClassDef):
                found.setdefault(node.name.lstrip("_"), []).append(path)
    return found
