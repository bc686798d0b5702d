"""The reference engine in the place of another one, whose rule is known."""

from dataclasses import replace

import pytest

from specmatrix.matrix.cells.cell import Cell
from specmatrix.matrix.gates.chances import ChancesGate
from specmatrix.matrix.gates.gate import State
from specmatrix.matrix.subjects.protocol import AcceptanceRule, Profile
from specmatrix.matrix.workloads.build import DRAWS, LOSSY_DRAWS

MATCH, REJECT = "standalone.pair.topk_topp", "standalone.reject.pair.topk_topp"


def gate(rule: str, filtered: bool = True) -> ChancesGate:
    return ChancesGate(accepts=lambda cell: AcceptanceRule(rule, filtered=filtered))


@pytest.mark.parametrize(("cell", "rule"), [(MATCH, "match"), (REJECT, "reject"), (REJECT, "block")])
def test_drafts_are_accepted_as_often_as_the_stated_rule_says(measured, cell, rule):
    found = measured(cell)
    outcome = found.judge(gate(rule))
    assert (outcome.state, outcome.message) == (State.PASS, "") and gate(rule).applies(found.prepared.cell)
    assert outcome.numbers["rounds"] >= 100 and 0.05 < outcome.numbers["due_per_position"][0] < 0.99


@pytest.mark.parametrize(("cell", "rule"), [(MATCH, "reject"), (REJECT, "match")])
def test_another_rule_than_the_stated_one_is_seen(measured, cell, rule):
    outcome = measured(cell).judge(gate(rule))
    seen, expected = outcome.numbers["per_position"][0], outcome.numbers["due_per_position"][0]
    assert outcome.state is State.FAIL and outcome.message.startswith("draft 1 was accepted in ")
    assert outcome.numbers["p"] < 1e-5 and abs(seen - expected) > 0.1 and len(outcome.numbers["per_position"]) == 1


def test_drafts_that_the_requests_filters_drew_are_not_accepted_as_others_would_be(measured):
    found = measured(REJECT)
    (theirs,), (due,) = (found.judge(gate("reject", one)).numbers["due_per_position"] for one in (True, False))
    assert abs(theirs - due) > 0.005


def test_a_cell_names_the_rule_and_the_profile_that_of_others(measured):
    profile = Profile(frozenset(), acceptance={"": AcceptanceRule("match"), "ngram": AcceptanceRule("lossy", loss=0.1)})
    rules = [profile.rule_of(measured(MATCH).prepared.cell._replace(**one)) for one in (
        {}, {"acceptance": "block"}, {"algorithm": "ngram"},
    )]  # fmt: skip
    assert [(one.rule, one.loss) for one in rules] == [("match", 0), ("block", 0), ("lossy", 0.1)]
    assert [profile.draws_of(Cell(algorithm=name)) for name in ("eagle", "ngram")] == [DRAWS, LOSSY_DRAWS]


def test_a_lossy_rule_and_what_draws_nothing_have_no_such_chances(measured):
    prepared = measured(MATCH).prepared
    assert not gate("lossy").applies(prepared.cell)
    assert not any(gate("match").applies(prepared.cell._replace(**one)) for one in (
        {"algorithm": "ngram"}, {"algorithm": "none"}, {"sampling": "greedy"}, {"finish": "length"},
        {"sampling": "rules", "batch": "single"},
    ))  # fmt: skip


def test_the_number_of_an_answers_rounds_tells_them_where_all_are_alike(measured):
    found = measured(MATCH)
    counted = tuple(replace(answer, accept_lengths=(), round_widths=()) for answer in found.run.answers)
    told = found.judge(gate("match"), answers=counted)
    assert told == found.judge(gate("match"))
    assert found.judge(gate("reject"), answers=counted).state is State.FAIL


def test_without_rounds_nothing_is_measured(measured):
    found = measured(MATCH)
    bare = tuple(replace(answer, accept_lengths=(), round_widths=(), meta_info={}) for answer in found.run.answers)
    text = "NOT MEASURED: 0 rounds of sampled requests ran; the test needs 6"
    assert found.verdict(gate("match"), answers=bare) == text


def test_a_block_is_drafted_whole_however_much_of_it_a_round_verifies(measured):
    found = measured("dflash.pair.topk_topp")
    cut = tuple(replace(answer, round_widths=(2,) * len(answer.round_widths)) for answer in found.run.answers)
    whole = found.judge(gate("match"))
    assert whole.state is State.PASS and 0 < whole.numbers["due_per_position"][0] < 1
    assert found.judge(gate("match"), answers=cut) == whole
