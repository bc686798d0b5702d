"""The harness's share of a cell's time: everything outside the subject, over passing cells only."""

import time

import pytest

from specmatrix.benchmarks import cell_overhead
from specmatrix.benchmarks.cell_overhead import GOAL, NAME, TimedSubject, share
from specmatrix.matrix.cells.cell import asked
from specmatrix.matrix.cover.lockfile import stage_cells
from specmatrix.matrix.gates.registry import GATES
from specmatrix.matrix.subjects.protocol import RequestSpec


def cells(count):
    return [cell for cell in stage_cells("smoke") if cell.ranks == 1 and cell.session == "none"][:count]


def burn(seconds):
    end = time.process_time() + seconds
    while time.process_time() < end:
        pass


def test_the_clock_runs_in_the_subject_only():
    subject = TimedSubject()
    (cell,) = cells(1)
    engine = subject.start_engine(asked(cell))
    started = subject.clock.seconds
    assert started > 0
    burn(0.01)
    engine.readback(), engine.counters(), engine.journal()
    assert subject.clock.seconds == started
    engine.generate([RequestSpec("a", "1 + 1 =", 4)])
    assert subject.clock.seconds > started


@pytest.mark.nightly
def test_windows_cover_all_cells_and_give_a_share():
    metric = share(cells(2), windows=2)
    assert (metric.name, metric.goal, metric.better, metric.pairs) == (NAME, GOAL, "lower", 2)
    assert 0 < metric.low <= metric.ratio <= metric.high < 1
    assert metric.note.startswith("2 cells")


@pytest.mark.nightly
def test_a_slow_gate_is_the_harness_s_and_a_red_cell_has_no_share(monkeypatch):
    chosen = cells(1)
    calm = share(chosen, 1)
    gate = next(gate for gate in GATES if gate.applies(chosen[0]))
    judge = type(gate).judge

    def slow(self, cell, run, baseline):
        burn(0.5)
        return judge(self, cell, run, baseline)

    monkeypatch.setattr(type(gate), "judge", slow)
    assert share(chosen, 1).ratio > calm.ratio + 0.2

    def crash(self, cell, run, baseline):
        raise RuntimeError("broken gate")

    monkeypatch.setattr(type(gate), "judge", crash)
    metric = share(chosen, 1)
    assert (metric.state, metric.note) == ("red", f"1 of 1 cells are red, first {chosen[0].id}")


def test_the_measured_cells_are_of_every_algorithm():
    chosen = cell_overhead.chosen()
    assert {cell.algorithm for cell in chosen} == {cell.algorithm for cell in stage_cells("pr")}
    assert all(cell.ranks == 1 for cell in chosen) and len(chosen) > 100
