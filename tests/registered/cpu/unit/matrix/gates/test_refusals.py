"""Refusals: real ones pass, and each kind of wrong refusal is named."""

from dataclasses import replace

import pytest

from specmatrix.matrix.gates.gate import State
from specmatrix.matrix.gates.refusals import MESSAGES, refusal_fault
from specmatrix.matrix.gates.session import SessionGate
from specmatrix.matrix.workloads.request import Refusal

PAIR = "none.v1.pair.stream"
TIGHT = "none.v2.tight.burst.stream"
SNUG = "eagle3.s3.k4.n8.v2.p16.session_retract.pair.stream.length"


def test_every_class_has_its_sentence():
    assert set(MESSAGES) == set(Refusal)


@pytest.mark.parametrize("cell_id", [PAIR, pytest.param(TIGHT, marks=pytest.mark.nightly), "none.pair.branch"])
def test_real_refusals_pass(measured, cell_id):
    prepared, run, baseline = measured(cell_id)
    assert run.attempts and refusal_fault(run) == ""
    outcome = SessionGate().judge(prepared, run, baseline)
    assert (outcome.state, outcome.message) == (State.PASS, "")
    assert outcome.numbers["attempts"] == len(run.attempts)


def test_a_turn_that_is_refused_is_named(measured, altered):
    _, run, _ = measured(PAIR)
    broken = altered(run, 1, refusal="session 's0' is not open")
    assert refusal_fault(broken) == f"{run.answers[1].name} was refused: session 's0' is not open"


def test_an_attempt_that_is_answered_is_named(measured):
    prepared, run, baseline = measured(PAIR)
    (request, _), *others = run.attempts
    outcome = SessionGate().judge(prepared, replace(run, attempts=((request, ""), *others)), baseline)
    assert outcome.state is State.FAIL
    assert outcome.message == f"{request.name} was answered, but must be refused ({request.refused})"


def test_a_different_message_is_named(measured):
    _, run, _ = measured(PAIR)
    (request, sentence), *others = run.attempts
    for wrong in (sentence.replace(request.session.id, "s9"), "something went wrong", f"{sentence}!"):
        fault = refusal_fault(replace(run, attempts=((request, wrong), *others)))
        assert (
            fault == f"{request.name} must be refused ({request.refused}), but was refused for another reason: {wrong}"
        )


def test_unexpected_refusals_are_counted(measured, with_evidence):
    _, run, _ = measured(PAIR)
    count = len(run.attempts)
    assert refusal_fault(with_evidence(run, {"session.refused": count + 1})) == (
        f"the engine counts {count + 1} refused requests; expected {count}"
    )


@pytest.mark.parametrize("cell_id", [SNUG, pytest.param(TIGHT, marks=pytest.mark.nightly)])
def test_a_session_that_lost_its_kv_without_need_is_named(measured, with_evidence, cell_id):
    """A session that is evicted after its last turn loses no turn's KV."""
    prepared, run, baseline = measured(cell_id)
    outcome = SessionGate().judge(prepared, with_evidence(run, {"session.dropped": 0}), baseline)
    lost = int(outcome.message.split()[0])
    assert 0 <= run.evidence["session.dropped"] - lost <= 1 < lost
    for dropped in (0, lost - 1):
        outcome = SessionGate().judge(prepared, with_evidence(run, {"session.dropped": dropped}), baseline)
        text = f"{lost} turns lost their session's KV, but only {dropped} sessions were evicted"
        assert (outcome.state, outcome.message) == (State.FAIL, text)
    needed = SessionGate().judge(prepared, with_evidence(run, {"session.dropped": lost}), baseline)
    assert needed.state is State.PASS
