"""Timings of whole processes: a process that fails or gives a wrong answer yields no figure."""

import pytest

from specmatrix.benchmarks import harness


@pytest.mark.nightly
def test_enumeration_is_timed_only_if_it_did_its_work(monkeypatch):
    monkeypatch.setattr(harness, "RUNS", 2)
    metric = harness.enumeration()
    assert metric.ratio is not None and metric.pairs == 2 and not metric.red
    monkeypatch.setattr(harness, "ENUMERATE", "print([100000, 9, 8, 0])")
    assert harness.enumeration().state == "red", "two cells with one name"
    monkeypatch.setattr(harness, "ENUMERATE", "print([100000, 9, 9, 1])")
    assert harness.enumeration().state == "red", "torch was imported"


def test_a_process_that_fails_is_run_once_and_named_by_its_last_line(monkeypatch, tmp_path):
    file = tmp_path / "runs"
    script = f"open({str(file)!r}, 'a').write('x'); raise SystemExit('broken: 7')"
    monkeypatch.setattr(harness, "ENUMERATE", script)
    metric = harness.enumeration()
    assert (metric.state, metric.note, metric.ratio) == ("not measured", "broken: 7", None)
    assert file.read_text() == "x"


def test_an_incomplete_lock_file_is_red(monkeypatch):
    monkeypatch.setattr(harness, "CHECK", "print('pairs 3/4'); raise SystemExit(1)")
    metric = harness.lock_check()
    assert (metric.state, metric.note) == ("red", "pairs 3/4")


def test_resolution_is_timed_only_if_some_starts_ran_and_some_were_refused(monkeypatch):
    monkeypatch.setattr(harness, "RESOLVE", harness.RESOLVE.replace(str(harness.CELLS), "300"))
    metric = harness.resolution()
    assert metric.ratio is not None and 0 < metric.ratio < 1 and metric.pairs == harness.SLOW_RUNS
    monkeypatch.setattr(harness, "RESOLVE", "print([0, 0.1, 0])")
    assert harness.resolution().state == "red", "nothing ran"
    monkeypatch.setattr(harness, "RESOLVE", "print([9, 0.1, 1])")
    assert harness.resolution().state == "red", "torch was imported"
    monkeypatch.setattr(harness, "RESOLVE", "raise SystemExit('broken: 7')")
    assert (harness.resolution().state, harness.resolution().note) == ("not measured", "broken: 7")


def test_lossless_cells_are_counted_against_the_whole_session_and_only_if_all_pass():
    calm = harness.PytestRun(1200, False, 60.0, "1200 passed")
    metric = harness.cells_per_minute([calm, calm._replace(seconds=48.0)])
    assert (metric.ratio, metric.low, metric.high, metric.state) == (1350.0, 1200.0, 1500.0, "met")
    assert metric.note == "1200 cells with all their gates in 48.0 s, including startup"
    for bad in (calm._replace(failed=True, last="1 failed"), calm._replace(passed=999, last="999 passed")):
        metric = harness.cells_per_minute([calm, bad])
        assert (metric.state, metric.note) == ("red", bad.last)


def test_the_lossless_cells_are_many_and_long_enough():
    from specmatrix.matrix.cells.selection import select
    from specmatrix.matrix.workloads.build import workload

    cells = select("product", harness.LOSSLESS)
    assert len(cells) >= harness.LOSSLESS_LEAST
    assert len({cell.algorithm for cell in cells}) == 5
    requests = [request for cell in cells for request in workload(cell, 0)]
    assert all(request.ignore_eos and request.max_new_tokens >= 32 and not request.abort_after for request in requests)


def test_what_pytest_measures_needs_it_and_a_checkout(monkeypatch, tmp_path):
    monkeypatch.setattr(harness, "MATRIX", tmp_path / "test_matrix.py")
    notes = {metric().note for metric in (harness.collection, harness.lossless_rate)}
    assert notes == {f"{tmp_path / 'test_matrix.py'} is missing; run this in a checkout"}
    monkeypatch.setattr(harness, "find_spec", lambda name: None)
    metric = harness.collection()
    note = "pytest is not installed; install specmatrix with the extra `pytest`"
    assert (metric.state, metric.note) == ("not measured", note)
