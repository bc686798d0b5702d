from dataclasses import replace

import pytest

from specmatrix.errors import LedgerError
from specmatrix.matrix.gates import ledger as gate
from specmatrix.matrix.gates.gate import Blame, State
from specmatrix.matrix.gates.ledger import LedgerGate

CELL = "eagle3.s3.k4.n8.v2.p16.pair"
GATE = LedgerGate()


def test_a_sound_run_passes(measured):
    prepared, run, baseline = measured(CELL)
    outcome = GATE.judge(prepared, run, baseline)
    assert outcome.state is State.PASS and outcome.numbers["stamps"] == run.evidence["stamp.checked"] > 0
    shared = sum(len(pages[0]) for operation, _, _, pages in run.journal if operation == "open" and pages)
    found = {name: outcome.numbers[name] for name in ("pages", "verbs", "shared", "leaked", "wrong_stamps")}
    known = {"pages": run.memory.pages, "verbs": len(run.journal), "shared": shared}
    assert found == {**known, "leaked": 0, "wrong_stamps": 0}


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"free": -1}, "1 of {0} KV pages leaked: neither free nor cached after the last request ended"),
        ({"accounts": 1}, "1 accounts still hold KV pages after the last request ended"),
        (
            {"free": -1, "cached": 1},
            "replaying the journal gives (pages, free, cached, accounts) = ({0}, {1}, {2}, 0), the engine reports "
            "({0}, {3}, {4}, 0)",
        ),
    ],
)
def test_memory_at_rest_must_add_up(measured, change, sentence):
    prepared, run, baseline = measured(CELL)
    values = {name: getattr(run.memory, name) + by for name, by in change.items()}
    outcome = GATE.judge(prepared, replace(run, memory=replace(run.memory, **values)), baseline)
    memory = run.memory
    text = sentence.format(memory.pages, memory.free, memory.cached, memory.free - 1, memory.cached + 1)
    assert (outcome.state, outcome.message, outcome.blame) == (State.FAIL, text, None)
    assert outcome.numbers["leaked"] == (0 if "cached" in change else -change.get("free", 0))


def test_a_broken_journal_fails(measured):
    prepared, run, baseline = measured(CELL)
    entries = run.journal
    outcome = GATE.judge(prepared, replace(run, journal=[entries[0], *entries[2:]]), baseline)
    text = f"journal entry 1 (reserve): account {entries[2][1]} is not open"
    assert (outcome.state, outcome.message) == (State.FAIL, text)
    assert outcome.blame == Blame(next(one.name for one in run.served if one.account == entries[2][1]))
    old = GATE.judge(prepared, replace(run, journal=entries[1:]), baseline)
    assert old.state is State.FAIL and old.message.startswith("a journal begins with its KV groups")


def test_the_engines_own_replay_of_its_journal_must_agree(measured, monkeypatch):
    prepared, run, baseline = measured(CELL)

    def outcome():
        return GATE.judge(prepared, run, baseline)

    def broken(entries):
        raise LedgerError("law 1: page 3 has two owners")

    real = gate.replay(run.journal)
    real.groups[0].free.pop()
    monkeypatch.setattr(gate, "replay", lambda journal: real)
    pages = (run.memory.pages, run.memory.free, run.memory.cached, run.memory.accounts)
    found = (pages[0], pages[1] - 1, *pages[2:])
    text = f"the engine's own replay gives (pages, free, cached, accounts) = {found}, not {pages}"
    assert (outcome().state, outcome().message) == (State.FAIL, text)
    monkeypatch.setattr(gate, "replay", broken)
    text = "the engine's own replay of the journal fails: law 1: page 3 has two owners"
    assert (outcome().state, outcome().message) == (State.FAIL, text)
    # Another engine allocates pages in its own order.
    foreign = GATE.judge(replace(prepared, subject="other"), run, baseline)
    assert foreign.state is State.PASS


TURNS = "nextn.deepseek.s2.v2.p4.pair.stream"


@pytest.mark.parametrize(
    ("cell_id", "name"), [(TURNS, ".turn3"), (TURNS, ""), ("standalone.s3.v2.p4.m4.burst", ".again")]
)
def test_cached_tokens_are_those_of_the_first_admission(measured, altered, cell_id, name):
    prepared, run, baseline = measured(cell_id)
    assert GATE.judge(prepared, run, baseline).state is State.PASS
    index = next(i for i, answer in enumerate(run.answers) if answer.name.endswith(name))
    found, prompt = run.answers[index].cached_tokens, len(run.answers[index].prompt_ids)
    assert (found > 0) == bool(name)
    outcome = GATE.judge(prepared, altered(run, index, cached_tokens=found + 1), baseline)
    assert outcome.state is State.FAIL and outcome.message == (
        f"{run.answers[index].name} reports {found + 1} of {prompt} prompt tokens as cached, but its first admission "
        f"reused {found}"
    )
    assert outcome.blame == Blame(run.answers[index].name)


def test_one_wrong_stamp_fails(measured, with_evidence):
    prepared, run, baseline = measured(CELL)
    outcome = GATE.judge(prepared, with_evidence(run, {"stamp.wrong": 1}), baseline)
    checked = outcome.numbers["stamps"]
    text = f"1 of {checked} checked KV slots held the stamp of another request or position"
    assert (outcome.state, outcome.message, outcome.numbers["wrong_stamps"]) == (State.FAIL, text, 1)


def test_without_stamps_or_journal_nothing_is_measured(measured, with_evidence):
    prepared, run, baseline = measured(CELL)
    unstamped = GATE.judge(prepared, with_evidence(run, {"stamp.checked": 0}), baseline)
    assert (unstamped.state, unstamped.message) == (State.NOT_MEASURED, "no KV slot stamp was checked")
    silent = GATE.judge(prepared, replace(run, journal=None), baseline)
    assert (silent.state, silent.message) == (State.NOT_MEASURED, "the subject provides no ledger journal")


def test_what_is_written_to_a_cached_page_is_red(measured):
    prepared, run, baseline = measured("eagle3.s3.k4.n8.v2.p4.pair")
    outcome = GATE.judge(prepared, run, baseline)
    assert outcome.state is State.PASS and outcome.numbers["watched"] > 10 > outcome.numbers["overwritten"] == 0
    written = replace(run, readback={**run.readback, "pages_overwritten": 2})
    outcome = GATE.judge(prepared, written, baseline)
    text = f"2 of {run.readback['pages_watched']} cached pages were written to, which nobody may"
    assert (outcome.state, outcome.message) == (State.FAIL, text)
