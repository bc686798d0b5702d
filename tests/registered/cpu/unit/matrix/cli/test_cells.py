"""`specmatrix axes`, `cells list` and `explain`."""

import json

from specmatrix.cli import main
from specmatrix.matrix.cells.axes import AXES
from specmatrix.matrix.cover.lockfile import stage_cells, subject_cells
from specmatrix.matrix.cover.selection import of_gpus


def said(capsys, *words: str, status: int = 0):
    assert main([*words]) == status
    return capsys.readouterr().out


def test_axes_names_every_axis_with_its_default_first(capsys):
    lines = said(capsys, "axes").splitlines()
    assert len(lines) == len(AXES) + 1 and lines[-1] == f"{len(AXES)} axes; the first value is the default"
    rows = json.loads(said(capsys, "axes", "--json"))["axes"]
    assert [row["axis"] for row in rows] == [axis.name for axis in AXES]
    assert all(row["values"][0]["value"] == row["default"] for row in rows)


def test_the_listed_cells_are_those_that_a_run_has(capsys):
    smoke = [cell.id for cell in of_gpus(stage_cells("smoke"), 0)]
    lines = said(capsys, "cells", "list", "--stage", "smoke").splitlines()
    assert [line.split()[0] for line in lines[:-1]] == smoke and lines[-1].startswith(f"{len(smoke)} cells, about ")
    rows = json.loads(said(capsys, "cells", "list", "--stage", "pr", "--tier", "gpu2", "--json"))["cells"]
    assert rows and all(row["axes"]["tp"] == "2" for row in rows)


def test_the_cells_of_another_subject_are_its_own_with_what_it_does_not_support(capsys):
    own = [cell.id for cell in of_gpus(subject_cells("pr", "transformers"), 0)]
    lines = said(capsys, "cells", "list", "--subject", "transformers").splitlines()
    assert lines[:-1] == [f"{one}  runs" for one in own] and lines[-1] == f"{len(own)} cells, of which 0 unsupported"
    words = ("cells", "list", "--subject", "transformers", "--stage", "nightly", "--cells", "none.ramp.length")
    (row,) = json.loads(said(capsys, *words, "--json"))["cells"]
    assert row["id"] == "none.ramp.length" and row["unsupported"].startswith("transformers' assisted generation takes")
    assert said(capsys, *words).startswith(f"none.ramp.length  unsupported: {row['unsupported']}\n1 cell, of which 1 ")


def test_several_cells_are_explained_in_their_order(capsys):
    whole = ["eagle3.s3", "algorithm=none", "page_size=4", "standalone.s1"]
    rows = json.loads(said(capsys, "explain", *whole, "--json"))["cells"]
    assert [row["id"] for row in rows] == ["eagle3.s3", "none.p4", "standalone.s1"]
    apart = json.loads(said(capsys, "explain", "algorithm=none page_size=4", "algorithm=eagle3 steps=3", "--json"))
    assert [row["id"] for row in apart["cells"]] == ["none.p4", "eagle3.s3"]
    assert said(capsys, "explain", "eagle3.s3", "none.p4").count("\n\n") == 1


def test_json_says_what_a_cell_resolves_to_and_why(capsys):
    (row,) = json.loads(said(capsys, "explain", "eagle3.s3", "--json"))["cells"]
    assert row["resolved"]["num_draft_tokens"] == 4 and row["error"] is None
    assert {"spec_version", "speculative_eagle_topk"} <= {reason["field"] for reason in row["reasons"]}
    (refused,) = json.loads(said(capsys, "explain", "none.v2.sync", "--json", status=2))["cells"]
    assert refused["resolved"] is None and refused["error"] and refused["constraints"][0]["kind"] == "refused"
