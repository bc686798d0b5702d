"""`specmatrix history`, as a user runs it."""

from datetime import date, timedelta

import pytest

from specmatrix.cli import main
from specmatrix.matrix.cells.cell import Cell
from specmatrix.matrix.run.waivers import load_waivers, waive
from specmatrix.reports.store import load
from tests.support.made_reports import write_report

CHAIN, TREE = "eagle3.s3.k1.n4.v2", "eagle3.s3.k4.n8.v2.mixed_lengths"


def write(folder, number, red=(), length=3.0):
    """A report of both cells at a commit per two runs."""
    cells = {cell: Cell.from_id(cell).values for cell in (CHAIN, TREE)}
    header = {"created": f"2026-09-01T{number:02}:00:00+00:00", "commit": f"{number // 2:x}" * 40}
    return write_report(folder / f"run{number}", cells, red, length, **header)


@pytest.fixture
def folder(tmp_path, capsys):
    """Eight runs: the tree fails in the fourth, and acceptance falls with the fifth."""
    runs = [write(tmp_path, n, red=(TREE,) if n == 3 else (), length=3.0 if n < 4 else 2.4) for n in range(8)]
    history = tmp_path / "history"
    assert main(["history", "add", *map(str, runs), "--history", str(history)]) == 0
    assert capsys.readouterr().out.count("added 20260901T") == 8
    return history


def out_of(capsys, *words: object):
    assert main([str(word) for word in words]) == 0
    return capsys.readouterr().out


def test_flaky_proposes_waivers_that_the_run_then_takes(folder, tmp_path, capsys):
    lines = out_of(capsys, "history", "flaky", "--history", folder).splitlines()
    assert (
        lines[0] == f"{TREE}: lossless is red in 1 of 2 runs of 111111111111" and lines[-1] == "1 flaky cell in 8 runs"
    )
    file = tmp_path / "waivers.yaml"
    file.write_text(out_of(capsys, "history", "flaky", "--history", folder, "--waivers", file, "--days", 7))
    (rule,) = load_waivers(file)
    assert rule.kind == "flaky" and rule.expiry == (date.today() + timedelta(7)).isoformat()
    report = load(tmp_path / "run3")
    assert waive(report[TREE], (rule,), "reference", None).waived is not None
    assert waive(load(tmp_path / "run4")[TREE], (rule,), "reference", None).state == "PASS"
    again = out_of(capsys, "history", "flaky", "--history", folder, "--waivers", file)
    assert again == f"# {file} lacks no waiver of a flaky cell\n"
