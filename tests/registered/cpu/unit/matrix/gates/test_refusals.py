"""Refusals: real ones pass, and each kind of wrong refusal is named."""

import pytest

from specmatrix.matrix.gates.gate import State
from specmatrix.matrix.gates.session import MESSAGES, SessionGate, refusal_fault
from specmatrix.matrix.workloads.request import Refusal

PAIR = "none.v1.pair.stream"


@pytest.mark.parametrize("cell_id", [PAIR, "none.pair.branch"])
def test_real_refusals_pass(measured, cell_id):
    run, outcome = measured(cell_id).run, measured(cell_id).judge(SessionGate())
    assert set(MESSAGES) == set(Refusal) and run.attempts and refusal_fault(run) == ""
    assert (outcome.state, outcome.message) == (State.PASS, "")
    assert outcome.numbers["attempts"] == len(run.attempts)


def test_wrong_and_unexpected_refusals_are_named(measured, altered):
    found, run = measured(PAIR), measured(PAIR).run
    text = f"FAIL: {run.answers[1].name} was refused: session 's0' is not open"
    assert found.verdict(SessionGate(), altered(run, 1, refusal="session 's0' is not open")) == text
    (request, sentence), *others = run.attempts
    must = f"FAIL: {request.name} {{}} be refused ({request.refused}){{}}"
    other = must.format("must", ", but was refused for another reason: {}")
    for wrong, text in (
        ("", must.format("was answered, but must", "")),
        *(
            (wrong, other.format(wrong))
            for wrong in (sentence.replace(request.session.id, "s9"), "wrong", f"{sentence}!")
        ),
    ):
        assert found.verdict(SessionGate(), attempts=((request, wrong), *others)) == text
    count = len(run.attempts)
    text = f"FAIL: the engine counts {count + 1} refused requests; expected {count}"
    assert found.verdict(SessionGate(), evidence={"session.refused": count + 1}) == text
