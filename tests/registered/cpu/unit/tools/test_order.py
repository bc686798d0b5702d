"""The order in which cells run, from a kill matrix to the stored file."""

import json
from pathlib import Path

import pytest

from specmatrix.errors import ConfigError
from specmatrix.matrix.cover.lockfile import stage_cells
from specmatrix.matrix.cover.selection import in_order, stored_order, stored_ranks
from tools.order import declared, greedy, renew


def kills(path: Path, faults: dict[str, list[str]], **seconds: float) -> Path:
    rows = [{"id": name, "category": "c", "killed_by": ["lossless"], "cells": cells} for name, cells in faults.items()]
    path.write_text(json.dumps({"total": len(faults), "faults": rows, "cell_seconds": seconds}))
    return path


def test_the_cell_that_finds_most_per_second_comes_first():
    found = {"a": {"eagle3"}, "b": {"eagle3", "dflash"}, "c": {"eagle3", "dflash"}, "d": {"ngram"}}
    assert greedy(found, {"eagle3": 1.0, "dflash": 0.5, "ngram": 1.0}) == ["dflash", "eagle3", "ngram"]
    assert greedy(found, {"eagle3": 0.7, "dflash": 0.5, "ngram": 1.0}) == ["eagle3", "ngram"]
    assert greedy({}, {}) == []


def test_the_cells_that_the_catalogue_names_find_their_faults_unless_a_kernel_or_a_server_has_them():
    found = declared()
    assert found["bonus-stride"] and not {"kernel-view-stride", "metrics-withheld"} & found.keys()


def test_an_order_is_stored_with_what_each_cell_finds_and_read_back(tmp_path):
    first, second = (cell.id for cell in stage_cells("smoke")[:2])
    matrix = kills(
        tmp_path / "faults.json", {"a": [second], "b": [second, first], "c": [first], "d": ["none.s5"], "e": []},
        **{first: 0.5, second: 0.254},
    )  # fmt: skip
    path = tmp_path / "cells.order"
    named = {"a": (first,), "f": (first,), "g": ()}
    assert renew(matrix, named, path=path) == "cells.order: 2 cells find 4 of 7 faults"
    assert stored_order(path) == ((second, 0.25, ("a", "b")), (first, 0.5, ("f", "b", "c")))
    assert stored_ranks(path) == {second: 0, first: 1}
    cells = stage_cells("smoke")
    assert [cell.id for cell in in_order(cells, path)] == [second, first, *(cell.id for cell in cells[2:])]


def test_a_kill_matrix_without_a_locked_cell_leaves_the_old_order(tmp_path):
    path = tmp_path / "cells.order"
    path.write_text("none 1 a\n")
    with pytest.raises(ConfigError, match="no fault that a locked cell finds"):
        renew(kills(tmp_path / "faults.json", {"a": ["none.s5"]}), {}, path=path)
    assert path.read_text() == "none 1 a\n"
