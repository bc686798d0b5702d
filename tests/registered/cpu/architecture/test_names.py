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


def test_a_class_name_occurs_once_in_its_folder():
    found: dict[tuple[str, str], list[str]] = {}
    for path in sources(*SHARED):
        for node in ast.walk(tree(path)):
            if isinstance(node, ast.ClassDef):
                found.setdefault((str(Path(path).parent), node.name.lstrip("_")), []).append(path)
    assert len(found) > 500
    assert not {name: paths for name, paths in found.items() if len(paths) > 1}
