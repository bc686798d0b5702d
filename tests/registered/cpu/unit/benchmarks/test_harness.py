"""Timings of whole processes: one that fails or gives a wrong answer yields no figure."""

import sys

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


def test_without_pytest_or_a_checkout_nothing_is_measured(monkeypatch, tmp_path):
    monkeypatch.setattr(harness, "BASELINE", tmp_path / "none.jsonl.gz")
    monkeypatch.setattr(harness, "MATRIX", tmp_path / "test_matrix.py")
    found = [harness.collection(), *harness.comparisons()]
    assert all(metric.state == "not measured" and "checkout" in metric.note for metric in found)
    monkeypatch.setattr(harness, "find_spec", lambda name: None)
    assert "`pytest`" in harness.collection().note
