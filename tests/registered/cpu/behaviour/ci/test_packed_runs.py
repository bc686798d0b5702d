"""Tiers that run at the same time on the GPUs of one host, which are logical here."""

import json
from itertools import combinations
from multiprocessing import active_children

import pytest

from specmatrix.ci import local
from specmatrix.ci.local import ShardJob, run_plans
from specmatrix.ci.packing import Demand, pack
from specmatrix.ci.planner import Host
from specmatrix.matrix.cells.cell import Cell
from specmatrix.matrix.run.tiers import VISIBLE
from tests.support import scripted_workers
from tests.support.scripted_workers import BESIDE, STARTS

pytestmark = pytest.mark.register(est_seconds=9, stage="pr")

CELLS = [Cell.from_id(text) for text in ("none.length", "none.p4.length", "none.p16.length", "none.p64.length")]


@pytest.fixture
def ran(monkeypatch, tmp_path):
    """(tier, record) of every cell; `cells` by the number of GPUs."""

    def run(work, cells, host):
        monkeypatch.setattr(local, "work", work)
        monkeypatch.setenv(STARTS, str(tmp_path))
        monkeypatch.setenv(VISIBLE, ",".join(map(str, range(host.gpus))))
        packed = pack([Demand(some, gpus) for gpus, some in cells.items()], [host])
        jobs = [ShardJob(0, f"gpu{gpus}", "pr") for gpus in cells]
        records = [
            (jobs[number].tier, record) for number, record in run_plans(list(zip(packed.plans, jobs, strict=True)))
        ]
        due = sorted((f"gpu{gpus}", cell.id) for gpus, some in cells.items() for cell in some)
        assert sorted((tier, record.id) for tier, record in records) == due
        assert not active_children()
        return records

    return run


def test_cells_of_several_sizes_share_the_gpus_and_none_has_two_cells(ran, tmp_path):
    small = [
        Cell(page_size=page, batch=batch) for page in ("1", "4", "16", "64") for batch in ("single", "pair", "ragged")
    ]
    cells = {1: small, 2: CELLS[:1]}
    records = ran(scripted_workers.occupies_gpus, cells, Host("here", gpus=4))
    assert {record.state for _, record in records} == {"PASS"}
    rows = [json.loads(path.read_text()) for path in tmp_path.iterdir()]
    assert len(rows) == BESIDE + 1 and {len(row["gpus"]) for row in rows} == {1, 2}
    for one, other in combinations(rows, 2):
        if set(one["gpus"]) & set(other["gpus"]):
            assert one["end"] <= other["begin"] or other["end"] <= one["begin"]
    (wide,) = (row for row in rows if row["tier"] == "gpu2")
    assert {row["gpus"][0] for row in rows if row is not wide} <= {2, 3}  # all ran beside the wide one


def test_gpus_go_to_the_next_tier_when_the_wider_one_has_no_more_cells(ran, tmp_path):
    records = ran(scripted_workers.passes, {2: CELLS[:2], 1: CELLS}, Host("here", gpus=2))
    assert [(tier, record.state) for tier, record in records] == [("gpu2", "PASS")] * 2 + [("gpu1", "PASS")] * 4


def test_a_worker_that_dies_costs_the_other_tier_nothing(ran):
    records = ran(scripted_workers.wide_ones_die, {1: CELLS, 2: CELLS[:2]}, Host("here", gpus=2))
    assert {record.error for tier, record in records if tier == "gpu2"} == {
        "the cell has no result: its worker died with exit code 4"
    }
    assert [(tier, record.state) for tier, record in records] == [("gpu2", "INFRA")] * 2 + [("gpu1", "PASS")] * 4


def test_a_tier_whose_workers_do_not_start_is_lost_and_the_other_one_runs(ran):
    records = ran(scripted_workers.wide_ones_do_not_start, {1: CELLS, 4: CELLS[:2]}, Host("here", gpus=4))
    lost = [record.error for tier, record in records if tier == "gpu4"]
    assert lost == ["the cell has no result: two workers in a row did not start; the second died with exit code 3"] * 2
    assert [record.state for tier, record in records if tier == "gpu1"] == ["PASS"] * 4


def test_cells_whose_workers_do_not_start_wait_for_gpus_that_another_tier_has(ran):
    records = ran(scripted_workers.gpu_2_does_not_start, {1: CELLS, 2: CELLS[:1]}, Host("here", gpus=3))
    assert {record.state for _, record in records} == {"PASS"}
