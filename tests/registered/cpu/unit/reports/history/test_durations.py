"""Durations of cells: the median of the newest runs of a tier in which they were judged."""

import pytest

from specmatrix.reports.history.durations import NEWEST, median_seconds
from specmatrix.reports.history.store import add, read
from specmatrix.reports.schema import GateResult, ReportError


@pytest.fixture
def history(tmp_path, write_report, make_cell):
    """Runs of one cell with these seconds, in order; a negative number is a run that was not judged."""

    def make(*seconds: float, tier: str = "cpu"):
        for number, taken in enumerate(seconds):
            error = None if taken > 0 else "lost"
            gates = (GateResult("ledger", "PASS"),) if taken > 0 else ()
            cell = make_cell("a", seconds=abs(taken), error=error, gates=gates, state="PASS" if taken > 0 else "INFRA")
            created = f"2026-09-{number + 1:02}T00:00:00+00:00"
            add(write_report(tmp_path / f"run{number}", [cell], created=created, tier=tier), tmp_path / "history")
        return read(tmp_path / "history")

    return make


def test_the_median_of_the_newest_runs(history):
    found = history(*[100.0] * NEWEST, *map(float, range(1, NEWEST + 1)))
    assert median_seconds(found, "cpu") == {"a": (NEWEST + 1) / 2}


def test_a_run_without_a_verdict_does_not_count(history):
    assert median_seconds(history(2.0, -50.0, 4.0), "cpu") == {"a": 3.0}
    assert median_seconds(history(-1.0, -2.0, -3.0, tier="gpu1"), "gpu1") == {}


def test_another_tiers_runs_are_no_runs(history):
    with pytest.raises(ReportError, match=r"history has no run of tier gpu2$"):
        median_seconds(history(1.0), "gpu2")
