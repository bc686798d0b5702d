"""The session gate: real turns pass, and each violation by a turn is named."""

import re
from dataclasses import replace
from itertools import pairwise

import pytest

from specmatrix.engine.core.schedule.scheduler import Scheduler
from specmatrix.matrix.cells.cell import Cell
from specmatrix.matrix.gates.gate import Blame, State
from specmatrix.matrix.gates.registry import GATES
from specmatrix.matrix.gates.session import SessionGate
from specmatrix.matrix.run.requests import run_requests
from specmatrix.matrix.subjects.in_process import ReferenceSubject
from specmatrix.matrix.subjects.protocol import Run
from specmatrix.matrix.workloads.prepared_cell import PreparedCell, prepare

CELL = "eagle3.s5.v2.p16.pair.stream.abort_running"


def moved(run, change):
    """The run with its journal changed, entry by entry; None drops an entry."""
    return replace(run, journal=[new for entry in run.journal if (new := change(entry)) is not None])


def test_it_judges_sessions_only_and_stands_in_the_table():
    assert SessionGate().applies(Cell.from_id(CELL)) and not SessionGate().applies(Cell.from_id("eagle3.pair"))
    assert any(isinstance(gate, SessionGate) for gate in GATES)


@pytest.mark.parametrize("cell_id", [CELL, "none.v1.pair.stream", "standalone.s3.p4.c7.mixed_lengths.branch.mixed"])
def test_real_sessions_pass(measured, cell_id):
    prepared, run, baseline = measured(cell_id)
    outcome = SessionGate().judge(prepared, run, baseline)
    assert (outcome.state, outcome.message) == (State.PASS, "")
    assert outcome.numbers["sessions"] == len({r.session.id for r in run.requests if r.session is not None}) > 0
    assert outcome.numbers["attempts"] == len(run.attempts)
    if prepared.cell.session == "streaming":
        assert outcome.numbers["inherited"] > 0 and outcome.numbers["resumed"] >= 4
        assert outcome.numbers["rolled_back"] == (1 if prepared.cell.abort == "running" else 0)


def test_only_windows_excuse_an_aborted_turn_that_gave_up_its_kv(measured):
    """What was released outside of the window cannot come back."""
    prepared, run, baseline = measured(
        "standalone.qwen3.s5.n6.v1.nocache.c7.stream.temperature.stop_string.abort_running"
    )
    assert SessionGate().judge(prepared, run, baseline).state is State.PASS
    whole = replace(run, resolved={**run.resolved, "window": None})
    outcome = SessionGate().judge(prepared, whole, baseline)
    text = r"q\d+\.turn2 left 0 KV positions; expected \d+: its session is \d+ tokens too short"
    assert outcome.state is State.FAIL and re.fullmatch(text, outcome.message)


def test_one_position_too_few_is_named(measured):
    """sglang#22651: a session saved one token short."""
    prepared, run, baseline = measured("none.v1.pair.stream")
    shorted = []

    def short(entry):
        operation, account, keep, pages = entry
        if operation == "hold" and not shorted:
            shorted.append(account)
            return operation, account, keep - 1, pages
        return entry

    outcome = SessionGate().judge(prepared, moved(run, short), baseline)
    at = next(at for at, entry in enumerate(run.journal) if entry[0] == "hold")
    text = f"journal entry {at} (hold, account 1): the freed pages are not those after position 100"
    assert (outcome.state, outcome.message) == (State.FAIL, text)


SNUG = "eagle3.s3.k4.n8.v2.p16.session_retract.pair.stream.length"


def test_a_retracted_turn_returns_to_what_it_inherited(measured):
    prepared, run, baseline = measured(SNUG)
    outcome = SessionGate().judge(prepared, run, baseline)
    assert (outcome.state, outcome.message) == (State.PASS, "")
    assert outcome.numbers["restored"] >= 1 and run.evidence["session.restored"] == outcome.numbers["restored"]


def retracting(run):
    """The journal entry that holds a retracted turn's account."""
    turn = next(answer for answer in run.answers if answer.retractions and ".turn2" in answer.name)
    first = next(answer for answer in run.answers if answer.name == turn.name.removesuffix(".turn2"))
    holds = [entry for entry in run.journal if entry[0] == "hold" and entry[1] == first.meta_info["id"]]
    return holds[1]


def holding(run, due, by):
    """The run in which the entry `due` holds `by` more positions, and the first step after it is as much shorter."""
    done = []

    def change(entry):
        operation, account, positions, pages = entry
        if entry is due:
            done.append(operation)
            return operation, account, positions + by, pages
        if not done or account != due[1] or operation in done or operation not in ("reserve", "launch", "settle"):
            return entry
        done.append(operation)
        return operation, account, positions - by, pages

    return moved(run, change)


def test_a_retracted_turn_that_leaves_less_is_named(measured):
    prepared, run, baseline = measured(SNUG)
    due = retracting(run)
    keep, size = due[2], run.resolved["page_size"]
    assert (keep - 1) // size == keep // size, "the same pages are freed"
    outcome = SessionGate().judge(prepared, holding(run, due, -1), baseline)
    name = next(answer.name for answer in run.answers if answer.retractions and ".turn2" in answer.name)
    text = (
        f"{name} left {keep - 1} KV positions when it was retracted; expected {keep}: its session is 1 token too short"
    )
    assert (outcome.state, outcome.message, outcome.blame) == (State.FAIL, text, Blame(name))


def test_a_turn_that_leaves_more_than_was_shown_is_named(measured):
    prepared, run, baseline = measured(CELL)
    due = next(entry for entry in run.journal if entry[:2] == ("hold", 1))
    outcome = SessionGate().judge(prepared, holding(run, due, 2), baseline)
    text = "q5 left 104 KV positions; expected 102: its session is 2 tokens too long"
    assert (outcome.state, outcome.message, outcome.blame) == (State.FAIL, text, Blame("q5"))


@pytest.mark.parametrize(("cell_id", "due"), [(SNUG, 1), ("nextn.deepseek.s2.v2.p4.pair.stream", 2)])
def test_positions_whose_draft_kv_rests_on_other_tokens_are_computed_again(measured, cell_id, due):
    prepared, run, baseline = measured(cell_id)
    assert SessionGate().judge(prepared, run, baseline).state is State.PASS
    account = next(entry[1] for entry in run.journal if entry[0] == "resume")
    done = []

    def fewer(entry):
        """One position less is recomputed, and the first step is one position shorter."""
        operation, whose, positions, pages = entry
        if (
            whose != account
            or operation in done
            or operation not in ("resume", "reserve", "launch", "settle")[: 4 if done else 1]
        ):
            return entry
        done.append(operation)
        return operation, whose, positions - 1, pages

    outcome = SessionGate().judge(prepared, moved(run, fewer), baseline)
    name = next(answer.name for answer in run.answers if answer.meta_info["id"] == account) + ".turn2"
    text = f"{name} recomputes {due - 1} inherited positions; the draft KV of {due} is stale"
    assert (outcome.state, outcome.message, outcome.blame) == (State.FAIL, text, Blame(name))


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
    outcome = SessionGate().judge(prepared, run, run)
    assert (outcome.state, outcome.message) == (State.PASS, "")
    assert (outcome.numbers["rolled_back"], outcome.numbers["resumed"]) == (4, 5)
    kept = Scheduler.kv_to_keep
    monkeypatch.setattr(
        Scheduler,
        "kv_to_keep",
        lambda self, request: min(kept(self, request), self.ledger.accounts[request.account].committed),
    )
    prepared, run = aborted_while_it_reads()
    outcome = SessionGate().judge(prepared, run, run)
    text = "q5.turn2 left 48 KV positions; expected 49: its session is 1 token too short"
    assert (outcome.state, outcome.message, outcome.blame) == (State.FAIL, text, Blame("q5.turn2"))
    assert outcome.numbers["wrong"] == 4


def test_a_prompt_without_its_history_is_named(measured):
    prepared, run, baseline = measured(CELL)
    index = next(i for i, answer in enumerate(run.answers) if answer.name.endswith(".turn3"))
    answers = list(run.answers)
    answers[index] = replace(answers[index], prompt_ids=answers[index].prompt_ids[1:])
    name = answers[index].name
    text = f"the prompt of {name} is not its history followed by its own tokens"
    for known in (baseline, replace(baseline, answers=baseline.answers[1:])):
        outcome = SessionGate().judge(prepared, replace(run, answers=tuple(answers)), known)
        assert (outcome.state, outcome.message, outcome.blame) == (State.FAIL, text, Blame(name))
        assert outcome.numbers["apart"] == 1


def test_turns_behind_an_answer_that_left_the_baselines_have_their_own_history(measured, altered):
    prepared, run, baseline = measured("none.v1.pair.stream")
    places = {answer.name: place for place, answer in enumerate(run.answers)}
    turns = [places[f"q5{turn}"] for turn in ("", ".turn2", ".turn3", ".turn4")]
    run = altered(run, turns[0], output_ids=(*run.answers[turns[0]].output_ids[:-1], 7))
    for before, turn in pairwise(turns):
        history = run.answers[before].prompt_ids + run.answers[before].output_ids
        run = altered(run, turn, prompt_ids=history + run.answers[turn].prompt_ids[len(history) :])
    assert SessionGate().judge(prepared, run, baseline).state is State.PASS
    right = run.answers[turns[2]].prompt_ids
    for wrong in (baseline.answers[turns[2]].prompt_ids, right[:-1], (*right[:-1], 7), right[1:]):
        outcome = SessionGate().judge(prepared, altered(run, turns[2], prompt_ids=wrong), baseline)
        assert outcome.message == "the prompt of q5.turn3 is not its history followed by its own tokens"


def test_without_a_journal_or_a_continuation_nothing_is_measured(measured):
    prepared, run, baseline = measured(CELL)
    outcome = SessionGate().judge(prepared, replace(run, journal=None), baseline)
    assert (outcome.state, outcome.message) == (State.NOT_MEASURED, "the subject provides no ledger journal")
    plain = tuple(replace(request, session=None) for request in run.requests)
    firsts = tuple(request for request in run.requests if request.session.follows is None)
    for requests in (plain, firsts, (*firsts, *plain)):
        outcome = SessionGate().judge(prepared, replace(run, requests=requests), baseline)
        assert (outcome.state, outcome.message) == (State.NOT_MEASURED, "no session request continued another")


def test_a_turn_that_was_aborted_in_the_queue_leaves_no_trace(measured):
    prepared, run, baseline = measured("none.v1.pair.stream")
    place = next(index for index, answer in enumerate(run.answers) if answer.name == "q5.turn2")
    request = replace(run.requests[place], name="q5.turn2b", abort_after=0)
    answer = replace(run.answers[place], name=request.name, output_ids=(), finish="abort", cached_tokens=0)
    requests, answers = (
        (*each[:place], new, *each[place:]) for each, new in ((run.requests, request), (run.answers, answer))
    )
    outcome = SessionGate().judge(prepared, replace(run, requests=requests, answers=answers), baseline)
    assert outcome == SessionGate().judge(prepared, run, baseline)
    served = replace(
        run, requests=requests, answers=(*answers[:place], replace(answer, output_ids=(5,)), *answers[place + 1 :])
    )
    assert SessionGate().judge(prepared, served, baseline).state is State.FAIL


def test_a_turn_without_an_account_is_named(measured, altered):
    prepared, run, baseline = measured("none.v1.pair.stream")
    names = [answer.name for answer in run.answers if answer.name.startswith("q5")]
    astray = altered(run, 0, meta_info={**run.answers[0].meta_info, "id": 99})
    outcome = SessionGate().judge(prepared, astray, baseline)
    text = f"{names[0]} produced tokens without a ledger account"
    assert (outcome.state, outcome.message, outcome.blame) == (State.FAIL, text, Blame(names[0]))
    assert outcome.numbers["wrong"] == len(names) == 4


def test_a_broken_journal_is_named(measured):
    prepared, run, baseline = measured(CELL)
    outcome = SessionGate().judge(prepared, moved(run, lambda entry: None if entry[0] == "resume" else entry), baseline)
    text = "journal entry 83 (reserve): account 2 is held and was not resumed"
    assert (outcome.state, outcome.message) == (State.FAIL, text)
