import json
import random
from itertools import combinations
from types import SimpleNamespace

import numpy as np
import pytest
from msgspec.structs import replace
from scipy.stats import kstest

from specmatrix.ci.run import merge
from specmatrix.matrix.cover.selection import select
from specmatrix.matrix.gates.gate import FALSE_ALARMS
from specmatrix.matrix.gates.registry import GATES
from specmatrix.reports import store, summary
from specmatrix.reports.render.run import run_markdown, run_page, view
from specmatrix.reports.schema import CheaperStage, GateResult, ShardRecord, Waiver, WaiverRule, is_red
from specmatrix.reports.stats import ks_uniform, mcnemar, randomised_pit, ratio_change
from specmatrix.reports.store import load
from specmatrix.reports.summary import Coverage, cost_of, covered, false_alarms, holders, smallest_effect, summarise

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
        "coverage": {"requested_pairs": 6, "requested_triples": 4, "passing_pairs": 6, "passing_triples": 4},
        "cost": {"core_seconds": 1.0, "gpu_seconds": 0.0, "engine_starts": 0, "cheaper": None},
        "false_alarms": {"tests": 0, "at_most": 0.0},
        "smallest_effects": {"lossless": pytest.approx(0.011634, rel=1e-3)},
    }  # fmt: skip


@pytest.mark.parametrize(("tokens", "seen"), [(257, ["one wrong token in 86 (lossless)"]), (20, [])])
def test_a_sentence_says_what_a_typical_cell_would_have_shown(tokens, seen, tmp_path, write_report, make_cell):
    gates = (GateResult("lossless", "PASS", {"tokens": tokens}), GateResult("config", "PASS", {"fields": 9}))
    assert summarise(load(write_report(tmp_path, [make_cell("a", gates=gates)]))).seen == seen


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


def effect(name, numbers, thresholds=None, interval=None):
    return smallest_effect(GateResult(name, "PASS", numbers, interval), thresholds or {})


@pytest.mark.parametrize(
    ("gate", "numbers", "number"),
    [
        ("lossless", {"tokens": 537, "divergent": 0}, 537),
        ("lossless", {"tokens": 900, "proving": 537}, 537),
        ("finish", {"requests": 1, "faults": 0}, 1),
        ("acceptance", {"rounds": [16.0, 16.0], "left": 0}, 32),
        ("acceptance", {"rounds": 32, "left": 0}, 32),
        ("schedule", {"steps": 53}, 53),
    ],
)
def test_a_defect_that_strikes_at_random(gate, numbers, number):
    found = effect(gate, numbers)
    draw = np.random.default_rng(1)
    assert (draw.binomial(number, found, 2000) > 0).mean() == pytest.approx(0.95, abs=0.02)


def test_what_is_no_sample_and_what_fails_have_no_effect():
    assert effect("config", {"fields": 22}) is None
    assert effect("lossless", {"tokens": 0}) is effect("acceptance", {"length": 3.0}) is None
    assert effect("accuracy", {"baseline": 0.1, "won": 0, "n": 48}, {"alpha": 2e-4}) is None, "5 losses are no evidence"
    assert smallest_effect(GateResult("lossless", "FAIL", {"tokens": 90}, None, "wrong"), {}) is None


def test_a_shift_of_the_distribution_is_seen_as_often_as_promised():
    draws = 200
    found = effect("distribution", {"draws": draws, "outside": 0}, {"alpha": 1e-4})
    draw = np.random.default_rng(2)
    shifted = 0.5 + found
    seen = known = 0
    for _ in range(120):
        second = (draw.random(draws) > shifted).astype(float)
        places = randomised_pit(second / 2, np.full(draws, 0.5), draw.random(draws))
        seen += ks_uniform(places).p < 1e-4
        known += kstest(places, "uniform").pvalue < 1e-4
    assert seen == known
    assert 0.75 <= seen / 120 <= 0.97


def test_a_loss_beyond_the_band_is_seen_as_often_as_promised():
    """60 prompts with 6 % of noise each; the gate allows intervals that end at 0.97 or above."""
    draw = np.random.default_rng(3)
    emitted = np.full(60, 90.0)
    base = emitted / 3.0

    def interval(loss):
        change = ratio_change((emitted, base), (emitted, base / (1 - loss) * draw.normal(1, 0.06, 60)), 300)
        return 1 + change.interval[0], 1 + change.interval[1]

    found = effect("acceptance", {"length": 3.0}, {"low": 0.97}, interval(0.0))
    seen = [interval(found)[0] < 0.97 for _ in range(200)]
    assert sum(seen) / 200 == pytest.approx(0.8, abs=0.12)


def test_a_drop_of_accuracy_is_seen_as_often_as_promised():
    found = effect("accuracy", {"baseline": 0.75, "won": 1, "lost": 1, "n": 48}, {"alpha": 2e-4})
    assert found == pytest.approx(0.35, abs=0.005)
    draw = np.random.default_rng(4)
    lost = draw.binomial(36, (found * 48 + 1) / 36, 2000)
    assert np.mean([mcnemar(int(one), 1) < 2e-4 for one in lost]) == pytest.approx(0.8, abs=0.05)


@pytest.mark.parametrize("stage", list(FALSE_ALARMS))
def test_the_locked_cells_keep_to_the_budget_of_false_alarms(stage):
    """Whatever else a gate measures is exact on an engine without a defect."""
    header = SimpleNamespace(thresholds={gate.name: dict(gate.thresholds) for gate in GATES})
    cells = select(stage)
    judged = {gate.name: sum(gate.applies(cell) for cell in cells) for gate in GATES}
    found = false_alarms(judged, header)
    assert found.tests > 0 and 0 < found.at_most <= FALSE_ALARMS[stage]
    damaged = {gate: {name: [0.1] for name in own} for gate, own in header.thresholds.items()}
    assert false_alarms(judged, SimpleNamespace(thresholds=damaged)) == summary.FalseAlarms(found.tests, 0)


def test_holders_number_the_cells_from_the_lowest_bit():
    assert holders([{"a": "1"}, {"a": "2"}, {"a": "1", "b": "x"}]) == {("a", "1"): 5, ("a", "2"): 2, ("b", "x"): 4}


def by_hand(rows, size):
    return len({subset for row in rows for subset in combinations(sorted(row.items()), size)})


@pytest.mark.parametrize("count", [1, 9, 60])
def test_pairs_and_triples_are_those_of_a_count_by_cell(tmp_path, make_cell, write_report, count):
    draw = random.Random(count)
    axes = {"algorithm": ("none", "eagle3"), "topk": "1248", "batch": ("single", "pair"), "abort": ("none", "queued")}
    asked = [{axis: draw.choice(values) for axis, values in axes.items()} for _ in range(count)]
    ran = [{"algorithm": row["algorithm"].upper(), "topk": min(2, int(row["topk"]))} for row in asked]
    cells = [make_cell(f"c{i}", axes=row, resolved=got) for i, (row, got) in enumerate(zip(asked, ran, strict=True))]
    effective = [row | {"topk": str(got["topk"])} for row, got in zip(asked, ran, strict=True)]
    found = covered(load(write_report(tmp_path, cells)))
    assert (found.requested_pairs, found.requested_triples) == (by_hand(asked, 2), by_hand(asked, 3))
    assert (found.passing_pairs, found.passing_triples) == (by_hand(effective, 2), by_hand(effective, 3))


def test_only_green_cells_that_ran_prove_a_combination(tmp_path, make_cell, write_report):
    axes = [{"topk": str(k), "batch": "single", "abort": "none"} for k in range(4)]
    cells = [
        make_cell("green", axes=axes[0], resolved={"topk": 0}),
        make_cell("red", axes=axes[1], resolved={"topk": 1}, state="FAIL"),
        make_cell("refused", axes=axes[2], resolved=None, expect="refused", gates=(GateResult("config", "PASS"),)),
        make_cell("unmeasured", axes=axes[3], resolved={"topk": 3}, state="NOT MEASURED"),
    ]
    found = covered(load(write_report(tmp_path, cells)))
    # (batch, abort) once; (topk, batch) and (topk, abort) for each asked topk, and for the one that ran green.
    assert found == Coverage(requested_pairs=9, requested_triples=4, passing_pairs=3, passing_triples=1)
    assert found.message == "requested coverage: 9 pairs, 4 triples; covered by passing cells: 3 and 1"
