"""Tiers that run at the same time on the GPUs of one host, which are logical here."""

import json
import signal
from itertools import combinations
from multiprocessing import active_children

import pytest

from specmatrix.ci import cell_runs, local
from specmatrix.ci.commands import run
from specmatrix.ci.commands.run import chosen_cells
from specmatrix.ci.local import ShardJob, run_plans
from specmatrix.ci.packing import Demand, pack
from specmatrix.ci.planner import Host
from specmatrix.ci.run_options import RunOptions
from specmatrix.cli import main
from specmatrix.matrix.cells.cell import Cell
from specmatrix.matrix.cells.tiers import VISIBLE
from specmatrix.matrix.cells.tiers import tier as find_tier
from specmatrix.reports.store import PARTIAL_FILE, load
from specmatrix.stopping import Stopped
from tests.support import scripted_workers
from tests.support.scripted_workers import BESIDE, STARTS

CELLS = [Cell.from_id(text) for text in ("none.length", "none.p4.length", "none.p16.length", "none.p64.length")]


@pytest.fixture
def ran(monkeypatch, tmp_path):
    """(tier, record) of every cell; `cells` by the number of GPUs."""

    def outcome(work, cells, host):
        monkeypatch.setattr(local, "work", work)
        monkeypatch.setenv(STARTS, str(tmp_path))
        monkeypatch.setenv(VISIBLE, ",".join(map(str, range(host.gpus))))
        packed = pack([Demand(some, gpus) for gpus, some in cells.items()], [host])
        jobs = [ShardJob(RunOptions(tier=f"gpu{gpus}")) for gpus in cells]
        records = [
            (jobs[number].options.tier, record)
            for number, record in run_plans(list(zip(packed.plans, jobs, strict=True)))
        ]
        due = sorted((f"gpu{gpus}", cell.id) for gpus, some in cells.items() for cell in some)
        assert sorted((tier, record.id) for tier, record in records) == due
        assert not active_children()
        return records

    return outcome


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


@pytest.mark.nightly
def test_gpus_go_to_the_next_tier_when_the_wider_one_has_no_more_cells(ran, tmp_path):
    records = ran(scripted_workers.passes, {2: CELLS[:2], 1: CELLS}, Host("here", gpus=2))
    assert [(tier, record.state) for tier, record in records] == [("gpu2", "PASS")] * 2 + [("gpu1", "PASS")] * 4


@pytest.mark.nightly
def test_a_worker_that_dies_costs_the_other_tier_nothing(ran):
    records = ran(scripted_workers.wide_ones_die, {1: CELLS, 2: CELLS[:2]}, Host("here", gpus=2))
    assert {record.error for tier, record in records if tier == "gpu2"} == {
        "the cell has no result: its worker died with exit code 4"
    }
    assert [(tier, record.state) for tier, record in records] == [("gpu2", "INFRA")] * 2 + [("gpu1", "PASS")] * 4


@pytest.mark.nightly
def test_a_tier_whose_workers_do_not_start_is_lost_and_the_other_one_runs(ran):
    records = ran(scripted_workers.wide_ones_do_not_start, {1: CELLS, 4: CELLS[:2]}, Host("here", gpus=4))
    lost = [record.error for tier, record in records if tier == "gpu4"]
    assert lost == ["the cell has no result: two workers in a row did not start; the second died with exit code 3"] * 2
    assert [record.state for tier, record in records if tier == "gpu1"] == ["PASS"] * 4


def test_cells_whose_workers_do_not_start_wait_for_gpus_that_another_tier_has(ran):
    records = ran(scripted_workers.gpu_2_does_not_start, {1: CELLS, 2: CELLS[:1]}, Host("here", gpus=3))
    assert {record.state for _, record in records} == {"PASS"}


SELECTOR = "algorithm=eagle3 and page_size in (1, 4)"
RUN = ["run", "--tier", "gpu1,gpu2", "--stage", "pr", "--cells", SELECTOR, "--workers", "1"]


@pytest.fixture
def four_gpus(monkeypatch):
    """A machine with four GPUs, as far as `run` can tell."""
    for module in (cell_runs, run):
        monkeypatch.setattr(module, "visible_gpus", lambda tier: 4 if find_tier(tier).gpus else 0)
    monkeypatch.setenv(VISIBLE, "0,1,2,3")
    monkeypatch.setattr(local, "work", scripted_workers.fails_drafts)


def test_a_run_of_two_tiers_writes_a_report_of_each(four_gpus, tmp_path, capsys):
    assert main([*RUN, "--out", str(tmp_path)]) == 1
    said = capsys.readouterr().out
    for tier in ("gpu1", "gpu2"):
        report = load(tmp_path / tier)
        assert report.header.tier == tier and report.header.shard is None
        assert set(report.ids()) == {cell.id for cell in chosen_cells(tier, "pr", SELECTOR, None)}
        assert all(f"--tier {tier} " in cell.repro for cell in report)
        assert f"tier {tier}:\n" in said and f"report: {tmp_path}/{tier}/report.html" in said
        assert (tmp_path / tier / "summary.json").exists()
    assert not active_children()


@pytest.mark.nightly
def test_hosts_run_what_the_packed_plan_gives_them(four_gpus, tmp_path, capsys):
    hosts = tmp_path / "hosts.yaml"
    hosts.write_text("[{name: large, gpus: 4}, {name: small, gpus: 1}]\n")
    assert main(["plan", *RUN[1:-2], "--hosts", str(hosts), "--json"]) == 0
    planned = json.loads(capsys.readouterr().out)
    assert planned["bound"] <= planned["seconds"] <= 2 * planned["bound"]
    assert any(shard["begin"] for one in planned["plans"] for shard in one["shards"])
    for name in ("large", "small"):
        out = tmp_path / name
        assert main([*RUN, "--hosts", str(hosts), "--shard", name, "--out", str(out)]) == 1
        for one in planned["plans"]:
            lanes = [lane for lane in one["shards"] if lane["host"] == name]
            due = {cell for lane in lanes for group in lane["groups"] for cell in group["cells"]}
            assert (out / one["tier"]).exists() == bool(due)
            assert not due or set(load(out / one["tier"]).ids()) == due
    assert not (tmp_path / "small" / "gpu2").exists()
    capsys.readouterr()
    assert (
        main(["merge", str(tmp_path / "large/gpu1"), str(tmp_path / "small/gpu1"), "--out", str(tmp_path / "all")]) == 1
    )
    assert set(load(tmp_path / "all").ids()) == {cell.id for cell in chosen_cells("gpu1", "pr", SELECTOR, None)}


def test_the_first_red_cell_ends_both_tiers(four_gpus, tmp_path):
    assert main([*RUN, "--fail-fast", "--out", str(tmp_path)]) == 1
    reports = [load(tmp_path / tier) for tier in ("gpu1", "gpu2")]
    assert sum(len(report) for report in reports) == 1
    assert all(report.not_run for report in reports)


def test_a_run_of_two_tiers_that_is_stopped_names_both_partial_reports(four_gpus, monkeypatch, tmp_path, capsys):
    def stops(runs, cells):
        yield from ()
        raise Stopped(signal.SIGTERM)

    monkeypatch.setattr(run, "packed_runs", stops)
    assert main([*RUN, "--out", str(tmp_path)]) == 143
    one, two = (tmp_path / tier / PARTIAL_FILE for tier in ("gpu1", "gpu2"))
    assert f"partial results are in {one} and {two}, which are no reports\n" in capsys.readouterr().err


@pytest.mark.parametrize(
    "option", ["--limit 3", "--json", "--rerun-failed out", "--explain", "--decide", "--requests q1", "--junit j.xml",
               "--affected HEAD", "--on auto"],
)  # fmt: skip
def test_options_of_one_tier_are_refused(option, tmp_path, capsys):
    assert main([*RUN, "--out", str(tmp_path), *option.split()]) == 2
    assert capsys.readouterr().err == f"specmatrix: {option.split()[0]} takes one tier, got 'gpu1,gpu2'\n"


@pytest.mark.parametrize(
    ("tiers", "stage", "said"),
    [
        ("gpu1,gpu1", "pr", "tier 'gpu1' is given twice; give it once"),
        ("gpu1,gpu2", "speed", "--stage speed takes one tier, got 'gpu1,gpu2'"),
        ("gpu1,", "pr", "tier '' is unknown; it must be one of cpu, gpu1, gpu2, gpu4, gpu8"),
        ("cpu,gpu1", "pr", "tier 'gpu1' needs 1 GPU but this machine has none; use 'cpu'"),
    ],
)
def test_tiers_that_cannot_run_together_are_refused(tiers, stage, said, tmp_path, capsys):
    assert main(["run", "--tier", tiers, "--stage", stage, "--out", str(tmp_path)]) == 2
    assert capsys.readouterr().err == f"specmatrix: {said}\n"
