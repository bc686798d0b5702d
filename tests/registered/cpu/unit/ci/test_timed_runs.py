"""Runs of the stage `speed`: their time limits, commands, and the subjects that cannot be compared."""

from types import SimpleNamespace

import pytest

from specmatrix.ci import cell_runs as module
from specmatrix.ci.cell_runs import cell_runs
from specmatrix.ci.local import LIMIT_SECONDS, job_runner
from specmatrix.ci.run import timed_workers
from specmatrix.ci.run_options import RunOptions
from specmatrix.errors import ConfigError
from specmatrix.matrix.cells.cell import Cell
from specmatrix.matrix.run.provenance import lost
from specmatrix.matrix.workloads.prepared_cell import prepare

CELL = Cell.from_id("eagle3.s3.v1")


def test_a_subject_without_a_baseline_has_no_speed(monkeypatch):
    found = SimpleNamespace(profile=SimpleNamespace(has_baseline=False, start_seconds=1.0, answer_seconds=1.0))
    monkeypatch.setattr(module, "foreign_subject", lambda subject, endpoint: found)
    with pytest.raises(ConfigError) as error, cell_runs(RunOptions(stage="speed", subject="openai"), 1):
        pass
    assert str(error.value) == (
        "stage 'speed' compares with the same engine without drafts, and subject 'openai' has none; give --baseline-url"
    )
    with cell_runs(RunOptions(subject="openai"), 1) as runs:
        assert runs.job.options.subject == "openai"


def test_more_starts_have_more_time():
    limits = {}
    for stage, starts in (("pr", None), ("speed", None), ("speed", 20)):
        with cell_runs(RunOptions(stage=stage, starts=starts), 1) as runs:
            limits[stage, starts] = runs.job.limit
    assert list(limits.values()) == [LIMIT_SECONDS, 9 * LIMIT_SECONDS, 21 * LIMIT_SECONDS]


@pytest.mark.parametrize(
    ("stage", "starts", "options"),
    [("pr", None, ""), ("speed", None, " --stage speed"), ("speed", 9, " --stage speed --starts 9")],
)
def test_the_command_of_a_record_times_the_cell_again(monkeypatch, stage, starts, options):
    monkeypatch.setattr(module, "run_plan", lambda work, job, show: [lost(prepare(CELL), "none")])
    with cell_runs(RunOptions(stage=stage, starts=starts), 1) as runs:
        (record,) = runs([CELL])
    assert record.repro == f"specmatrix run --cells 'eagle3.s3.v1'{options} --seed 0 --out \"$(mktemp -d)\""


def test_a_workers_runner_times_cells_in_that_stage_only():
    for stage, timed in (("speed", True), ("pr", False)):
        with cell_runs(RunOptions(stage=stage, starts=9 if timed else None), 1) as runs:
            runner = job_runner(runs.job)
        assert (runner.timed, runner.starts) == (timed, 9 if timed else None)


def test_cells_on_a_running_server_run_one_at_a_time_unless_a_number_is_given():
    url = "http://127.0.0.1:1"
    assert timed_workers(RunOptions(subject="sglang", url=url)) == 1
    assert timed_workers(RunOptions(subject="sglang", url=url, workers=3)) == 3
    assert timed_workers(RunOptions(subject="sglang", launch="serve {flags}")) is timed_workers(RunOptions()) is None
