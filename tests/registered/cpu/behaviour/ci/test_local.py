"""The local executor: every cell once, whatever happens to its worker."""

import signal
from collections.abc import Iterator
from multiprocessing import active_children

import pytest

from specmatrix.ci.local import ShardJob, run_plan, visible
from specmatrix.ci.planner import Host, plan
from specmatrix.matrix.cells.cell import Cell
from specmatrix.reports.schema import CellResult

pytestmark = pytest.mark.register(est_seconds=25, stage="pr")

JOB = ShardJob(seed=4, tier="cpu", stage="smoke")
CELLS = [Cell.from_id(text) for text in ("none.length", "none.pair.length", "none.p4.length", "eagle3.k4")]


def started(workers: int, job: ShardJob = JOB) -> Iterator[CellResult]:
    return run_plan(plan(CELLS, {}, [Host("here", workers=workers)]), job)


def test_every_cell_comes_back_once():
    seen: list[list[str]] = []
    records = list(run_plan(plan(CELLS, {}, [Host("here", workers=2)]), JOB, seen.append))
    assert seen[0] == ["starting", "starting"]
    assert {at for workers in seen for at in workers} == {"starting", *(cell.id for cell in CELLS)}
    # A cell is seen of before its record comes.
    assert records[-1].id in seen[-1]
    assert sorted(record.id for record in records) == sorted(cell.id for cell in CELLS)
    assert {record.state for record in records} <= {"PASS", "FAIL", "NOT MEASURED"}
    assert all("--seed 4" in record.repro for record in records)
    assert not active_children()


def test_worker_that_dies_costs_one_cell():
    records = started(1)
    first = next(records)
    (worker,) = active_children()
    assert worker.pid is not None
    worker.kill()
    rest = list(records)
    lost = [record for record in rest if record.state == "INFRA"]
    assert sorted([first.id, *(record.id for record in rest)]) == sorted(cell.id for cell in CELLS)
    # Results that were on their way when it died still count.
    assert len(lost) <= 1
    assert all(
        record.error == f"the cell has no result: its worker died with exit code -{signal.SIGKILL:d}" for record in lost
    )


def test_cell_that_takes_too_long_is_lost():
    records = list(started(1, ShardJob(seed=0, tier="cpu", stage="pr", limit=0.05)))
    assert len(records) == len(CELLS)
    assert {(record.state, record.error) for record in records} == {
        ("INFRA", "the cell has no result: it took more than 0.05 s")
    }


def test_interrupt_ends_the_workers_and_goes_on_to_the_caller():
    records = started(1)
    next(records)
    with pytest.raises(KeyboardInterrupt):
        records.throw(KeyboardInterrupt)  # type: ignore[attr-defined]  # run_plan is a generator
    assert not active_children()


@pytest.mark.nightly
def test_leaving_early_ends_the_workers():
    records = started(2)
    next(records)
    records.close()  # type: ignore[attr-defined]  # run_plan is a generator
    assert not active_children()


@pytest.mark.parametrize(
    ("gpus", "inherited", "shown"),
    [((), None, ""), ((), "4,5", ""), ((0, 1), None, "0,1"), ((1,), "4,5", "5"), ((0,), "GPU-b", "GPU-b")],
)
def test_a_worker_sees_its_own_gpus_among_those_of_the_run(gpus, inherited, shown):
    assert visible(gpus, inherited) == shown
