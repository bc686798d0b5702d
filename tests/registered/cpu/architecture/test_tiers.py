"""A test file stands in the folder of a tier, and needs no more GPUs than the tier has."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from specmatrix import HOME
from specmatrix.matrix.cells.tiers import TIERS

TESTS = HOME / "tests"
GPUS = {tier.name: tier.gpus for tier in TIERS}
# What only a file that runs on GPUs says: the names of several, the ranks of a group, the tier of its cells.
DEVICE = "cuda"
RANKS = ("SIZE", "tp_size")


def tier_of(path: Path) -> str | None:
    """The tier whose folder holds a test file, if one does."""
    top, name, *_ = (*path.relative_to(TESTS).parts, "")
    return name if top == "registered" and name in GPUS else None


def needs(text: str) -> Iterator[int]:
    """The numbers of GPUs that a test file's literals speak of."""
    for node in ast.walk(ast.parse(text)):
        match node:
            case ast.Constant(value=str(value)) if value.removeprefix(f"{DEVICE}:").isdigit():
                yield int(value.removeprefix(f"{DEVICE}:")) + 1 if value.startswith(DEVICE) else 0
            case ast.Assign(targets=[ast.Name(id=name)], value=ast.Constant(value=int(size))) if name in RANKS:
                yield size
            case ast.keyword(arg=name, value=ast.Constant(value=int(size))) if name in RANKS:
                yield size
            case ast.Call(func=ast.Name(id="MatrixCells"), keywords=keywords):
                yield from (GPUS[word.value.value] for word in keywords if word.arg == "tier")


def too_wide(tier: str, text: str) -> int | None:
    """The number of GPUs that a file needs if the tier has fewer. Ranks of the CPU tier are processes."""
    most = max(needs(text), default=0)
    return most if most > GPUS[tier] and (GPUS[tier] or "MatrixCells(tier=" in text) else None


def test_no_nightly_file_is_marked_so():
    """The nightly workflow runs the folder by its name, without the marked tests."""
    files = (TESTS / "registered" / "cpu" / "nightly").glob("test_*.py")
    assert [path.name for path in files if "mark.nightly" in path.read_text(encoding="utf-8")] == []


def test_every_test_file_is_in_the_folder_of_a_tier():
    assert [path for path in TESTS.rglob("test_*.py") if tier_of(path) is None] == []


def test_no_test_file_needs_more_gpus_than_its_tier():
    files = {path: tier_of(path) for path in TESTS.rglob("test_*.py")}
    assert {path for path, tier in files.items() if tier and too_wide(tier, path.read_text(encoding="utf-8"))} == set()


@pytest.mark.parametrize(
    ("tier", "text", "most"),
    [
        ("gpu1", 'DEVICE = "cuda:1"', 2),
        ("gpu1", 'DEVICE = "cuda"', None),
        ("gpu2", "SIZE = 4", 4),
        ("gpu4", "SIZE = 4", None),
        ("gpu1", "start(tp_size=2)", 2),
        ("cpu", "start(tp_size=2)", None),
        ("cpu", 'cells = MatrixCells(tier="gpu1")', 1),
        ("gpu8", 'cells = MatrixCells(tier="gpu4")', None),
    ],
)
def test_what_a_file_needs_is_read_from_its_literals(tier, text, most):
    assert too_wide(tier, text) == most


@pytest.mark.parametrize("path", ["registered/tpu/test_it.py", "test_it.py", "unit/test_it.py"])
def test_a_folder_of_no_tier_is_none(path):
    assert tier_of(TESTS / path) is None
