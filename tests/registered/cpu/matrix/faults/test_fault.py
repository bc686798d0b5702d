"""A fault is planted exactly where it says, or not at all."""

from pathlib import Path

import pytest

from specmatrix.engine.core.errors import ConfigError
from specmatrix.matrix.cell import Cell
from specmatrix.matrix.faults.fault import Edit, Fault

pytestmark = pytest.mark.register(est_seconds=1, tier="cpu", stage="pr")

TEXT = "first = 1\nsecond = 1\nthird = 3\n"


def make(old: str, new: str = "", also: tuple[Edit, ...] = ()) -> Fault:
    return Fault("made-up", "class", "sglang#1", "part.py", old, new, ("ledger",), ("none",), "for a test", also)


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    (tmp_path / "part.py").write_text(TEXT)
    return tmp_path


def test_the_text_is_replaced(tree: Path):
    make("third = 3\n", "third = 4\n").apply(tree)
    assert (tree / "part.py").read_text() == "first = 1\nsecond = 1\nthird = 4\n"


def test_every_edit_is_made(tree: Path):
    make("third = 3\n", "third = 4\n", (Edit("part.py", "first", "zeroth"),)).apply(tree)
    assert (tree / "part.py").read_text() == "zeroth = 1\nsecond = 1\nthird = 4\n"


@pytest.mark.parametrize(("old", "count"), [("fourth = 4\n", 0), (" = 1\n", 2)])
def test_text_that_is_gone_or_ambiguous_is_an_error(tree: Path, old: str, count: int):
    with pytest.raises(ConfigError) as caught:
        make(old).apply(tree)
    assert str(caught.value) == (
        f"fault made-up does not apply: {old.strip()!r} stands {count} times in part.py, not once; "
        "move the fault along with the code"
    )
    assert (tree / "part.py").read_text() == TEXT


def test_a_missing_file_is_an_error(tmp_path: Path):
    with pytest.raises(ConfigError, match=r"stands 0 times in part\.py"):
        make("third = 3\n").apply(tmp_path)


def test_cells_are_ids_and_the_cheapest_of_a_selector():
    locked = [Cell.from_id(text) for text in ("none.burst", "none.pair", "none", "standalone.pair")]
    fault = Fault("x", "c", "o", "f", "a", "b", ("ledger",), ("none.p4", "algorithm=none", "none.pair"), "w")
    assert [cell.id for cell in fault.chosen(locked)] == ["none.p4", "none", "none.pair"]


def test_a_selector_that_finds_nothing_is_an_error():
    fault = Fault("x", "c", "o", "f", "a", "b", ("ledger",), ("algorithm=eagle3 and topk=4",), "w")
    with pytest.raises(ConfigError) as caught:
        fault.chosen([Cell()])
    assert str(caught.value) == (
        "fault x finds no cell for 'algorithm=eagle3 and topk=4' among the 1 cells of the stage"
    )


def test_a_redundant_cell_is_an_error():
    fault = Fault("x", "c", "o", "f", "a", "b", ("ledger",), ("none.tight",), "w")
    with pytest.raises(ConfigError, match="is redundant"):
        fault.chosen([])
