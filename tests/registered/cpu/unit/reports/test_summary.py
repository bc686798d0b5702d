import json

import pytest

from specmatrix.reports.schema import GateResult, Waiver, WaiverRule, is_red
from specmatrix.reports.store import load
from specmatrix.reports.summary import summarise, write_summary

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
    path = write_summary(summarise(report), tmp_path)
    assert path == tmp_path / "summary.json"
    assert json.loads(path.read_text()) == {
        "schema": 4, "cells": 10, "pass": 2, "fail": 2, "not_measured": 1, "infra": 1, "unsupported": 2,
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
