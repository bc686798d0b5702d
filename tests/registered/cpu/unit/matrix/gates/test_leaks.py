"""The gate `leaks` sees what ended requests leave behind."""

from dataclasses import replace

from specmatrix.matrix.gates.gate import State
from specmatrix.matrix.gates.leaks import COUNTED, LeaksGate

GATE = LeaksGate()
CELL = "none.v1.p4.pair.stream"


def judged(measured, **alive: int):
    found = measured(CELL)
    return found.judge(GATE, readback={"alive": {**found.run.readback["alive"], **alive}})


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
    found, alive = measured(CELL), measured(CELL).run.readback["alive"]
    bare = {name: value for name, value in found.run.readback.items() if name != "alive"}
    for silent in ({"run": replace(found.run, readback=bare)}, {"work": None}):
        assert found.verdict(GATE, **silent) == "NOT MEASURED: the subject does not count what is alive"
    for name in COUNTED:
        fewer = {other: count for other, count in alive.items() if other != name}
        words = f"NOT MEASURED: the subject does not count {name.replace('_', ' ')}"
        assert found.verdict(GATE, readback={"alive": fewer}) == words
