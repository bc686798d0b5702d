import sys

import pytest

from specmatrix.matrix.cells.axes import AXES
from specmatrix.matrix.cells.cell import Cell
from specmatrix.matrix.cells.constraints import expect, explain
from specmatrix.matrix.cover import lock as lock_module
from specmatrix.matrix.cover.lock import PRESETS, check, extend
from specmatrix.matrix.cover.lockfile import LOCK_FILE, STAGES, Lock, read, stage_cells, write


@pytest.fixture
def lock() -> Lock:
    return read()


@pytest.fixture
def problems(tmp_path):
    """The problems that a check finds in an edited lock."""

    def judge(lock: Lock, full: bool = False) -> tuple[str, ...]:
        write(lock, tmp_path / "cells.lock")
        return check(tmp_path / "cells.lock", full).problems

    return judge


def test_the_committed_lock_is_complete():
    report = check(full=True)
    assert report.problems == ()
    assert report.ok and report.pairs[0] == report.pairs[1] and report.triples[0] == report.triples[1]


def test_stages_keep_their_budgets():
    own = {stage: len(cells) for stage, cells in read().cells.items()}
    assert own["smoke"] <= 28 and 55 <= own["pr"] <= 280 and 250 <= own["nightly"] <= 900


def test_smoke_touches_every_value():
    cells = stage_cells("smoke")
    # A flat file is always rewritten, so its cells are negative ones.
    assert {(axis.name, name) for axis in AXES for name in axis.names} - {("adaptive", "flat")} == {
        (axis.name, getattr(cell, axis.name)) for cell in cells for axis in AXES
    }


def test_each_stage_runs_negative_cells():
    assert {expect(cell) for cell in stage_cells("pr")} == {"runs", "rewritten", "refused"}


def test_one_start_serves_several_cells():
    cells = stage_cells("pr")
    assert len({cell.start_key for cell in cells}) <= len(cells) - 15


def test_a_report_reads_as_one_line_when_complete():
    report = check()
    text = report.text()
    assert text.startswith("cells.lock: complete; smoke ") and "\n" not in text
    # What a stage runs is what `run` counts; its own cells are what the lock file lists under it.
    runs = {stage: len(stage_cells(stage)) for stage in ("smoke", "pr", "nightly")}
    own = (
        f"pr {runs['pr']}, {report.cells['pr']} of its own; nightly {runs['nightly']}, {report.cells['nightly']} of its"
    )
    assert f"smoke {runs['smoke']}; {own} own; pairs " in text


def test_other_tables_are_noticed(lock, problems):
    lock.tables = "0" * 12
    assert problems(lock)[0] == "axes or constraints changed since the lock was written; run `specmatrix lock --extend`"


def test_an_unreadable_id_is_noticed(lock, tmp_path):
    write(lock, tmp_path / "cells.lock")
    with (tmp_path / "cells.lock").open("a") as file:
        file.write("medusa.s3\n")
    assert "medusa.s3 is not a cell of the current axes" in check(tmp_path / "cells.lock").problems


@pytest.mark.parametrize("stage", STAGES)
def test_a_dropped_preset_is_noticed(lock, problems, stage):
    text, note = next(iter(PRESETS[stage].items()))
    lock.cells[stage].remove(Cell.from_id(text))
    assert f"preset {text} of stage {stage} is missing ({note})" in problems(lock)


def test_a_preset_of_a_later_stage_only_is_noticed(lock, problems):
    text, note = next(iter(PRESETS["pr"].items()))
    lock.cells["pr"].remove(Cell.from_id(text))
    lock.cells["nightly"].append(Cell.from_id(text))
    assert f"preset {text} of stage pr is missing ({note})" in problems(lock)


def test_a_dropped_cover_row_is_noticed(lock, problems):
    lock.cells["pr"] = [cell for cell in lock.cells["pr"] if cell in lock.notes]
    assert any("combinations of 2 values uncovered: " in problem for problem in problems(lock))


@pytest.mark.nightly
def test_a_dropped_nightly_row_is_noticed_by_the_full_check_only(lock, problems):
    presets = {Cell.from_id(text) for texts in PRESETS.values() for text in texts}
    rows = [cell for cell in lock.cells["nightly"] if cell not in presets and not explain(cell)][-30:]
    lock.cells["nightly"] = [cell for cell in lock.cells["nightly"] if cell not in rows]
    assert problems(lock) == ()
    assert any("combinations of 3 values uncovered: " in problem for problem in problems(lock, full=True))


def test_a_dropped_negative_cell_is_noticed(lock, problems):
    lock.cells["pr"] = [cell for cell in lock.cells["pr"] if not (cell.overlap == "off" and cell.spec_version == "v2")]
    assert "stage pr has 0 of 1 cells that are refused by v2-needs-overlap" in problems(lock)


def test_a_dropped_sweep_row_is_noticed(lock, problems):
    row = Cell.from_id("eagle3.s3.k4.n8.v2.p16.burst.mixed.length")
    lock.cells["pr"].remove(row)
    assert any(problem.startswith("sweep of eagle3.s3.k4.n8.v2.p16 lacks ") for problem in problems(lock))


def test_a_repeated_row_is_noticed(lock, problems):
    lock.cells["nightly"].append(Cell.from_id("eagle3"))
    assert problems(lock) == ("eagle3 is listed twice",)


def test_a_row_that_is_no_cell_is_noticed(lock, problems):
    lock.cells["pr"].append(Cell.from_id("none.tight"))
    assert problems(lock) == ("none.tight is redundant: a single request is never retracted",)


def test_an_optional_row_is_no_cell_of_the_matrix(lock, problems):
    lock.cells["pr"].append(Cell.from_id("none.rules"))
    (problem,) = problems(lock)
    assert problem.startswith("none.rules is optional: cells with sampling=rules test logit rules per request")


@pytest.mark.parametrize(
    ("text", "note", "sentence"),
    [
        (
            "none.s2.pair",
            "refused by tree-too-wide",
            "none.s2.pair is refused by nothing-to-draft, but its note says 'refused by tree-too-wide'",
        ),
        ("none.s2.pair", "", "none.s2.pair is refused by nothing-to-draft, but its note says 'nothing'"),
        ("none.v1.p64", "refused by tree-too-wide", "none.v1.p64 runs, but its note says 'refused by tree-too-wide'"),
    ],
)
def test_a_false_note_is_noticed(lock, problems, text, note, sentence):
    lock.cells["pr"].append(Cell.from_id(text))
    lock.notes |= {Cell.from_id(text): note} if note else {}
    assert problems(lock) == (sentence,)


@pytest.fixture
def values_only(monkeypatch):
    """Extends without pairs and triples, which take minutes, and with one sweep; `test_generate` tests their cover."""
    monkeypatch.setattr(lock_module, "STRENGTHS", dict.fromkeys(lock_module.STRENGTHS, 1))
    monkeypatch.setattr(lock_module, "SWEEPS", lock_module.SWEEPS | {"nightly": ()})


@pytest.mark.nightly
def test_a_complete_lock_is_extended_by_nothing(tmp_path, monkeypatch):
    """No cover is searched."""
    monkeypatch.delitem(sys.modules, "covertable.main", raising=False)
    path = tmp_path / "cells.lock"
    path.write_text(LOCK_FILE.read_text())
    assert extend(path) == (0, 0)
    assert path.read_text() == LOCK_FILE.read_text()
    assert "covertable.main" not in sys.modules


@pytest.mark.nightly
def test_extending_keeps_every_valid_row_in_place_and_appends(lock, tmp_path, values_only):
    path = tmp_path / "cells.lock"
    gone = [cell for cell in lock.upto("nightly") if cell.tp == "8" or cell.finish == "stop_string"]
    kept = {stage: [cell for cell in cells if cell not in gone] for stage, cells in lock.cells.items()}
    lock.cells = {stage: [*cells[:3], Cell.from_id("none.tight"), *cells[3:]] for stage, cells in kept.items()}
    write(lock, path)
    dropped, added = extend(path)
    fresh = read(path)
    assert dropped == 3 and 0 < added < len(gone)
    assert {cell.tp for cell in fresh.cells["smoke"][len(kept["smoke"]) :]} == {"1", "8"}
    for stage, cells in kept.items():
        assert fresh.cells[stage][: len(cells)] == cells
    assert check(path).ok


def test_extending_renews_the_note_of_a_cell_that_runs_now(lock, tmp_path, values_only):
    path = tmp_path / "cells.lock"
    cell = Cell.from_id("none.v1.p64")
    lock.cells["pr"].append(cell)
    lock.notes[cell] = "refused by tree-too-wide"
    write(lock, path)
    extend(path)
    assert cell not in read(path).notes
    assert check(path).ok


@pytest.mark.nightly
def test_extending_an_absent_file_starts_one(tmp_path, values_only):
    path = tmp_path / "cells.lock"
    dropped, added = extend(path)
    assert dropped == 0 and added == len(read(path).upto("nightly"))
    assert check(path).ok
