"""Timings of whole processes: one that fails or gives a wrong answer yields no figure."""

import subprocess
import sys

import pytest

from specmatrix.benchmarks import harness


def test_a_process_that_fails_is_run_once_and_named_by_its_last_line(tmp_path):
    file = tmp_path / "runs"
    script = f"open({str(file)!r}, 'a').write('x'); raise SystemExit('broken: 7')"
    done, times = harness.repeated([sys.executable, "-c", script])
    assert (len(times), harness.last_line(done.stderr), file.read_text()) == (1, "broken: 7", "x")
    assert len(harness.repeated([sys.executable, "-c", ""])[1]) == harness.RUNS


def test_a_comparison_is_timed_only_if_it_compared_every_cell(monkeypatch):
    monkeypatch.setattr(harness, "RUNS", 1)
    found = list(harness.comparisons(600))
    assert [metric.note for metric in found] == [f"600 cells each, {case}" for case in harness.CASES]
    assert all(metric.median > 0 for metric in found)
    monkeypatch.setattr(harness, "COMPARE", "print(599)")
    assert {metric.state for metric in harness.comparisons(600)} == {"red"}


@pytest.mark.parametrize(("cells", "state"), [(98_800, "met"), (100_000, "met"), (94_999, "red"), (100_001, "red")])
def test_a_collection_is_judged_by_what_the_stage_has(monkeypatch, cells, state):
    done = subprocess.CompletedProcess((), 0, f"{cells} tests collected in 3.00s", "")
    monkeypatch.setattr(harness, "repeated", lambda _: (done, [3.0, 3.1, 3.2]))
    found = harness.collection()
    assert found.state == state and (state == "red" or found.note == f"{cells:,} cells")


def test_without_pytest_or_a_checkout_nothing_is_measured(monkeypatch, tmp_path):
    monkeypatch.setattr(harness, "BASELINE", tmp_path / "none.jsonl.gz")
    monkeypatch.setattr(harness, "MATRIX", tmp_path / "test_matrix.py")
    found = [harness.collection(), *harness.comparisons()]
    assert all(metric.state == "not measured" and "checkout" in metric.note for metric in found)
    monkeypatch.setattr(harness, "find_spec", lambda name: None)
    assert "`pytest`" in harness.collection().note
