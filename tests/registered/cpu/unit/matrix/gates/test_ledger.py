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
    found = {name: outcome.numbers[name] for name in ("pages", "verbs", "leaked", "wrong_stamps")}
    known = {"pages": run.memory.pages, "verbs": len(run.journal)}
    assert found == {**known, "leaked": 0, "wrong_stamps": 0}


@pytest.mark.parametrize(
    ("change", "leaked", "sentence"),
    [
        ({"free": -1}, 1, "1 of {0} KV pages leaked: neither free nor cached after the last request ended"),
        ({"accounts": 1}, 0, "1 accounts still hold KV pages after the last request ended"),
        (
            {"free": -1, "cached": 1},
            0,
            "replaying the journal gives (pages, free, cached, accounts) = ({0}, {1}, {2}, 0), the engine reports "
            "({0}, {3}, {4}, 0)",
        ),
    ],
)
def test_memory_at_rest_must_add_up(measured, change, leaked, sentence):
    found, memory = measured(CELL), measured(CELL).run.memory
    outcome = found.judge(
        GATE, memory=replace(memory, **{name: getattr(memory, name) + change[name] for name in change})
    )
    text = sentence.format(memory.pages, memory.free, memory.cached, memory.free - 1, memory.cached + 1)
    assert (outcome.state, outcome.message, outcome.blame) == (State.FAIL, text, None)
    assert outcome.numbers["leaked"] == leaked


def test_a_broken_journal_fails(measured):
    found, (first, opened, *entries) = measured(CELL), measured(CELL).run.journal
    outcome = found.judge(GATE, journal=[first, *entries])
    text = f"journal entry 1 (reserve): account {entries[0][1]} is not open"
    blame = Blame(next(one.name for one in found.run.served if one.account == entries[0][1]))
    assert (outcome.state, outcome.message, outcome.blame) == (State.FAIL, text, blame)
    old = found.verdict(GATE, journal=[opened, *entries])
    assert old.startswith("FAIL: a journal begins with its KV groups")


def test_the_engines_own_replay_of_its_journal_must_agree(measured, monkeypatch):
    found, run = measured(CELL), measured(CELL).run

    def broken(entries):
        raise LedgerError("law 1: page 3 has two owners")

    real = gate.replay(run.journal)
    real.groups[0].free.pop()
    monkeypatch.setattr(gate, "replay", lambda journal: real)
    pages = (run.memory.pages, run.memory.free, run.memory.cached, run.memory.accounts)
    text = f"gives (pages, free, cached, accounts) = {(pages[0], pages[1] - 1, *pages[2:])}, not {pages}"
    assert found.verdict(GATE) == f"FAIL: the engine's own replay {text}"
    monkeypatch.setattr(gate, "replay", broken)
    assert found.verdict(GATE) == "FAIL: the engine's own replay of the journal fails: law 1: page 3 has two owners"
    # Another engine allocates pages in its own order.
    assert found._replace(prepared=replace(found.prepared, subject="other")).verdict(GATE) == "PASS"


TURNS = "nextn.deepseek.s2.v2.p4.pair.stream"


@pytest.mark.parametrize(
    ("cell_id", "name"), [(TURNS, ".turn3"), (TURNS, ""), ("standalone.s3.v2.p4.m4.burst", ".again")]
)
def test_cached_tokens_are_those_of_the_first_admission(measured, altered, cell_id, name):
    found = measured(cell_id)
    assert found.verdict(GATE) == "PASS"
    index, answer = next(pair for pair in enumerate(found.run.answers) if pair[1].name.endswith(name))
    cached, prompt = answer.cached_tokens, len(answer.prompt_ids)
    assert (cached > 0) == bool(name)
    outcome = found.judge(GATE, altered(found.run, index, cached_tokens=cached + 1))
    text = f"reports {cached + 1} of {prompt} prompt tokens as cached, but its first admission reused {cached}"
    assert outcome.message == f"{answer.name} {text}"
    assert (outcome.state, outcome.blame) == (State.FAIL, Blame(answer.name))


def test_one_wrong_stamp_or_what_is_written_to_a_cached_page_is_red(measured):
    found = measured("eagle3.s3.k4.n8.v2.p4.pair")
    outcome = found.judge(GATE)
    assert outcome.state is State.PASS and outcome.numbers["watched"] > 10 > outcome.numbers["overwritten"] == 0
    watched = found.run.readback["pages_watched"]
    text = f"FAIL: 2 of {watched} cached pages were written to, which nobody may"
    assert found.verdict(GATE, readback={"pages_overwritten": 2}) == text
    first, second = found.run.served[:2]
    read = {"pages_overwritten": 2, "overwritten_of": [first.account]}
    assert found.verdict(GATE, readback=read) == f"{text}, first one of {first.name}"
    work = replace(found.run.work, stale=[first.id, second.id, 0])
    outcome = found.judge(GATE, evidence={"stamp.wrong": 1}, work=work)
    assert outcome.message.endswith(f" or position, first in a prefill step of {first.name}, {second.name}")
    outcome = found.judge(GATE, evidence={"stamp.wrong": 1}, work=replace(work, stale=[second.id]))
    assert outcome.message.endswith(f" or position, first in a round of {second.name}")
    *journal, last = found.run.journal
    owner = next(one.name for one in found.run.served if one.account == last[1])
    outcome = found.judge(GATE, journal=journal, memory=replace(found.run.memory, accounts=1))
    assert outcome.message == f"1 accounts still hold KV pages after the last request ended, of {owner}"
    taken = [(rid, page) for _, rid, _, pages in found.run.journal for page in (pages[0] if pages else ())]
    page = next(page for rid, page in reversed(taken) if rid == second.account)
    lost = replace(found.run.memory, free=found.run.memory.free - 1)
    outcome = found.judge(GATE, readback={"pages_lost": [page]}, memory=lost)
    assert outcome.message.endswith(f" leaked: neither free nor cached after the last request ended, of {second.name}")
    outcome = found.judge(GATE, evidence={"stamp.wrong": 1})
    text = f"1 of {outcome.numbers['stamps']} checked KV slots held the stamp of another request or position"
    assert (outcome.state, outcome.message, outcome.numbers["wrong_stamps"]) == (State.FAIL, text, 1)
    assert found.verdict(GATE, evidence={"stamp.checked": 0}) == "NOT MEASURED: no KV slot stamp was checked"
    assert found.verdict(GATE, journal=None) == "NOT MEASURED: the subject provides no ledger journal"
