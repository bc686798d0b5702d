"""The order in which cells run, from a kill matrix to the stored file."""

import json
from pathlib import Path

import pytest

from specmatrix.errors import ConfigError
from specmatrix.matrix.cli.cells import declared
from specmatrix.matrix.cover.lockfile import stage_cells
from specmatrix.matrix.cover.selection import (
    ORDER_FILE,
    cheaper_stage,
    greedy,
    in_order,
    renew,
    stored_order,
    stored_ranks,
)


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


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (None, r"^cannot read the kill matrix '.*faults.json': No such file or directory$"),
        ("[]", r"^'.*faults.json' is no kill matrix of `specmatrix faults --out`: Expected `object`, got `array`$"),
        ('{"faults": [{"id": "a"}], "cell_seconds": {}}', "missing required field `cells`"),
        ('{"faults": [{"id": "a", "cells": ["none.s5"]}], "cell_seconds": {}}', "no fault that a locked cell finds"),
    ],
)  # fmt: skip
def test_what_gives_no_order_is_refused_and_leaves_the_old_one(text, sentence, tmp_path):
    matrix, path = tmp_path / "faults.json", tmp_path / "cells.order"
    path.write_text("none 1 a\n")
    if text is not None:
        matrix.write_text(text)
    with pytest.raises(ConfigError, match=sentence):
        renew(matrix, path=path)
    assert path.read_text() == "none 1 a\n"


@pytest.mark.parametrize("line", ["none", "none soon a", ""])
def test_an_invalid_line_is_named(line, tmp_path):
    path = tmp_path / "cells.order"
    path.write_text(f"# head\n{line}\n")
    with pytest.raises(ConfigError, match=r"^cells.order line 2 is invalid: .*; restore it, or run `specmatrix lock"):
        stored_order(path)
