"""Random schedules of the unchanged scheduler are those of the second one, and every wrong decision shows."""

from __future__ import annotations

import re

import pytest

from specmatrix.engine.core.memory.session_kv import SessionKV
from specmatrix.engine.core.schedule.admission import Admission
from specmatrix.engine.core.schedule.scheduler import Scheduler
from specmatrix.engine.loop import Loop
from specmatrix.matrix.conformance.simulated import first_failure
from specmatrix.matrix.gates.schedule import SIMULATED, ScheduleGate


@pytest.mark.parametrize("lag", [0, 1])
def test_the_unchanged_scheduler_takes_every_step_of_the_second_one(lag):
    assert first_failure(range(80), lag) == ""


def retracts_beside_a_draining_end(self, request, width):
    while not self.admission.reclaim(request, width):
        if any(other.retracting for other in self.active):
            return False
        victim = max((one for one in self.active if one.phase.value == "running"), key=lambda one: one.rid)
        self.retract(victim)
        if victim is request or victim.phase.value == "draining":
            return False
    return True


@pytest.mark.parametrize(
    ("owner", "name", "broken", "said"),
    [
        (Scheduler, "_make_room", retracts_beside_a_draining_end, "expected that nothing more is launched"),
        (Scheduler, "_verified", lambda self, request, nodes: nodes, "expected that "),
        (Admission, "_promised", lambda self, number: 0, "expected that "),
        (SessionKV, "droppable", lambda self, group, spare, pinned: 99, "; got open of "),
        (Scheduler, "publish", lambda self, request: None, "are cached; got "),
        (Scheduler, "finish", lambda self, request, finish: None, "LedgerError: no request can run"),
        (Scheduler, "passed", lambda self, plan, request: None, "matched='3', message=None), alone"),
        (Loop, "_deliver", lambda *_: 1 / 0, "request 1 has 0 tokens and ended by Finish(reason='error'"),
    ],
)
def test_a_wrong_decision_is_named_with_its_schedule_and_step(monkeypatch, owner, name, broken, said):
    monkeypatch.setattr(owner, name, broken)
    text = first_failure(range(80), 0)
    assert text.startswith("in the random schedule ") and said in text
    assert re.search(r" with [01] steps? in flight, ", text)


def test_the_gate_simulates_in_tight_memory_of_this_engine_only(measured, monkeypatch):
    ran: list[tuple[int, int]] = []

    def wrong(numbers, lag):
        ran.append((len(numbers), lag))
        return "in the random schedule 7 with 1 step in flight, step 3: wrong"

    monkeypatch.setattr("specmatrix.matrix.gates.schedule.first_failure", wrong)
    tight, ample = measured("standalone.s1.k1.v2.p4.tight.burst"), measured("eagle3.s3.k4.n8.v2.mixed_lengths")
    assert ample.verdict(ScheduleGate()) == "PASS" and ran == []
    assert tight.verdict(ScheduleGate()) == "FAIL: in the random schedule 7 with 1 step in flight, step 3: wrong"
    assert ran == [(SIMULATED, 1)]
