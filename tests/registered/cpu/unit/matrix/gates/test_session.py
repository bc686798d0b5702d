"""The session gate: real turns pass, and each violation by a turn is named."""

import re
from dataclasses import replace
from itertools import pairwise

import pytest

from specmatrix.engine.core.schedule.scheduler import Scheduler
from specmatrix.matrix.cells.cell import Cell
from specmatrix.matrix.gates.gate import Blame, State
from specmatrix.matrix.gates.session import SessionGate
from specmatrix.matrix.run.requests import run_requests
from specmatrix.matrix.subjects.in_process import ReferenceSubject
from specmatrix.matrix.subjects.protocol import Run
from specmatrix.matrix.workloads.prepared_cell import PreparedCell, prepare

CELL = "eagle3.s5.v2.p16.pair.stream.abort_running"
PLAIN = "none.v1.pair.stream"
SNUG = "eagle3.s3.k4.n8.v2.p16.session_retract.pair.stream.length"
GATE = SessionGate()


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
    found = measured("standalone.qwen3.s5.n6.v1.nocache.c7.stream.temperature.stop_string.abort_running")
    text = r"FAIL: q\d+\.turn2 left 0 KV positions; expected \d+: its session is \d+ tokens too short"
    assert found.verdict(GATE) == "PASS" and re.fullmatch(text, found.verdict(GATE, resolved={"window": None}))


def test_one_position_too_few_is_named(measured):
    """sglang#22651: a session saved one token short."""
    found = measured(PLAIN)
    journal = list(found.run.journal)
    at, (operation, account, keep, pages) = next(pair for pair in enumerate(journal) if pair[1][0] == "hold")
    journal[at] = operation, account, keep - 1, pages
    text = f"journal entry {at} (hold, account 1): the freed pages are not those after position 100"
    assert found.verdict(GATE, journal=journal) == f"FAIL: {text}"


def moved(run, due, by, after):
    """The run whose journal has `by` more positions in the entry `due`, and `after` more in its account's next step."""
    done, journal = [], []
    for entry in run.journal:
        operation, account, positions, pages = entry
        step = done and account == due[1] and operation not in done and operation in ("reserve", "launch", "settle")
        more = by if entry is due else after if step else 0
        if entry is due or step:
            done.append(operation)
        journal.append((operation, account, positions + more, pages))
    return replace(run, journal=journal)


def test_a_turn_that_leaves_less_or_more_than_was_shown_is_named(measured):
    found = measured(SNUG)
    turn = next(answer for answer in found.run.answers if answer.retractions and ".turn2" in answer.name)
    first = next(answer for answer in found.run.answers if answer.name == turn.name.removesuffix(".turn2"))
    _, due, *_ = (entry for entry in found.run.journal if entry[:2] == ("hold", first.meta_info["id"]))
    keep, size = due[2], found.run.resolved["page_size"]
    assert (keep - 1) // size == keep // size, "the same pages are freed"
    outcome = found.judge(GATE, moved(found.run, due, -1, 1))
    text = (
        f"{turn.name} left {keep - 1} KV positions when it was retracted; expected {keep}: its session is 1 token too"
    )
    assert (outcome.state, outcome.message, outcome.blame) == (State.FAIL, f"{text} short", Blame(turn.name))
    found = measured(CELL)
    due = next(entry for entry in found.run.journal if entry[:2] == ("hold", 1))
    outcome = found.judge(GATE, moved(found.run, due, 2, -2))
    text = "q5 left 104 KV positions; expected 102: its session is 2 tokens too long"
    assert (outcome.state, outcome.message, outcome.blame) == (State.FAIL, text, Blame("q5"))


@pytest.mark.parametrize(("cell_id", "stale"), [(SNUG, 1), ("nextn.deepseek.s2.v2.p4.pair.stream", 2)])
def test_positions_whose_draft_kv_rests_on_other_tokens_are_computed_again(measured, cell_id, stale):
    found = measured(cell_id)
    assert found.verdict(GATE) == "PASS"
    due = next(entry for entry in found.run.journal if entry[0] == "resume")
    name = next(answer.name for answer in found.run.answers if answer.meta_info["id"] == due[1]) + ".turn2"
    outcome = found.judge(GATE, moved(found.run, due, -1, -1))
    text = f"{name} recomputes {stale - 1} inherited positions; the draft KV of {stale} is stale"
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
    outcome = GATE.judge(prepared, run, run)
    assert (outcome.state, outcome.message) == (State.PASS, "")
    assert (outcome.numbers["rolled_back"], outcome.numbers["resumed"]) == (4, 5)
    kept = Scheduler.kv_to_keep

    def less(self, request):
        return min(kept(self, request), self.ledger.accounts[request.account].committed)

    monkeypatch.setattr(Scheduler, "kv_to_keep", less)
    prepared, run = aborted_while_it_reads()
    outcome = GATE.judge(prepared, run, run)
    text = "q0.turn2 left 59 KV positions; expected 60: its session is 1 token too short"
    assert (outcome.state, outcome.message, outcome.blame) == (State.FAIL, text, Blame("q0.turn2"))
    assert outcome.numbers["wrong"] == 4


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


def test_without_a_journal_or_a_continuation_nothing_is_measured(measured):
    found = measured(CELL)
    assert found.verdict(GATE, journal=None) == "NOT MEASURED: the subject provides no ledger journal"
    plain = tuple(replace(request, session=None) for request in found.run.requests)
    firsts = tuple(request for request in found.run.requests if request.session.follows is None)
    for requests in (plain, firsts, (*firsts, *plain)):
        assert found.verdict(GATE, requests=requests) == "NOT MEASURED: no session request continued another"


def test_a_turn_that_was_aborted_in_the_queue_leaves_no_trace(measured):
    found, run = measured(PLAIN), measured(PLAIN).run
    place, answer = next(pair for pair in enumerate(run.answers) if pair[1].name == "q5.turn2")
    request = replace(run.requests[place], name="q5.turn2b", abort_after=0)
    requests = (*run.requests[:place], request, *run.requests[place:])

    def judged(*ids: int):
        queued = replace(answer, name=request.name, output_ids=ids, finish="abort", cached_tokens=0)
        return found.judge(GATE, requests=requests, answers=(*run.answers[:place], queued, *run.answers[place:]))

    assert judged() == found.judge(GATE) and judged(5).state is State.FAIL


def test_a_turn_without_an_account_is_named(measured, altered):
    found = measured(PLAIN)
    astray = altered(found.run, 0, meta_info={**found.run.answers[0].meta_info, "id": 99})
    outcome = found.judge(GATE, astray)
    text = "q5 produced tokens without a ledger account"
    assert (outcome.state, outcome.message, outcome.blame) == (State.FAIL, text, Blame("q5"))
    assert outcome.numbers["wrong"] == sum(answer.name.startswith("q5") for answer in found.run.answers) == 4


def test_a_broken_journal_is_named(measured):
    verdict = measured(CELL).verdict(GATE, journal=[e for e in measured(CELL).run.journal if e[0] != "resume"])
    assert verdict == "FAIL: journal entry 83 (reserve): account 2 is held and was not resumed"
