"""The states of cells, one by one, through compare() on reports on disk."""

import json

import pytest
from msgspec.structs import replace

from specmatrix.reports.compare import Acknowledgement, ChangeState, compare, comparison_json
from specmatrix.reports.compare.compare import comparison_record
from specmatrix.reports.schema import GateResult, ReasonRecord, ReportError, RewriteRecord, Waiver, WaiverRule
from specmatrix.reports.store import load

ACCEPTED = "the fallback is wanted until the tree gates are green"


def only(comparison):
    assert len(comparison.changes) == 1
    return comparison.changes[0]


def test_identical_reports_are_the_same(against, make_cell):
    comparison = against([make_cell("a", seconds=1)], [make_cell("a", seconds=2)])
    assert comparison_json(comparison) == {
        "schema": 2, "verdict": "green", "reasons": [],
        "states": {"REGRESSED": 0, "IMPROVED": 0, "SAME": 1, "UNKNOWN": 0, "NOT COMPARABLE": 0, "NEW": 0, "LOST": 0,
            "REWRITTEN": 0, "INFRA": 0,
        },
    }  # fmt: skip
    assert comparison.changes == ()


@pytest.mark.parametrize("sides", [([], ["a"]), (["a"], []), ([], [])])
def test_a_report_without_cells_is_not_compared(against, make_cell, sides):
    base, head = ([make_cell(name) for name in names] for names in sides)
    empty = "head" if base else "base"
    with pytest.raises(ReportError, match=f"/{empty}/report.jsonl has no cells, so nothing was compared$"):
        against(base, head)


@pytest.mark.parametrize(("base", "head"), [("UNSUPPORTED", "PASS"), ("INFRA", "PASS"), ("UNSUPPORTED", "UNSUPPORTED")])
def test_reports_without_a_verdict_in_both_are_not_compared(against, make_cell, base, head):
    sentence = "no cell has a verdict in both .*/base/report.jsonl and .*/head/report.jsonl, so nothing was compared$"
    with pytest.raises(ReportError, match=sentence):
        against([make_cell("a", state=base)], [make_cell("a", state=head)])


def test_other_cells_only_are_lost_and_not_green(against, make_cell):
    assert against([make_cell("a")], [make_cell("b")]).reasons == ("1 cell lost without an acknowledgement",)
    accepted = Acknowledgement("lost", "a", "was removed", "2026-12-31")
    with pytest.raises(ReportError, match="no cell has a verdict in both"):
        against([make_cell("a")], [make_cell("b")], [accepted])


@pytest.mark.parametrize("commit", ["", " ", "unknown", "Unknown", "None", "dirty", "main", "0" * 40, "v0", "ABCDEF0"])
def test_unknown_commits_are_no_news(against, make_cell, commit):
    cells, header = [make_cell("a")], {"commit": commit}
    text = f"the commit of {{}} is {commit.strip()!r}, neither a commit's hash nor a release such as v1.2; run it "
    text += "in a git checkout or from an installed release"
    both = against(cells, cells, base_header=header, head_header=header)
    assert (both.verdict, both.reasons) == ("red", (text.format("base"), text.format("head")))
    assert against(cells, cells, head_header=header).reasons == (text.format("head"),)


@pytest.mark.parametrize("commit", ["0f3c2a9", "a" * 64, "v0.1.0", "v1.2.0.dev3+g0f3c2a9"])
def test_commits_and_releases_are_known(against, make_cell, commit):
    header = {"commit": commit}
    assert against([make_cell("a")], [make_cell("a")], base_header=header, head_header=header).verdict == "green"


@pytest.mark.parametrize("state", ["FAIL", "NOT MEASURED"])
def test_a_gate_that_turns_red_is_regressed(against, gated, state):
    comparison = against([gated("lossless")], [gated("lossless", state, message="3 tokens differ")])
    change = only(comparison)
    assert (change.state, change.red) == (ChangeState.REGRESSED, True)
    assert change.why == f"lossless PASS -> {state}: 3 tokens differ"
    assert change.repro == "specmatrix run --cells id=a"
    assert comparison.verdict == "red"
    assert comparison.reasons == ("1 cell regressed",)


def test_a_new_gate_that_is_red_is_regressed(against, make_cell):
    head = make_cell("a", state="FAIL", gates=(*make_cell().gates, GateResult("finish", "FAIL", {}, None, "late")))
    assert only(against([make_cell("a")], [head])).why == "finish not run -> FAIL: late"


def test_a_new_gate_that_is_green_changes_nothing(against, make_cell):
    head = make_cell("a", gates=(*make_cell().gates, GateResult("finish", "PASS")))
    comparison = against([make_cell("a")], [head])
    assert (comparison.counts[ChangeState.SAME], comparison.changes) == (1, ())


def test_a_gate_that_no_longer_runs_is_regressed(against, make_cell):
    change = only(against([make_cell("a")], [make_cell("a", gates=make_cell().gates[:1])]))
    why = "lossless PASS -> not run: head does not run this gate"
    assert (change.state, change.why) == (ChangeState.REGRESSED, why)


def test_a_cell_that_fails_without_a_gate_is_regressed(against, make_cell):
    change = only(against([make_cell("a")], [make_cell("a", state="FAIL", error="no answer", gates=make_cell().gates)]))
    assert (change.state, change.why) == (ChangeState.REGRESSED, "PASS in base, FAIL in head: no answer")


@pytest.mark.parametrize("why", ["error", "gate"])
@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("NOT MEASURED", "FAIL", "NOT MEASURED in base, FAIL in head: it broke"),
        ("INFRA", "FAIL", "INFRA in base, FAIL in head: it broke"),
        ("INFRA", "NOT MEASURED", "INFRA in base, NOT MEASURED in head: it broke"),
    ],
)
def test_red_where_nothing_was_known_is_regressed(against, make_cell, gated, why, old, new, words):
    def cell(state: str):
        if why == "error" or state == "INFRA":
            return make_cell("a", state=state, error="it broke", gates=())
        return gated("lossless", state, message="it broke")

    comparison = against([cell(old), make_cell("b")], [cell(new), make_cell("b")])
    before = "not run" if old == "INFRA" else old
    assert only(comparison).why == (words if why == "error" else f"lossless {before} -> {new}: it broke")
    assert (comparison.verdict, only(comparison).state) == ("red", ChangeState.REGRESSED)


@pytest.mark.parametrize("gates", [(), (GateResult("lossless", "PASS"),)])
def test_a_failure_that_is_measured_no_more_is_not_said_to_be_the_same(against, make_cell, gates):
    base, head = (make_cell("a", state=state, error=state, gates=gates) for state in ("FAIL", "NOT MEASURED"))
    comparison = against([base], [head])
    assert (comparison.verdict, comparison.counts[ChangeState.SAME]) == ("green", 1)
    judged = against([replace(base, evidence={"a": 1})], [replace(head, evidence={"a": 2})])
    assert judged.changes == ()


@pytest.mark.parametrize("error", ["exit code -9", "exit code -11"])
def test_the_machine_failed_in_both_is_no_pass(against, make_cell, error):
    base, head = (make_cell("a", state="INFRA", error=text) for text in ("exit code -9", error))
    comparison = against([base, make_cell("b")], [head, make_cell("b")])
    assert (comparison.verdict, only(comparison).state, only(comparison).red) == ("red", ChangeState.INFRA, True)
    assert comparison.reasons == ("1 cell not measured because the machine failed",)


def test_a_waiver_takes_the_red_and_leaves_the_state(against, gated):
    waived = gated("lossless", "FAIL", waived=Waiver("drafts leak on abort", "2026-12-31"))
    comparison = against([gated("lossless")], [waived])
    change = only(comparison)
    assert (change.state, change.red, change.excused) == (
        ChangeState.REGRESSED,
        False,
        "waived until 2026-12-31: drafts leak on abort",
    )
    assert comparison.verdict == "green"
    expired = replace(waived, waived=Waiver("known", "2026-08-31"))
    rules = {"waivers": (WaiverRule("algorithm=eagle3", "known", "2026-08-31"),)}
    assert against([gated("lossless")], [expired], head_header=rules).verdict == "red"


def test_red_on_both_sides_is_same_with_a_note(against, gated):
    comparison = against([gated("lossless", "FAIL")], [gated("lossless", "FAIL", seconds=9)])
    assert (comparison.counts[ChangeState.SAME], comparison.verdict) == (1, "green")
    assert comparison.still_red == ("a",)
    other = against([gated("lossless", "FAIL")], [gated("lossless", "FAIL", message="other words")])
    assert (other.counts[ChangeState.SAME], other.still_red) == (1, ("a",))


def test_red_on_one_side_is_not_still_red(against, gated):
    assert against([gated("lossless")], [gated("lossless", "FAIL")]).still_red == ()
    assert against([gated("lossless", "FAIL")], [gated("lossless")]).still_red == ()


def test_what_is_red_comes_first(against, make_cell):
    base = [make_cell("a"), make_cell("b"), make_cell("c", state="FAIL")]
    head = [make_cell("0new"), make_cell("b", state="FAIL"), make_cell("c")]
    changes = against(base, head).changes
    assert [(change.id, change.red) for change in changes] == [("b", True), ("a", True), ("c", False), ("0new", False)]


@pytest.mark.parametrize("state", ["FAIL", "NOT MEASURED"])
def test_a_gate_that_turns_green_is_improved(against, gated, state):
    change = only(against([gated("lossless", state)], [gated("lossless")]))
    assert (change.state, change.red, change.why) == (ChangeState.IMPROVED, False, f"lossless {state} -> PASS")


def test_infra_is_red_and_no_verdict_about_the_code(against, make_cell):
    head = make_cell("a", state="INFRA", gates=(), error="no space on the machine")
    comparison = against([make_cell("a")], [head])
    assert only(comparison).state is ChangeState.INFRA
    assert only(comparison).why == "the machine failed: no space on the machine"
    assert comparison.reasons == ("1 cell not measured because the machine failed",)
    assert only(against([make_cell("z")], [make_cell("z"), head])).state is ChangeState.INFRA


def test_infra_in_base_is_unknown(against, make_cell):
    comparison = against([make_cell("a", state="INFRA"), make_cell("z")], [make_cell("a"), make_cell("z")])
    assert only(comparison).why == "the machine failed in base; the cell is PASS in head"
    assert (only(comparison).state, comparison.verdict) == (ChangeState.UNKNOWN, "green")


def test_infra_in_base_and_red_in_head_is_regressed(against, make_cell, gated):
    comparison = against([make_cell("a", state="INFRA", gates=())], [gated("lossless", "FAIL")])
    assert (only(comparison).state, comparison.verdict) == (ChangeState.REGRESSED, "red")


def test_lost_cells_are_red_until_acknowledged(against, make_cell):
    both, lost = make_cell("kept"), make_cell("eagle3.k16")
    comparison = against([both, lost], [both])
    assert (only(comparison).state, only(comparison).red) == (ChangeState.LOST, True)
    assert comparison.reasons == ("1 cell lost without an acknowledgement",)
    accepted = Acknowledgement("lost", "eagle3.k*", "k16 costs too much", "2026-12-31")
    comparison = against([both, lost], [both], [accepted])
    assert (comparison.verdict, only(comparison).excused) == ("green", "k16 costs too much")
    assert comparison.unused == ()
    late = replace(accepted, expiry="2026-08-31")
    assert against([both, lost], [both], [late]).verdict == "red"


def test_acknowledgements_of_nothing_are_listed(against, make_cell):
    idle = Acknowledgement("lost", "eagle3.*", "was removed", "2026-12-31")
    assert against([make_cell("a")], [make_cell("a")], [idle]).unused == ("lost eagle3.*",)


def test_new_cells_are_green_or_red_by_themselves(against, make_cell, gated):
    green = against([make_cell("z")], [make_cell("z"), make_cell("a")])
    assert (only(green).state, green.verdict) == (ChangeState.NEW, "green")
    red = against([make_cell("z")], [make_cell("z"), gated("lossless", "FAIL", message="x")])
    assert (only(red).state, red.reasons) == (ChangeState.NEW, ("1 cell new and red",))


def moved(make_cell, **changes: object):
    resolved = {**(make_cell().resolved or {}), "spec_version": "v1", "lag": 0}
    reason = ReasonRecord("spec_version", "v1", "trees run on v1")
    return make_cell("a", resolved=resolved, reasons=(reason,), **changes)


def test_a_different_path_is_rewritten_and_red_until_acknowledged(against, make_cell):
    comparison = against([make_cell("a")], [moved(make_cell)])
    assert only(comparison).state is ChangeState.REWRITTEN
    assert only(comparison).why == "resolves to spec_version=v1 instead of v2: trees run on v1"
    assert comparison.reasons == (
        "1 cell rewritten without an acknowledgement",
        "spec_version: v2 -> v1 in 1 cell is not acknowledged",
    )
    accepted = Acknowledgement("rewrite", "spec_version: v2 -> v1", ACCEPTED, "2026-12-31")
    comparison = against([make_cell("a")], [moved(make_cell)], [accepted])
    assert (comparison.verdict, only(comparison).state, only(comparison).excused) == (
        "green",
        ChangeState.REWRITTEN,
        ACCEPTED,
    )


def test_a_path_and_its_rewrite_are_told_once_and_whole_tables_short(against, make_cell, change_cell):
    rewrite = RewriteRecord("spec_version", "v2", "v1", "trees run on v1")
    change = only(against([make_cell("a")], [change_cell(moved(make_cell), rewrites=(rewrite,))]))
    assert change.why == "resolves to spec_version=v1 instead of v2: trees run on v1"
    table = {**(make_cell().resolved or {}), "slots": "x" * 400}
    comparison = against([make_cell("a")], [make_cell("a", resolved=table)])
    assert len(only(comparison).why) < 130 and all(len(reason) < 130 for reason in comparison.reasons)


def test_a_path_without_a_reason_is_reported(against, make_cell, change_cell):
    change = only(against([make_cell("a")], [change_cell(moved(make_cell), reasons=())]))
    assert change.why.endswith("instead of v2: the engine gives no reason")


def test_a_new_rewrite_is_rewritten(against, make_cell, rewritten):
    comparison = against([make_cell("a")], [rewritten("a")])
    assert only(comparison).why == "rewritten, num_draft_tokens: 6 -> 4: a chain verifies steps + 1 tokens"
    assert comparison.verdict == "red"


def test_where_the_checkpoints_lie_is_no_path(against, make_cell):
    elsewhere = {**(make_cell().resolved or {}), "model_path": "/other", "random_seed": 3}
    comparison = against([make_cell("a")], [make_cell("a", resolved=elsewhere)])
    assert (comparison.counts[ChangeState.SAME], comparison.changes) == (1, ())


def test_a_cell_that_requests_a_different_value_is_rewritten(against, make_cell):
    other = make_cell("a", requested={**make_cell().requested, "spec_version": "v2"})
    change = only(against([make_cell("a")], [other]))
    assert change.state is ChangeState.REWRITTEN
    assert change.path[0].signature() == "asked spec_version: absent -> v2"


@pytest.mark.parametrize("backwards", [False, True])
def test_refused_and_running_are_different_paths(against, make_cell, backwards):
    refusal = GateResult("config", "PASS", {"predicted": "topk 4 needs v1"})
    gates = make_cell().gates
    pair = [make_cell("a", gates=gates)], [make_cell("a", resolved=None, gates=(*gates, refusal))]
    comparison = against(*reversed(pair)) if backwards else against(*pair)
    signature = "engine start: refused -> runs" if backwards else "engine start: runs -> refused"
    assert only(comparison).path[0].signature() == signature
    assert only(comparison).path[0].because == "topk 4 needs v1"


def test_a_red_gate_counts_more_than_a_rewrite(against, make_cell):
    red = (GateResult("ledger", "PASS"), GateResult("lossless", "FAIL", {}, None, "x"))
    change = only(against([make_cell("a")], [moved(make_cell, state="FAIL", gates=red)]))
    assert change.state is ChangeState.REGRESSED
    assert change.path[0].signature() == "spec_version: v2 -> v1"


def test_other_values_under_one_id_lose_the_cell(against, make_cell):
    base, head = make_cell("a", axes={"topk": "4"}), make_cell("a", axes={"topk": "1", "page_size": "16"})
    comparison = against([base], [head])
    why = "head runs other values under this id: topk 1 instead of 4; it was PASS in base"
    assert (comparison.verdict, only(comparison).state, only(comparison).why) == ("red", ChangeState.LOST, why)
    accepted = [Acknowledgement("lost", "a", "the id names another cell now", "2026-12-31")]
    both = [[each, make_cell("b")] for each in (base, head)]
    assert against(*both, accepted).verdict == "green"
    # An axis that only one of the versions knows says nothing.
    assert against([base], [make_cell("a", axes={"topk": "4", "page_size": "16"})]).verdict == "green"
    for axes in ({}, {"page_size": "16"}):
        dropped = against([base], [make_cell("a", axes=axes)])
        assert (dropped.verdict, only(dropped).state) == ("red", ChangeState.LOST)
        assert "head runs other values under this id: topk nothing instead of 4" in only(dropped).why


def test_nothing_compared_is_not_green(against, gated):
    comparison = against([gated("lossless")], [gated("lossless")], head_header={"zoo_hash": "other", "seed": 9})
    assert comparison.counts[ChangeState.NOT_COMPARABLE] == 1
    assert (comparison.verdict, comparison.reasons) == ("red", ("no cell could be compared: zoo, seed differ",))


@pytest.mark.parametrize("head_header", [{"data_hash": "other"}, {"zoo_hash": "other"}])
def test_other_prompts_or_models_are_not_comparable(against, gated, make_cell, head_header):
    facts = make_cell("facts", gates=(GateResult("ledger", "PASS"),))
    comparison = against(
        [gated("accuracy", "PASS", {"accuracy": 0.95, "n": 400}), facts],
        [gated("accuracy", "PASS", {"accuracy": 0.8, "n": 400}), facts],
        head_header=head_header,
    )
    assert only(comparison).state is ChangeState.NOT_COMPARABLE
    assert only(comparison).why == "accuracy: an input differs"
    assert comparison.counts[ChangeState.SAME] == 1
    assert comparison.verdict == "green"


def test_red_under_other_prompts_is_not_comparable_and_red(against, gated):
    comparison = against([gated("lossless")], [gated("lossless", "FAIL", message="x")], head_header={"data_hash": "o"})
    assert (only(comparison).state, only(comparison).red) == (ChangeState.NOT_COMPARABLE, True)
    assert comparison.reasons == ("1 cell red in head and not comparable with base",)


def test_facts_about_the_engine_stay_comparable(against, gated):
    comparison = against([gated("ledger")], [gated("ledger", "FAIL", message="a leak")], head_header={"data_hash": "o"})
    assert only(comparison).state is ChangeState.REGRESSED


def test_the_specimen_defect_is_named_in_words(tmp_path, specimen, write_report):
    base = load(write_report(tmp_path / "base", specimen().cells()))
    head = load(write_report(tmp_path / "head", specimen(stride=True).cells()))
    comparison = compare(base, head)
    assert [factor.text for factor in comparison.factors] == [
        "red at topk > 1 x spec_version=v2 x batch != single: 16 of 16 failing cells, 0 of 64 passing"
    ]
    assert {change.state for change in comparison.changes} == {ChangeState.REGRESSED}


def test_a_change_of_policy_is_named_in_words(tmp_path, specimen, write_report):
    base = load(write_report(tmp_path / "base", specimen().cells()))
    head = load(write_report(tmp_path / "head", specimen(policy="v1").cells()))
    comparison = compare(base, head)
    assert comparison.counts[ChangeState.REWRITTEN] == 14
    assert comparison.counts[ChangeState.SAME] == 66
    assert [row.signature for row in comparison.rewrites] == ["spec_version: v2 -> v1"]
    assert [(row.field, row.base, row.head, len(row.cells)) for row in comparison.choices] == [
        ("spec_version", "v2", "v1", 14)
    ]


def test_the_record_holds_everything_as_json(tmp_path, specimen, write_report):
    base = load(write_report(tmp_path / "base", specimen().cells()))
    head = load(write_report(tmp_path / "head", specimen(stride=True, policy="v1").cells()))
    record = json.loads(json.dumps(comparison_record(compare(base, head))))
    assert list(record)[:4] == ["schema", "verdict", "reasons", "states"]
    assert len(record["changes"]) == sum(record["states"].values()) - record["states"]["SAME"]
    assert {"coverage", "rewrites", "choices", "factors", "thresholds", "waivers", "mismatches"} <= set(record)


def test_other_stages_are_named_before_what_they_lack(against, make_cell):
    cells = [make_cell("a"), make_cell("b")]
    comparison = against(cells, cells[:1], head_header={"stage": "smoke"})
    assert comparison.reasons == (
        "the stages differ, base ran pr and head smoke", "1 cell lost without an acknowledgement",
    )  # fmt: skip
    assert against(cells[:1], cells, base_header={"stage": "smoke"}).verdict == "green"
