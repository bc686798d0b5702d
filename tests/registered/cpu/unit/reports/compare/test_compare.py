"""The states of cells, one by one, through compare() on reports on disk."""

from types import SimpleNamespace

import pytest
from msgspec.structs import replace

from specmatrix.reports.compare import Acknowledgement, ChangeState, compare, comparison_json
from specmatrix.reports.schema import GateResult, ReasonRecord, ReportError, RewriteRecord, Waiver, WaiverRule
from specmatrix.reports.store import load

ACCEPTED = "the fallback is wanted until the tree gates are green"


def only(comparison):
    assert len(comparison.changes) == 1
    return comparison.changes[0]


def moved(make_cell, **changes: object):
    resolved = {**(make_cell().start.resolved or {}), "spec_version": "v1", "lag": 0}
    reason = ReasonRecord("spec_version", "v1", "trees run on v1")
    return make_cell("a", **{"resolved": resolved, "reasons": (reason,)} | changes)


BROKE = {"error": "it broke", "gates": ()}
RED = (GateResult("ledger", "PASS"), GateResult("lossless", "FAIL", {}, None, "x"))
REFUSED = {"resolved": None, "gates": (*RED[:1], GateResult("config", "PASS", {"predicted": "topk 4 needs v1"}))}
OTHER = {"data_hash": "other"}
# Base and head as (a function of the fixtures' namespace), state, whether it is red, what is said, head's header.
STATES = {
    "a gate fails": (
        lambda m: m.gated("lossless"), lambda m: m.gated("lossless", "FAIL", message="3 differ"),
        "REGRESSED", True, "lossless PASS -> FAIL: 3 differ", {}),
    "a gate measures nothing": (
        lambda m: m.gated("lossless"), lambda m: m.gated("lossless", "NOT MEASURED"),
        "REGRESSED", True, "lossless PASS -> NOT MEASURED", {}),
    "a new gate is red": (
        lambda m: m.cell("a", gates=RED[:1]), lambda m: m.cell("a", gates=RED),
        "REGRESSED", True, "lossless not run -> FAIL: x", {}),
    "a gate no longer runs": (
        lambda m: m.cell("a"), lambda m: m.cell("a", gates=m.cell().gates[:1]),
        "REGRESSED", True, "lossless PASS -> not run: head does not run this gate", {}),
    "an error and green gates": (
        lambda m: m.cell("a"), lambda m: m.cell("a", state="FAIL", error="no answer", gates=m.cell().gates),
        "REGRESSED", True, "PASS in base, FAIL in head: no answer", {}),
    "unmeasured, then an error": (
        lambda m: m.cell("a", state="NOT MEASURED", **BROKE), lambda m: m.cell("a", state="FAIL", **BROKE),
        "REGRESSED", True, "NOT MEASURED in base, FAIL in head: it broke", {}),
    "unmeasured, then a red gate": (
        lambda m: m.gated("lossless", "NOT MEASURED"), lambda m: m.gated("lossless", "FAIL", message="it broke"),
        "REGRESSED", True, "lossless NOT MEASURED -> FAIL: it broke", {}),
    "no machine, then an error": (
        lambda m: m.cell("a", state="INFRA", **BROKE), lambda m: m.cell("a", state="NOT MEASURED", **BROKE),
        "REGRESSED", True, "INFRA in base, NOT MEASURED in head: it broke", {}),
    "no machine, then green": (
        lambda m: m.cell("a", state="INFRA"), lambda m: m.cell("a"),
        "UNKNOWN", False, "the machine failed in base; the cell is PASS in head", {}),
    "no machine now": (
        lambda m: m.cell("a"), lambda m: m.cell("a", state="INFRA", gates=(), error="no space"),
        "INFRA", True, "the machine failed: no space", {}),
    "no machine in both": (
        lambda m: m.cell("a", state="INFRA"), lambda m: m.cell("a", state="INFRA"),
        "INFRA", True, "the machine failed", {}),
    "a gate that failed passes": (
        lambda m: m.gated("lossless", "FAIL"), lambda m: m.gated("lossless"),
        "IMPROVED", False, "lossless FAIL -> PASS", {}),
    "a gate measures again": (
        lambda m: m.gated("lossless", "NOT MEASURED"), lambda m: m.gated("lossless"),
        "IMPROVED", False, "lossless NOT MEASURED -> PASS", {}),
    "another path without a reason": (
        lambda m: m.cell("a"), lambda m: moved(m.cell, reasons=()),
        "REWRITTEN", True, "instead of v2: the engine gives no reason", {}),
    "a new rewrite": (
        lambda m: m.cell("a"), lambda m: m.rewritten("a"),
        "REWRITTEN", True, "rewritten, num_draft_tokens: 6 -> 4: a chain verifies steps + 1 tokens", {}),
    "another request": (
        lambda m: m.cell("a"), lambda m: m.cell("a", requested={**m.cell().start.requested, "spec_version": "v2"}),
        "REWRITTEN", True, "asked spec_version=v2 instead of absent", {}),
    "refused now": (
        lambda m: m.cell("a", gates=RED[:1]), lambda m: m.cell("a", **REFUSED),
        "REWRITTEN", True, "engine start=refused instead of runs: topk 4 needs v1", {}),
    "refused before": (
        lambda m: m.cell("a", **REFUSED), lambda m: m.cell("a", gates=REFUSED["gates"]),
        "REWRITTEN", True, "engine start=runs instead of refused: topk 4 needs v1", {}),
    "a red gate counts more than a path": (
        lambda m: m.cell("a"), lambda m: moved(m.cell, gates=RED),
        "REGRESSED", True, "lossless PASS -> FAIL: x", {}),
    "red with other prompts": (
        lambda m: m.gated("lossless"), lambda m: m.gated("lossless", "FAIL", message="x"),
        "NOT COMPARABLE", True, "lossless PASS -> FAIL: x", OTHER),
    "a fact about the engine with other prompts": (
        lambda m: m.gated("ledger"), lambda m: m.gated("ledger", "FAIL", message="a leak"),
        "REGRESSED", True, "ledger PASS -> FAIL: a leak", OTHER),
}  # fmt: skip
REASONS = {
    "REGRESSED": "1 cell regressed", "INFRA": "1 cell not measured because the machine failed",
    "REWRITTEN": "1 cell rewritten without an acknowledgement",
    "NOT COMPARABLE": "1 cell red in head and not comparable with base",
}  # fmt: skip


@pytest.mark.parametrize("case", STATES)
def test_a_cell_has_the_state_and_the_words_of_what_changed(against, make_cell, gated, rewritten, case):
    base, head, state, red, why, header = STATES[case]
    fixtures = SimpleNamespace(cell=make_cell, gated=gated, rewritten=rewritten)
    other = make_cell("z", gates=RED[:1])
    comparison = against([base(fixtures), other], [head(fixtures), other], head_header=header)
    change = only(comparison)
    assert (change.state, change.red, comparison.verdict) == (state, red, "red" if red else "green")
    assert why in change.why and change.repro == "specmatrix run --cells id=a"
    assert comparison.reasons[:1] == ((REASONS[state],) if red else ())


def test_identical_reports_are_the_same(against, make_cell):
    comparison = against([make_cell("a", seconds=1)], [make_cell("a", seconds=2)])
    assert comparison_json(comparison) == {
        "schema": 5, "verdict": "green", "reasons": [],
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


def test_a_new_gate_that_is_green_changes_nothing(against, make_cell):
    head = make_cell("a", gates=(*make_cell().gates, GateResult("finish", "PASS")))
    comparison = against([make_cell("a")], [head])
    assert (comparison.counts[ChangeState.SAME], comparison.changes) == (1, ())


@pytest.mark.parametrize("gates", [(), (GateResult("lossless", "PASS"),)])
def test_a_failure_that_is_measured_no_more_is_not_said_to_be_the_same(against, make_cell, gates):
    base, head = (make_cell("a", state=state, error=state, gates=gates) for state in ("FAIL", "NOT MEASURED"))
    comparison = against([base], [head])
    assert (comparison.verdict, comparison.counts[ChangeState.SAME]) == ("green", 1)
    judged = against([replace(base, evidence={"a": 1})], [replace(head, evidence={"a": 2})])
    assert judged.changes == ()


def test_a_waiver_takes_the_red_and_leaves_the_state(against, gated):
    waived = gated("lossless", "FAIL", waived=Waiver("drafts leak on abort", "2026-12-31"))
    comparison = against([gated("lossless")], [waived])
    change = only(comparison)
    assert (change.state, change.red, comparison.verdict) == (ChangeState.REGRESSED, False, "green")
    assert change.excused == "waived until 2026-12-31: drafts leak on abort"
    expired = replace(waived, waived=Waiver("known", "2026-08-31"))
    rules = {"waivers": (WaiverRule("algorithm=eagle3", "known", "2026-08-31"),)}
    assert against([gated("lossless")], [expired], head_header=rules).verdict == "red"


def test_red_on_both_sides_is_same_with_a_note(against, gated):
    comparison = against([gated("lossless", "FAIL")], [gated("lossless", "FAIL", seconds=9)])
    assert (comparison.counts[ChangeState.SAME], comparison.verdict) == (1, "green")
    assert comparison.still_red == ("a",)
    assert against([gated("lossless")], [gated("lossless", "FAIL")]).still_red == ()
    assert against([gated("lossless", "FAIL")], [gated("lossless")]).still_red == ()
    other = against([gated("lossless", "FAIL")], [gated("lossless", "FAIL", message="other words")])
    assert (other.counts[ChangeState.SAME], other.still_red) == (1, ("a",))


def test_what_is_red_comes_first(against, make_cell):
    base = [make_cell("a"), make_cell("b"), make_cell("c", state="FAIL")]
    head = [make_cell("0new"), make_cell("b", state="FAIL"), make_cell("c")]
    changes = against(base, head).changes
    assert [(change.id, change.red) for change in changes] == [("b", True), ("a", True), ("c", False), ("0new", False)]


def test_lost_cells_are_red_until_acknowledged(against, make_cell):
    both, lost = make_cell("kept"), make_cell("eagle3.k16")
    comparison = against([both, lost], [both])
    assert (only(comparison).state, only(comparison).red) == (ChangeState.LOST, True)
    assert comparison.reasons == ("1 cell lost without an acknowledgement",)
    accepted = Acknowledgement("lost", "eagle3.k*", "k16 costs too much", "2026-12-31")
    idle = Acknowledgement("lost", "ngram.*", "was removed", "2026-12-31")
    comparison = against([both, lost], [both], [accepted, idle])
    assert (comparison.verdict, only(comparison).excused) == ("green", "k16 costs too much")
    assert comparison.unused == ("lost ngram.*",)
    late = replace(accepted, expiry="2026-08-31")
    assert against([both, lost], [both], [late]).verdict == "red"


def test_new_cells_are_green_or_red_by_themselves(against, make_cell, gated):
    green = against([make_cell("z")], [make_cell("z"), make_cell("a")])
    assert (only(green).state, green.verdict) == (ChangeState.NEW, "green")
    red = against([make_cell("z")], [make_cell("z"), gated("lossless", "FAIL", message="x")])
    assert (only(red).state, red.reasons) == (ChangeState.NEW, ("1 cell new and red",))


def test_a_different_path_is_rewritten_and_red_until_acknowledged(against, make_cell):
    comparison = against([make_cell("a")], [moved(make_cell)])
    assert only(comparison).state is ChangeState.REWRITTEN
    assert only(comparison).why == "resolves to spec_version=v1 instead of v2: trees run on v1"
    assert comparison.reasons[1:] == ("spec_version: v2 -> v1 in 1 cell is not acknowledged",)
    accepted = Acknowledgement("rewrite", "spec_version: v2 -> v1", ACCEPTED, "2026-12-31")
    comparison = against([make_cell("a")], [moved(make_cell)], [accepted])
    assert (comparison.verdict, only(comparison).excused) == ("green", ACCEPTED)
    assert only(comparison).state is ChangeState.REWRITTEN


def test_a_path_and_its_rewrite_are_told_once_and_whole_tables_short(against, make_cell, change_cell):
    rewrite = RewriteRecord("spec_version", "v2", "v1", "trees run on v1")
    change = only(against([make_cell("a")], [change_cell(moved(make_cell), rewrites=(rewrite,))]))
    assert change.why == "resolves to spec_version=v1 instead of v2: trees run on v1"
    table = {**(make_cell().start.resolved or {}), "slots": "x" * 400}
    comparison = against([make_cell("a")], [make_cell("a", resolved=table)])
    assert len(only(comparison).why) < 130 and all(len(reason) < 130 for reason in comparison.reasons)


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
    sides = ([gated("accuracy", "PASS", {"accuracy": share, "n": 400}), facts] for share in (0.95, 0.8))
    comparison = against(*sides, head_header=head_header)
    assert only(comparison).state is ChangeState.NOT_COMPARABLE
    assert only(comparison).why == "accuracy: an input differs"
    assert (comparison.verdict, comparison.counts[ChangeState.SAME]) == ("green", 1)


def test_a_change_of_policy_is_named_in_words(tmp_path, specimen, write_report):
    base = load(write_report(tmp_path / "base", specimen()))
    head = load(write_report(tmp_path / "head", specimen(policy="v1")))
    comparison = compare(base, head)
    assert (comparison.counts[ChangeState.REWRITTEN], comparison.counts[ChangeState.SAME]) == (14, 66)
    assert [row.signature for row in comparison.rewrites] == ["spec_version: v2 -> v1"]
    (choice,) = comparison.choices
    assert (choice.field, choice.base, choice.head, len(choice.cells)) == ("spec_version", "v2", "v1", 14)


def test_other_stages_are_named_before_what_they_lack(against, make_cell):
    cells = [make_cell("a"), make_cell("b")]
    comparison = against(cells, cells[:1], head_header={"stage": "smoke"})
    assert comparison.reasons == (
        "the stages differ, base ran pr and head smoke", "1 cell lost without an acknowledgement",
    )  # fmt: skip
    assert against(cells[:1], cells, base_header={"stage": "smoke"}).verdict == "green"


def test_failing_cells_share_factors_and_else_those_of_each_cause_do(against, make_cell):
    def cells(**red: str):
        for name in ("single.stop", "single.length", "pair.stop", "pair.length", "burst.stop", "burst.length"):
            gate = red.get(name.replace(".", "_"))
            gates = tuple(GateResult(each, "FAIL" if each == gate else "PASS") for each in ("lossless", "ledger"))
            axes = dict(zip(("batch", "finish"), name.split("."), strict=True))
            yield make_cell(name, axes=axes, gates=gates, state="FAIL" if gate else "PASS")

    (alike,) = against([*cells()], [*cells(pair_stop="lossless", pair_length="ledger")]).factors
    assert alike.text == "2 red cells, all at batch=pair, where none of 4 passing cells is"
    assert alike.conditions == (("batch=pair",),)
    apart = against([*cells()], [*cells(pair_stop="lossless", single_length="ledger")]).factors
    assert {row.text for row in apart} == {
        "1 red cell with lossless PASS -> FAIL, at batch=pair x finish=stop, where none of 4 passing cells is",
        "1 red cell with ledger PASS -> FAIL, at batch=single x finish=length, where none of 4 passing cells is",
    }
