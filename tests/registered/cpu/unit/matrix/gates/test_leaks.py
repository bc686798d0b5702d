"""The gate `leaks` sees what ended requests leave behind."""

from dataclasses import replace

import pytest

from specmatrix.matrix.gates.gate import State
from specmatrix.matrix.gates.leaks import COUNTED, LeaksGate

GATE = LeaksGate()
CELL = "none.v1.p4.pair.stream"


def judged(measured, **alive: int):
    prepared, run, baseline = measured(CELL)
    counts = {**run.readback["alive"], **alive}
    return GATE.judge(prepared, replace(run, readback={**run.readback, "alive": counts}), baseline)


def test_an_engine_with_sessions_is_empty_at_rest(measured):
    outcome = judged(measured)
    assert (outcome.state, outcome.message) == (State.PASS, "")
    assert outcome.numbers["left"] == 0 < outcome.numbers["sent"] and outcome.numbers["counts"] == 16


def test_whatever_is_left_is_named(measured):
    sent = judged(measured).numbers["sent"]
    for name in measured(CELL)[1].readback["alive"]:
        outcome = judged(measured, **{name: 3})
        assert outcome.state is State.FAIL and outcome.numbers["left"] == 3
        assert outcome.message == f"3 {name.replace('_', ' ')} left at rest, after {sent} requests"
    both = judged(measured, requests=2, sessions=1)
    sent = both.numbers["sent"]
    assert both.message == f"2 requests, 1 sessions left at rest, after {sent} requests" and both.numbers["left"] == 3


def test_without_counts_or_requests_nothing_is_measured(measured):
    prepared, run, baseline = measured(CELL)
    bare = {name: value for name, value in run.readback.items() if name != "alive"}
    for silent in (replace(run, readback=bare), replace(run, work=None)):
        outcome = GATE.judge(prepared, silent, baseline)
        assert (outcome.state, outcome.message) == (State.NOT_MEASURED, "the subject does not count what is alive")


@pytest.mark.parametrize("name", sorted(COUNTED))
def test_a_count_that_is_gone_is_named(measured, name):
    prepared, run, baseline = measured(CELL)
    fewer = {other: count for other, count in run.readback["alive"].items() if other != name}
    outcome = GATE.judge(prepared, replace(run, readback={**run.readback, "alive": fewer}), baseline)
    words = f"the subject does not count {name.replace('_', ' ')}"
    assert (outcome.state, outcome.message) == (State.NOT_MEASURED, words)
