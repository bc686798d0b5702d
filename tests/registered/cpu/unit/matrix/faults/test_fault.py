"""A fault is planted exactly where it says, or not at all."""

from pathlib import Path

import pytest

from specmatrix.matrix.cells.cell import Cell
from specmatrix.matrix.faults.fault import Edit, Fault
from tests.support.refusals import refusal

PART = """\
FIRST = 1


class Ledger:
    PAGES = 2

    @staticmethod
    def settle(pages):
        left = pages - 1
        return left

    def close(self, pages):
        left = pages - 1
        return left


if FIRST:

    def close(pages):
        def inner():
            return pages

        return inner()
"""
OTHER = "def close(pages):\n    return other\n"


def make(within: str, old: str, new: str = "", also: tuple[Edit, ...] = ()) -> Fault:
    return Fault("made-up", "category", "sglang#1", within, old, new, ("ledger",), ("none",), "for a test", also)


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    (tmp_path / "room").mkdir()
    (tmp_path / "part.py").write_text(PART)
    (tmp_path / "room" / "other.py").write_text(OTHER)
    return tmp_path


@pytest.mark.parametrize(
    ("within", "old", "number"),
    [
        ("FIRST", "= 1", 0),
        ("Ledger.PAGES", "= 2", 4),
        ("Ledger.settle", "pages - 1", 8),
        ("Ledger.settle", "@staticmethod", 6),
        ("Ledger.close", "pages - 1", 12),
        ("close", "return pages", 20),
        ("close.inner", "return pages", 20),
        ("Ledger", "def settle", 7),
    ],
)
def test_the_text_is_replaced_in_its_definition(tree: Path, within: str, old: str, number: int):
    assert make(within, old, "changed").patch.apply(tree) == [tree / "part.py"]
    lines = PART.splitlines(keepends=True)
    lines[number] = lines[number].replace(old, "changed")
    assert (tree / "part.py").read_text() == "".join(lines)
    assert (tree / "room" / "other.py").read_text() == OTHER


def test_a_name_may_stand_in_several_modules_if_the_text_stands_in_one(tree: Path):
    assert make("close", "return other", "return pages").patch.apply(tree) == [tree / "room" / "other.py"]


def test_every_edit_is_made(tree: Path):
    also = (Edit("Ledger.settle", "left\n", "right\n"), Edit("close", "return other", "return pages"))
    assert len(make("Ledger.settle", "pages - 1", "pages", also).patch.apply(tree)) == 2
    assert "left = pages\n        return right\n" in (tree / "part.py").read_text()
    assert (tree / "room" / "other.py").read_text() == "def close(pages):\n    return pages\n"


@pytest.mark.parametrize(
    ("within", "old", "count"),
    [
        ("Ledger.settle", "fourth = 4\n", 0),
        ("settle", "pages - 1", 0),
        ("left", "pages - 1", 0),
        ("close.inner", "return inner", 0),
        ("Ledger", "pages - 1", 2),
        ("close", "def close", 2),
    ],
)
def test_text_that_is_gone_or_ambiguous_is_an_error(tree: Path, within: str, old: str, count: int):
    text = f"fault made-up does not apply: {old.strip()!r} occurs {count} times in {within}, not once; "
    assert refusal(make(within, old).patch.apply, tree) == text + "update it to match the code"
    assert (tree / "part.py").read_text() == PART


def test_cells_are_ids_and_the_cheapest_of_a_selector():
    def chosen(*cells: str):
        return Fault("x", "c", "o", "f", "a", "b", ("ledger",), cells, "w").chosen

    locked = [Cell.from_id(text) for text in ("none.burst", "none.pair", "none", "standalone.pair")]
    found = chosen("none.p4", "algorithm=none", "none.pair")(locked)
    assert [cell.id for cell in found] == ["none.p4", "none", "none.pair"]
    text = "fault x: 'algorithm=eagle3 and topk=4' matches none of the 1 cells of the stage"
    assert refusal(chosen("algorithm=eagle3 and topk=4"), [Cell()]) == text
    assert "is redundant" in refusal(chosen("none.tight"), [])
