import sys

import pytest

from specmatrix.matrix.cells.axes import AXES
from specmatrix.matrix.cells.cell import Cell
from specmatrix.matrix.cells.constraints import expect, explain
from specmatrix.matrix.cover import lock as lock_module
from specmatrix.matrix.cover.lock import LATE, PRESETS, SWEEPS, check, extend
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


def test_stages_keep_their_budgets_and_touch_every_value():
    own = {stage: len(cells) for stage, cells in read().cells.items()}
    assert own["smoke"] <= 35 and 55 <= own["pr"] <= 296 and 250 <= own["nightly"] <= 1402
    cells, every = stage_cells("pr"), {(axis.name, name) for axis in AXES for name in axis.names}
    # A flat file is always rewritten, so its cells are negative ones.
    smoke = {(axis.name, getattr(cell, axis.name)) for cell in stage_cells("smoke") for axis in AXES}
    assert smoke == every - {("adaptive", "flat"), *LATE}
    assert {expect(cell) for cell in cells} == {"runs", "rewritten", "refused"}
    assert len({cell.start_key for cell in cells}) <= len(cells) - 15, "one start serves several cells"


def test_a_report_reads_as_one_line_when_complete():
    report = check()
    text = report.text()
    assert text.startswith("cells.lock: complete; smoke ") and "\n" not in text
    # What a stage runs is what `run` counts; its own cells are what the lock file lists under it.
    smoke, pr, nightly = (len(stage_cells(stage)) for stage in ("smoke", "pr", "nightly"))
    own = f"pr {pr}, {report.cells['pr']} of its own; nightly {nightly}, {report.cells['nightly']} of its own; pairs "
    assert f"smoke {smoke}; {own}" in text


def test_other_tables_are_noticed(lock, problems):
    lock.tables = "0" * 12
    assert problems(lock)[0] == "axes or constraints changed since the lock was written; run `specmatrix lock --extend`"


def test_an_unreadable_id_is_noticed(lock, tmp_path):
    write(lock, tmp_path / "cells.lock")
    with (tmp_path / "cells.lock").open("a") as file:
        file.write("medusa.s3\n")
    assert "medusa.s3 is not a cell of the current axes" in check(tmp_path / "cells.lock").problems


@pytest.mark.parametrize("stage", STAGES)
def test_a_dropped_preset_or_one_of_a_later_stage_only_is_noticed(lock, problems, stage):
    text, note = next(iter(PRESETS[stage].items()))
    lock.cells[stage].remove(Cell.from_id(text))
    assert f"preset {text} of stage {stage} is missing ({note})" in problems(lock)
    if stage == "pr":
        lock.cells["nightly"].append(Cell.from_id(text))
        assert f"preset {text} of stage {stage} is missing ({note})" in problems(lock)


@pytest.mark.parametrize(
    ("dropped", "problem"),
    [
        (lambda cell, noted: not noted, " combinations of 2 values uncovered: "),
        (lambda cell, _: (cell.overlap, cell.spec_version) == ("off", "v2"), "has 0 of 1 cells that are refused by v2"),
        (lambda cell, _: cell.id == "eagle3.s3.k4.n8.v2.p16.burst.mixed.length", "eagle3.s3.k4.n8.v2.p16 lacks "),
    ],
)
def test_a_dropped_row_of_a_cover_a_constraint_or_a_sweep_is_noticed(lock, problems, dropped, problem):
    for stage in STAGES:
        lock.cells[stage] = [cell for cell in lock.cells[stage] if not dropped(cell, cell in lock.notes)]
    assert any(problem in found for found in problems(lock))


@pytest.mark.parametrize(
    ("stage", "text", "note", "problem"),
    [
        ("nightly", "eagle3", "", "eagle3 is listed twice"),
        ("pr", "none.tight", "", "none.tight is redundant: a single request is never retracted"),
        ("pr", "none.rules", "", "none.rules is optional: cells with sampling=rules test logit rules per request"),
        ("pr", "none.s2.pair", "wrong", "none.s2.pair is refused by nothing-to-draft, but its note says 'wrong'"),
        ("pr", "none.s2.pair", "", "none.s2.pair is refused by nothing-to-draft, but its note says 'nothing'"),
        ("pr", "none.v1.p64", "refused by x", "none.v1.p64 runs, but its note says 'refused by x'"),
    ],
)
def test_a_row_that_should_not_be_there_and_a_false_note_are_noticed(lock, problems, stage, text, note, problem):
    lock.cells[stage].append(Cell.from_id(text))
    lock.notes |= {Cell.from_id(text): note} if note else {}
    (found,) = problems(lock)
    assert found.startswith(problem)


@pytest.fixture
def values_only(monkeypatch):
    """Extends without pairs and triples, which take minutes, and without sweeps; `test_generate` tests their cover."""
    monkeypatch.setattr(lock_module, "STRENGTHS", dict.fromkeys(lock_module.STRENGTHS, 1))
    monkeypatch.setattr(lock_module, "SWEEPS", dict.fromkeys(STAGES, ()))


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
def test_a_complete_lock_is_extended_by_nothing(tmp_path, monkeypatch):
    """No cover is searched."""
    monkeypatch.delitem(sys.modules, "covertable.main", raising=False)
    path = tmp_path / "cells.lock"
    path.write_text(LOCK_FILE.read_text())
    assert extend(path) == (0, 0) and path.read_text() == LOCK_FILE.read_text()
    assert "covertable.main" not in sys.modules


@pytest.mark.nightly
def test_a_dropped_nightly_row_is_noticed_by_the_full_check_only(lock, problems):
    others = {Cell.from_id(text) for texts in PRESETS.values() for text in texts}
    swept = {Cell.from_id(text).start_key for text in SWEEPS["nightly"]}
    others |= {cell for cell in lock.cells["nightly"] if cell.start_key in swept or explain(cell)}
    rows = [cell for cell in lock.cells["nightly"] if cell not in others][-30:]
    lock.cells["nightly"] = [cell for cell in lock.cells["nightly"] if cell not in rows]
    assert problems(lock) == ()
    assert any("combinations of 3 values uncovered: " in problem for problem in problems(lock, full=True))
