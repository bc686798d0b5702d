"""Runs of a part of their cells: until the first red one, and only those that an earlier run left red."""

import json
import shlex
from pathlib import Path

import pytest

from specmatrix.ci import local
from specmatrix.cli import main
from specmatrix.matrix.cells.cell import Cell
from specmatrix.matrix.cover.selection import chosen_cells, stored_ranks
from specmatrix.matrix.gates.gate import Outcome, State
from specmatrix.matrix.gates.registry import GATES
from specmatrix.matrix.run.provenance import lost, record, run_header
from specmatrix.matrix.workloads.prepared_cell import prepare
from specmatrix.reports.render.run import view
from specmatrix.reports.render.terminal import MAX_LISTED
from specmatrix.reports.store import ReportWriter, load
from tests.support import scripted_workers
from tests.support.tables import table

RUN = ["run", "--stage", "smoke", "--workers", "1"]
FAILS = ("eagle3.s2.k2.n6.v1.mixed_lengths", "eagle3.s2.k2.n6.v1.pair")
CELLS = ("none.length", *FAILS)


def run(out: Path, *words: str) -> int:
    """The command with these words; an option of theirs replaces the usual one."""
    usual = [*RUN, "--out", str(out)]
    pairs = zip(usual[1::2], usual[2::2], strict=True)
    return main([usual[0], *(word for pair in pairs if pair[0] not in words for word in pair), *words])


def report_of(out: Path, red: str = "", left: tuple[str, ...] = ()) -> None:
    """A report of CELLS, the cell `red` without a result and the cells `left` not run."""
    with ReportWriter(out, run_header("cpu", "smoke", 0, GATES)) as writer:
        for text in CELLS:
            prepared = prepare(Cell.from_id(text), "cpu", 0)
            if text == red:
                writer.write(lost(prepared, "its worker died"))
            elif text not in left:
                writer.write(record(prepared, "PASS", outcomes=(Outcome("config", State.PASS),)))
        writer.not_run = left


@pytest.fixture
def ids(tmp_path: Path) -> list[str]:
    """The smoke cells that the tests select."""
    return [cell.id for cell in chosen_cells("cpu", "smoke", ["batch in (mixed_lengths, single)"], None)]


def test_fail_fast_ends_at_the_first_red_cell_and_counts_those_that_did_not_run(ids, monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(local, "work", scripted_workers.fails_drafts)
    assert run(tmp_path, "--cells", "batch in (mixed_lengths, single)", "--fail-fast") == 1
    report = load(tmp_path)
    assert len(report.red()) == 1 and list(report.lines)[-1] == report.red()[0]
    left = len(ids) - len(report)
    assert left >= 2 and {*report.lines, *report.not_run} == {*ids} and len(report.not_run) == left
    said = f"red: 1 of {len(report)} cell{'s' * (len(report) > 1)} did not pass, and {left} more cells did not run"
    assert said in capsys.readouterr().out.splitlines()
    assert json.loads((tmp_path / "summary.json").read_text())["not_run"] == left
    for page in ("report.md", "report.html"):
        assert f"{left} more cells did not run" in (tmp_path / page).read_text()

    before = (tmp_path / "report.jsonl").read_bytes()
    monkeypatch.setattr(local, "work", scripted_workers.passes)
    assert run(tmp_path / "again", "--rerun-failed", str(tmp_path)) == 0
    again = load(tmp_path / "again")
    assert {*again.lines} == {*report.red(), *report.not_run} and not again.not_run
    assert (tmp_path / "report.jsonl").read_bytes() == before
    monkeypatch.undo()
    assert run(tmp_path / "third", "--rerun-failed", str(tmp_path / "again")) == 2


def test_fail_fast_goes_on_behind_waived_cells(ids, monkeypatch, tmp_path, capsys):
    waivers = tmp_path / "waivers.yaml"
    waivers.write_text("- {cells: not algorithm=none, gate: config, reason: known, expiry: 2999-12-31, issue: x#1}\n")
    monkeypatch.setattr(local, "work", scripted_workers.fails_drafts)
    assert run(tmp_path, "--cells", "batch in (mixed_lengths, single)", "--fail-fast", "--waivers", str(waivers)) == 0
    report = load(tmp_path)
    assert {*report.lines} == {*ids} and report.red() and not report.not_run
    assert report[report.red()[0]].waived.issue == "x#1"
    lines = capsys.readouterr().out.splitlines()
    assert ", 0 failed, " in lines[0] and f", {len(report.red())} waived; " in lines[0]
    told = [line for line in lines if line.startswith("waived FAIL ")]
    assert len({*told}) == MAX_LISTED < len(report.red())
    assert {*told} < {f"waived FAIL {cell}: known (x#1), until 2999-12-31" for cell in report.red()}
    assert f"… and {len(report.red()) - MAX_LISTED} more waived cells in the report" in lines
    assert run(tmp_path / "again", "--rerun-failed", str(tmp_path)) == 2


def test_the_command_of_a_known_failure_that_passes_again_names_the_waivers(monkeypatch, tmp_path):
    waivers = tmp_path / "the waivers.yaml"
    waivers.write_text("- {cells: not algorithm=none, gate: config, reason: known, expiry: 2999-12-31}\n")
    monkeypatch.setattr(local, "work", scripted_workers.passes)
    assert run(tmp_path / "first", "--cells", FAILS[0], "--waivers", str(waivers)) == 1
    [cell] = load(tmp_path / "first")
    assert cell.error == "config passes again, but a waiver until 2999-12-31 says that it fails: known"
    words = shlex.split(cell.repro)
    assert words[words.index("--waivers") + 1] == str(waivers)
    assert main([*words[1:-1], str(tmp_path / "second"), "--workers", "1"]) == 1
    assert load(tmp_path / "second")[FAILS[0]].error == cell.error


def test_a_lost_cell_and_those_that_did_not_run_are_run_again(monkeypatch, tmp_path):
    report_of(tmp_path, red=CELLS[0], left=CELLS[2:])
    monkeypatch.setattr(local, "work", scripted_workers.passes)
    assert run(tmp_path / "again", "--rerun-failed", str(tmp_path / "report.jsonl")) == 0
    assert {*load(tmp_path / "again").lines} == {CELLS[0], CELLS[2]}


@pytest.mark.parametrize(("words", "sentence"), table(__file__)["refused"])
def test_what_cannot_be_rerun_is_refused_in_a_sentence(words, sentence, tmp_path, capsys):
    report_of(tmp_path)
    given = [word.format(out=tmp_path) for word in words]
    source = [] if "--rerun-failed" in words else ["--rerun-failed", str(tmp_path)]
    assert run(tmp_path / "again", *source, *given) == 2
    assert capsys.readouterr() == ("", f"specmatrix: {sentence.format(out=tmp_path)}\n")
    assert not (tmp_path / "again").exists()


def test_a_report_that_ends_early_is_no_pass(tmp_path):
    report_of(tmp_path, left=CELLS[1:])
    run_view = view(load(tmp_path))
    assert (run_view.verdict, run_view.outcome) == ("red", "1 of 1 cell passed, and 2 more cells did not run")


def test_the_cell_that_finds_most_runs_first(monkeypatch, tmp_path):
    monkeypatch.setattr(local, "work", scripted_workers.passes)
    assert run(tmp_path) == 0
    lines = map(json.loads, (tmp_path / "report.jsonl").read_text(encoding="utf-8").splitlines())
    ids, ranks = [line["id"] for line in lines if line["kind"] == "cell"], stored_ranks()
    assert len(ranks.keys() & ids) > 1
    assert ids[0] == min(ids, key=lambda cell: ranks.get(cell, len(ranks)))
