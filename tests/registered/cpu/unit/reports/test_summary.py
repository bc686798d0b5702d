import json

import pytest
from msgspec.structs import replace

from specmatrix.ci.run import merge
from specmatrix.reports import store, summary
from specmatrix.reports.render.run import run_markdown, run_page, view
from specmatrix.reports.schema import CheaperStage, GateResult, ShardRecord, Waiver, WaiverRule, is_red
from specmatrix.reports.store import load
from specmatrix.reports.summary import cost_of, holders, summarise

KNOWN = Waiver("drafts leak on abort", "2026-12-31")
EXPIRED = Waiver("known", "2026-08-31")
RULES = tuple(WaiverRule("topk=4", each.reason, each.expiry) for each in (KNOWN, EXPIRED))


def cells(make_cell):
    red_gate = (GateResult("ledger", "PASS"), GateResult("lossless", "NOT MEASURED"))
    return [
        make_cell("a", seconds=0.5),
        make_cell("b", state="FAIL", seconds=0.25),
        make_cell("c", state="FAIL", waived=KNOWN, seconds=0.25),
        make_cell("d", state="FAIL", waived=EXPIRED, seconds=0),
        make_cell("e", state="NOT MEASURED", gates=red_gate, seconds=0),
        make_cell("f", state="INFRA", gates=(), seconds=0),
        make_cell("g", waived=KNOWN, seconds=0),
        make_cell("h", state="NOT MEASURED", gates=(), waived=KNOWN, seconds=0),
        make_cell("i", state="UNSUPPORTED", gates=(), seconds=0),
        make_cell("j", state="UNSUPPORTED", gates=(), waived=KNOWN, seconds=0),
    ]


def test_counts_are_stable_and_complete(tmp_path, make_cell, write_report):
    report = load(write_report(tmp_path, cells(make_cell), waivers=RULES))
    path = summary.write_summary(summarise(report), tmp_path)
    assert path == tmp_path / "summary.json"
    assert json.loads(path.read_text()) == {
        "schema": 5, "cells": 10, "pass": 2, "fail": 2, "not_measured": 1, "infra": 1, "unsupported": 2,
        "waived": 2, "red": 4, "not_run": 0,
        "seconds": 1.0, "tier": "cpu", "stage": "pr", "subject": "reference",
        "by_gate": {"ledger": {"PASS": 6}, "lossless": {"PASS": 2, "FAIL": 3, "NOT MEASURED": 1}},
        "counters": {
            "state": "NOT JUDGED", "message": "counter coverage is checked in nightly runs only",
            "unhit": [], "broken": [],
        },
        "cost": {"core_seconds": 1.0, "gpu_seconds": 0.0, "engine_starts": 0, "cheaper": None},
    }  # fmt: skip


def test_everything_but_green_unsupported_and_waived_is_red(make_cell):
    assert [cell.id for cell in cells(make_cell) if is_red(cell, "2026-09-01")] == ["b", "d", "e", "f"]


LESS = CheaperStage("smoke", 25, 18.5, 184, 59)


@pytest.fixture
def report(tmp_path, make_cell, write_report):
    """A cell of one rank and one of two."""

    def make(**header: object):
        cells = [
            make_cell("one", seconds=2.0, engine_starts=2),
            make_cell("two", seconds=3.0, axes={"algorithm": "eagle3", "tp": "2"}, engine_starts=1),
        ]
        return load(write_report(tmp_path / "run", cells, **header))

    return make


def test_a_cell_holds_a_core_for_each_rank(report):
    cost = cost_of(report())
    assert (cost.core_seconds, cost.gpu_seconds, cost.engine_starts) == (8.0, 0.0, 3)
    assert cost.message == "cost: 8.00 s of core time, 3 engine starts" and cost.saving == ""


def test_gpus_are_held_for_the_whole_run_however_many_workers_share_them(report, monkeypatch):
    times = iter([100.0, 130.0])
    monkeypatch.setattr(store, "monotonic", lambda: next(times))
    cost = cost_of(report(tier="gpu2", host={"gpus": ["H100", "H100"]}))
    assert (cost.core_seconds, cost.gpu_seconds) == (8.0, 60.0)
    assert cost.message == "cost: 8.00 s of core time, 1 min 0 s of GPU time, 3 engine starts"


def test_merged_shards_held_their_gpus_one_by_one(report, tmp_path, make_cell, write_report, capsys):
    def shard(number: int, gpu_seconds: float | None):
        header = report(tier="gpu1", host={"gpus": ["H100"]}, shard=ShardRecord(number, 2, 2, "0" * 12)).header
        with store.ReportWriter(tmp_path / f"shard{number}", header) as writer:
            writer.write(make_cell(f"cell{number}"))
            writer.gpu_seconds = gpu_seconds
        return tmp_path / f"shard{number}"

    for second, whole in ((30.5, 50.5), (None, 0.0)):
        merge([shard(1, 20.0), shard(2, second)], tmp_path / "whole", json_=False)
        assert cost_of(load(tmp_path / "whole")).gpu_seconds == whole


def test_every_output_says_what_the_cheaper_stage_would_miss(report):
    found = report(cheaper=LESS)
    text = (
        "stage smoke (25 cells, about 18 s of core time) has no cell that is known to find 125 of the 184 faults that "
        "cells of this stage find"
    )
    assert cost_of(found).saving == text
    assert summarise(found).to_json()["cost"]["cheaper"] == {
        "stage": "smoke", "cells": 25, "seconds": 18.5, "faults": 184, "found": 59,
    }  # fmt: skip
    assert text in run_markdown(view(found)) and text[1:] in run_page(view(found))
    every = report(cheaper=replace(LESS, found=184))
    text = "stage smoke (25 cells, about 18 s of core time) is known to find all of the 184 faults that cells of this"
    assert cost_of(every).saving == f"{text} stage find"


def test_a_rank_count_that_is_no_number_counts_once(tmp_path, make_cell, write_report):
    cells = [make_cell(name, seconds=1.0, axes={"tp": name}) for name in ("x", "0", "9" * 30)]
    assert cost_of(load(write_report(tmp_path, cells))).core_seconds == 3.0


def test_engine_starts_make_no_difference_between_two_runs(tmp_path, make_cell, write_report):
    base, head = (
        load(write_report(tmp_path / str(starts), [make_cell("a", seconds=1.0, engine_starts=starts)]))
        for starts in (0, 2)
    )
    assert base.same(head) == ["a"]


def test_holders_number_the_cells_from_the_lowest_bit():
    assert holders([{"a": "1"}, {"a": "2"}, {"a": "1", "b": "x"}]) == {("a", "1"): 5, ("a", "2"): 2, ("b", "x"): 4}
