"""The session gate: real turns pass, and each violation by a turn is named."""

from dataclasses import replace
from itertools import pairwise

import pytest

from specmatrix.engine.core.schedule.scheduler import Scheduler
from specmatrix.matrix.cells.cell import Cell
from specmatrix.matrix.gates.gate import Blame, State
from specmatrix.matrix.gates.schedule import ScheduleGate
from specmatrix.matrix.gates.session import SessionGate
from specmatrix.matrix.run.requests import run_requests
from specmatrix.matrix.subjects.in_process import ReferenceSubject
from specmatrix.matrix.subjects.protocol import Run
from specmatrix.matrix.workloads.prepared_cell import PreparedCell, prepare

CELL = "eagle3.s5.v2.p16.pair.stream.abort_running"
PLAIN = "none.v1.pair.stream"
GATE = SessionGate()


@pytest.mark.parametrize("cell_id", [CELL, "none.v1.pair.stream", "standalone.s3.p4.c7.mixed_lengths.branch.mixed"])
def test_real_sessions_pass(measured, cell_id):
    prepared, run, baseline = measured(cell_id)
    outcome = SessionGate().judge(prepared, run, baseline)
    assert (outcome.state, outcome.message) == (State.PASS, "")
    assert outcome.numbers["sessions"] == len({r.session.id for r in run.requests if r.session is not None}) > 0
    assert outcome.numbers["attempts"] == len(run.attempts)


def aborted_while_it_reads() -> tuple[PreparedCell, Run]:
    """A turn, four turns of one token that are aborted after their first step, and one more; each recomputes the draft
    KV of two inherited positions."""
    prepared, subject = prepare(Cell.from_id("nextn.deepseek.s2.v1.c7.stream")), ReferenceSubject()
    (first, *_) = prepared.requests
    requests = [replace(first, max_new_tokens=9, ignore_eos=True)]
    for number in range(2, 7):
        session = replace(first.session, follows=first.name)
        turn = replace(requests[0], name=f"{first.name}.turn{number}", prompt=" Then?", after=(requests[-1].name,))
        requests.append(replace(turn, session=session, abort_after=0 if number < 6 else None))
    engine = subject.start_engine(replace(prepared.configuration, chunked_prefill_size=1))
    return prepared, run_requests(engine, requests, subject.profile.capabilities)


def test_turns_aborted_while_they_read_inherited_kv_leave_it_intact(monkeypatch):
    prepared, run = aborted_while_it_reads()
    outcome = ScheduleGate().judge(prepared, run, run)
    assert (outcome.state, outcome.message, run.evidence["session.rolled_back"]) == (State.PASS, "", 4)
    kept = Scheduler.kv_to_keep

    def less(self, request):
        return min(kept(self, request), self.ledger.accounts[request.account].committed)

    monkeypatch.setattr(Scheduler, "kv_to_keep", less)
    prepared, run = aborted_while_it_reads()
    outcome = ScheduleGate().judge(prepared, run, run)
    assert (outcome.state, outcome.blame) == (State.FAIL, Blame("q0.turn2"))
    assert outcome.message.endswith("expected that q0.turn2 leaves 60 positions to its session; got 59")


def test_a_prompt_without_its_history_is_named(measured, altered):
    found = measured(CELL)
    index, answer = next(pair for pair in enumerate(found.run.answers) if pair[1].name.endswith(".turn3"))
    wrong = altered(found.run, index, prompt_ids=answer.prompt_ids[1:])
    text = f"the prompt of {answer.name} is not its history followed by its own tokens"
    for known in (found.baseline, replace(found.baseline, answers=found.baseline.answers[1:])):
        outcome = found.judge(GATE, wrong, known)
        assert (outcome.state, outcome.message, outcome.blame) == (State.FAIL, text, Blame(answer.name))
        assert outcome.numbers["apart"] == 1


def test_turns_behind_an_answer_that_left_the_baselines_have_their_own_history(measured, altered):
    found = measured(PLAIN)
    places = {answer.name: place for place, answer in enumerate(found.run.answers)}
    turns = [places[f"q5{turn}"] for turn in ("", ".turn2", ".turn3", ".turn4")]
    run = altered(found.run, turns[0], output_ids=(*found.run.answers[turns[0]].output_ids[:-1], 7))
    for before, turn in pairwise(turns):
        history = run.answers[before].prompt_ids + run.answers[before].output_ids
        run = altered(run, turn, prompt_ids=history + run.answers[turn].prompt_ids[len(history) :])
    assert found.verdict(GATE, run) == "PASS"
    right = run.answers[turns[2]].prompt_ids
    for wrong in (found.baseline.answers[turns[2]].prompt_ids, right[:-1], (*right[:-1], 7), right[1:]):
        verdict = found.verdict(GATE, altered(run, turns[2], prompt_ids=wrong))
        assert verdict == "FAIL: the prompt of q5.turn3 is not its history followed by its own tokens"


def test_without_a_continuation_nothing_is_measured(measured):
    found = measured(CELL)
    plain = tuple(replace(request, session=None) for request in found.run.requests)
    firsts = tuple(request for request in found.run.requests if request.session.follows is None)
    for requests in (plain, firsts, (*firsts, *plain)):
        assert found.verdict(GATE, requests=requests) == "NOT MEASURED: no session request continued another"
