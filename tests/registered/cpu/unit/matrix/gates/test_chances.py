"""The reference engine in the place of another one, whose rule is known."""

from dataclasses import replace

import pytest

from specmatrix.matrix.gates.chances import ChancesGate
from specmatrix.matrix.gates.gate import State
from specmatrix.matrix.subjects.protocol import AcceptanceRule, Profile

MATCH, REJECT = "standalone.pair.topk_topp", "standalone.reject.pair.topk_topp"


def gate(rule: str) -> ChancesGate:
    profile = Profile(frozenset(), acceptance={"": AcceptanceRule("match"), "standalone": AcceptanceRule(rule)})
    return ChancesGate(accepts=profile.rule_of)


@pytest.mark.parametrize(("cell", "rule"), [(MATCH, "match"), (REJECT, "reject"), (REJECT, "block")])
def test_drafts_are_accepted_as_often_as_the_stated_rule_says(measured, cell, rule):
    found = measured(cell)
    outcome = found.judge(gate(rule))
    assert (outcome.state, outcome.message) == (State.PASS, "") and gate(rule).applies(found.prepared.cell)
    assert outcome.numbers["rounds"] >= 100 and 0.3 < outcome.numbers["due_per_position"][0] < 0.99


@pytest.mark.parametrize(("cell", "rule"), [(MATCH, "reject"), (REJECT, "match")])
def test_another_rule_than_the_stated_one_is_seen(measured, cell, rule):
    outcome = measured(cell).judge(gate(rule))
    seen, expected = outcome.numbers["per_position"][0], outcome.numbers["due_per_position"][0]
    assert outcome.state is State.FAIL and outcome.message.startswith("draft 1 was accepted in ")
    assert outcome.numbers["p"] < 1e-5 and abs(seen - expected) > 0.1 and len(outcome.numbers["per_position"]) == 1


def test_a_lossy_rule_and_what_draws_nothing_have_no_such_chances(measured):
    prepared = measured(MATCH).prepared
    assert not gate("lossy").applies(prepared.cell)
    assert not any(gate("match").applies(prepared.cell._replace(**one)) for one in (
        {"algorithm": "ngram"}, {"algorithm": "none"}, {"sampling": "greedy"}, {"finish": "length"},
    ))  # fmt: skip


def test_without_rounds_nothing_is_measured(measured):
    found = measured(MATCH)
    bare = tuple(replace(answer, accept_lengths=(), round_widths=()) for answer in found.run.answers)
    text = "NOT MEASURED: 0 rounds of sampled requests ran; the test needs 6"
    assert found.verdict(gate("match"), answers=bare) == text
