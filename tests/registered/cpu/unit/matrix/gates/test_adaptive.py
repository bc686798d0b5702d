"""The gate of adaptive steps: real runs pass, and each entry that differs from the rule is named."""

from dataclasses import replace
from types import SimpleNamespace

import pytest

from specmatrix.engine.core.draft import depth
from specmatrix.matrix.cells.cell import Cell
from specmatrix.matrix.gates.adaptive import AdaptiveGate, wave_not_batched
from specmatrix.matrix.gates.gate import State
from specmatrix.matrix.subjects.observations import Trace
from specmatrix.matrix.subjects.protocol import Run
from specmatrix.matrix.workloads.prepared_cell import prepare

CELL = "eagle3.tiers.v2.ramp.length"
GATE = AdaptiveGate()


def judged(run: Run, baseline: Run, cell_id: str = CELL) -> str:
    outcome = GATE.judge(prepare(Cell.from_id(cell_id)), run, baseline)
    assert outcome.state is State.FAIL
    return outcome.message


def test_it_judges_adaptive_cells_of_the_table():
    assert all(GATE.applies(Cell.from_id(text)) for text in ("eagle3.tiers", "eagle.s3.k1.n4.flat"))
    for static in ("eagle3", "standalone.tiers", "eagle3.s3.k4.n8.tiers", "ngram.tiers", "dflash.tiers", "none.tiers"):
        assert not GATE.applies(Cell.from_id(static))


@pytest.mark.parametrize("cell_id", [CELL, "eagle3.tiers.v2.mixed_lengths.stream.abort_running"])
def test_real_runs_pass(measured, cell_id):
    outcome = measured(cell_id).judge(GATE)
    assert (outcome.state, outcome.message) == (State.PASS, "")
    assert outcome.numbers["observations"] > 5 and outcome.numbers["deviation"] < 1e-12


def test_waves_move_the_slots(measured):
    run, numbers = measured(CELL).run, measured(CELL).judge(GATE).numbers
    assert numbers["rounds"] == len(run.trace.rounds) and numbers["widths"] == "1, 2, 3, 4, 5"
    assert numbers["observations"] == numbers["replayed"] == len(run.trace.observations)
    assert numbers["slots"] >= 2 and min(numbers["up"], numbers["down"], numbers["by_batch"]) >= 2


def test_random_rounds_show_what_no_workload_met(measured, monkeypatch):
    monkeypatch.setattr(depth, "math", SimpleNamespace(ceil=round))
    assert measured(CELL).judge(GATE).message.startswith("in random rounds ")
    monkeypatch.setattr(depth, "math", SimpleNamespace(ceil=lambda number: 1 / 0))
    assert "ZeroDivisionError" in measured(CELL).judge(GATE).message


def test_every_wave_runs_together():
    cell, text = Cell.from_id(CELL), "the {} requests of wave {} never share a verify round; the largest batch is {}"
    assert wave_not_batched(cell, [1, 8, 4, 32, 13, 8, 3, 1]) == ""
    assert wave_not_batched(cell, [1, 8, 24, 8, 1]) == text.format(32, 2, 24)
    assert wave_not_batched(cell, [1, 8, 32, 8]) == text.format(1, 4, 32)
    for apart in (cell._replace(slots="4"), cell._replace(prefill_chunk="7"), cell._replace(batch="burst")):
        assert wave_not_batched(apart, [4]) == ""


def test_a_depth_that_waits_for_the_next_observation_is_named(measured):
    found, rounds = measured(CELL), list(measured(CELL).run.trace.rounds)
    place = next(i for i in range(1, len(rounds)) if rounds[i][1] != rounds[i - 1][1])
    (size, steps), width = rounds[place], rounds[place - 1][1]
    rounds[place] = (size, width)
    slot = max(least for least in (1, 2, 4) if least <= size)
    text = f"round {place} of {size} requests has width {width}; slot {slot} is at {steps - 1} steps"
    assert found.verdict(GATE, trace=replace(found.run.trace, rounds=tuple(rounds))) == f"FAIL: {text}"


def test_the_journal_must_hold_the_same_rounds_with_room_for_the_widest(measured):
    _, run, baseline = measured(CELL)
    narrow = [(op, at, 3 if (op, n) == ("reserve", 5) else n, pages) for op, at, n, pages in run.journal]
    text = (
        "verify round 0 in the journal has 1 request of width 4 with 3 positions reserved; expected: 1 request of width"
    )
    assert judged(replace(run, journal=narrow), baseline) == f"{text} 4 with 5 positions reserved"


def test_the_answers_must_show_the_same_rounds(measured, altered):
    _, run, baseline = measured(CELL)
    answer, widths = run.answers[3], run.answers[3].round_widths
    due = widths[0], answer.accept_lengths[0]
    seen = sum(pair == due for a in run.answers for pair in zip(a.round_widths, a.accept_lengths, strict=True))
    text = (
        f"the controller observed {seen} rounds of width {due[0]} with {due[1] - 1} accepted drafts; the answers report"
    )
    assert judged(altered(run, 3, round_widths=(widths[0] + 1, *widths[1:])), baseline) == f"{text} {seen - 1}"
    text = f"{answer.name} reports {len(widths) - 1} round widths for {len(widths)} verify rounds"
    assert judged(altered(run, 3, round_widths=widths[1:]), baseline) == text


def test_the_counters_must_agree_with_the_trace(measured):
    found, name = measured(CELL), "adaptive.batch_switch"
    count, silent = found.run.evidence[name], {key: n for key, n in found.run.evidence.items() if key != name}
    for evidence, told in (({**silent, name: count + 1}, count + 1), (silent, 0)):
        verdict = found.verdict(GATE, replace(found.run, evidence=evidence))
        assert verdict == f"FAIL: counter {name} is {told}; the trace implies {count}"


def test_a_second_run_of_a_session_is_judged_from_the_first_ones_end(measured):
    """Counters and answers cover this run only, trace and journal the whole session."""
    found, trace = measured(CELL), measured(CELL).run.trace
    outcome = found.judge(GATE, replace(found.run, evidence={}), earlier=trace, answers=())
    numbers = [outcome.numbers[name] for name in ("rounds", "observations", "replayed", "slots", "up", "down")]
    assert (outcome.state, numbers) == (State.PASS, [0, 0, len(trace.observations), 0, 0, 0])


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"trace": None}, "the subject provides no trace of adaptive steps"),
        ({"journal": None}, "the subject provides no ledger journal"),
        ({"trace": Trace((), ())}, "the adaptive-steps trace holds no observed round"),
        ({"trace": Trace(((1, 4),), (), 3)}, "the adaptive-steps trace no longer holds its first 3 rounds"),
    ],
)
def test_missing_evidence_is_not_measured(measured, change, sentence):
    assert measured(CELL).verdict(GATE, **change) == f"NOT MEASURED: {sentence}"
