"""The order in which cells run."""

import pytest

from specmatrix.errors import ConfigError
from specmatrix.matrix.cover.lockfile import stage_cells
from specmatrix.matrix.cover.selection import ORDER_FILE, cheaper_stage, in_order, stored_order


def test_the_stored_order_names_locked_cells_once_and_without_one_cells_keep_theirs(tmp_path):
    cells = [row.cell for row in stored_order()]
    assert cells and len(cells) == len({*cells}) and {*cells} <= {cell.id for cell in stage_cells("nightly")}
    # Nothing is left out of an installation.
    assert ORDER_FILE.match("cells.*")
    assert stored_order(tmp_path / "none") == () and in_order(stage_cells("pr"), tmp_path / "none") == stage_cells("pr")


def test_a_cheaper_stage_finds_what_its_own_cells_are_known_to_find(tmp_path):
    smoke, pr, nightly = ([c for c in stage_cells(stage) if not c.gpus] for stage in ("smoke", "pr", "nightly"))
    path = tmp_path / "cells.order"
    path.write_text(f"{smoke[0].id} 1.0 a b\n{pr[-1].id} 1.0 b c\n{nightly[-1].id} 1.0 d\n")
    assert cheaper_stage("smoke", 0, path) is None and cheaper_stage("product", 0, path) is None
    less, least = cheaper_stage("nightly", 0, path), cheaper_stage("pr", 0, path)
    assert less is not None and (less.stage, less.found, less.faults) == ("pr", 3, 4)
    assert least is not None and (least.stage, least.found, least.faults) == ("smoke", 2, 3)
    assert least.cells == len(smoke) and least.seconds > 1
    assert cheaper_stage("nightly", 8, path) is None


@pytest.mark.parametrize("line", ["none", "none soon a", ""])
def test_an_invalid_line_is_named(line, tmp_path):
    path = tmp_path / "cells.order"
    path.write_text(f"# head\n{line}\n")
    with pytest.raises(ConfigError, match=r"^cells.order line 2 is invalid: .*; restore it, or run `python -m tools"):
        stored_order(path)
