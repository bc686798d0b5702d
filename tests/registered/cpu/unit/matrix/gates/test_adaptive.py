"""The gate of adaptive steps: real runs pass, and each entry that differs from the rule is named."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from specmatrix.matrix.cells.cell import Cell
from specmatrix.matrix.gates.adaptive import AdaptiveGate, wave_not_batched
from specmatrix.matrix.gates.gate import State
from specmatrix.matrix.gates.registry import GATES
from specmatrix.matrix.subjects.protocol import Observation, Run, Trace
from specmatrix.matrix.workloads.prepared_cell import prepare

CELL = "eagle3.tiers.v2.ramp.length"


def changed(run: Run, index: int, change: Callable[[Observation], Observation]) -> Run:
    """The run with one observation changed."""
    assert run.trace is not None
    seen = list(run.trace.observations)
    seen[index] = change(seen[index])
    return replace(run, trace=replace(run.trace, observations=tuple(seen)))


def judged(run: Run, baseline: Run, cell_id: str = CELL) -> str:
    outcome = AdaptiveGate().judge(prepare(Cell.from_id(cell_id)), run, baseline)
    assert outcome.state is State.FAIL
    return outcome.message


def test_it_judges_adaptive_cells_of_the_table():
    for text, applies in (("eagle3.tiers", True), ("eagle.s3.k1.n4.flat", True), ("eagle3", False)):
        assert AdaptiveGate().applies(Cell.from_id(text)) == applies
    for static in ("standalone.tiers", "eagle3.s3.k4.n8.tiers", "ngram.tiers", "dflash.tiers", "none.tiers"):
        assert not AdaptiveGate().applies(Cell.from_id(static))
    assert any(isinstance(gate, AdaptiveGate) for gate in GATES)


@pytest.mark.parametrize(
    "cell_id",
    [
        CELL,
        pytest.param("eagle3.tiers.v1.ramp.length", marks=pytest.mark.nightly),
        pytest.param("eagle3.table.v2.ramp.length", marks=pytest.mark.nightly),
        pytest.param("eagle3.flat.v2.pair", marks=pytest.mark.nightly),
        pytest.param("eagle3.tiers.v2.c7.tight.mixed_lengths", marks=pytest.mark.nightly),
        "eagle3.tiers.v2.mixed_lengths.stream.abort_running",
    ],
)
def test_real_runs_pass(measured, cell_id):
    prepared, run, baseline = measured(cell_id)
    outcome = AdaptiveGate().judge(prepared, run, baseline)
    assert (outcome.state, outcome.message) == (State.PASS, "")
    assert outcome.numbers["observations"] > 5 and outcome.numbers["deviation"] < 1e-12


def test_waves_move_the_slots(measured):
    prepared, run, baseline = measured(CELL)
    numbers = AdaptiveGate().judge(prepared, run, baseline).numbers
    assert numbers["rounds"] == len(run.trace.rounds) and numbers["widths"] == "2, 3, 4, 5"
    assert numbers["observations"] == numbers["replayed"] == len(run.trace.observations)
    assert numbers["slots"] >= 2 and min(numbers["up"], numbers["down"], numbers["by_batch"]) >= 2


def test_every_wave_runs_together():
    cell = Cell.from_id(CELL)
    assert wave_not_batched(cell, [1, 8, 4, 32, 13, 8, 3, 1]) == ""
    assert (
        wave_not_batched(cell, [1, 8, 24, 8, 1])
        == "the 32 requests of wave 2 never share a verify round; the largest batch is 24"
    )
    assert (
        wave_not_batched(cell, [1, 8, 32, 8])
        == "the 1 requests of wave 4 never share a verify round; the largest batch is 32"
    )
    for apart in (cell._replace(slots="4"), cell._replace(prefill_chunk="7"), cell._replace(batch="burst")):
        assert wave_not_batched(apart, [4]) == ""


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (
            lambda seen: replace(seen, width=seen.width + 1),
            "matches no round that may have been read at this point",
        ),
        (lambda seen: replace(seen, slot=3), "is counted for slot 3 (smallest batch size); it belongs to slot 4"),
        (lambda seen: replace(seen, ema=seen.ema + 1e-6), "from the slot's rounds"),
        (lambda seen: replace(seen, correct=(9, *seen.correct[1:])), "has impossible accepted drafts [9,"),
        (lambda seen: replace(seen, correct=(*seen.correct[1:], 0)), "from the slot's rounds"),
        (lambda seen: replace(seen, decision="between"), "decided 'between'"),
        (lambda seen: replace(seen, steps=seen.steps + 1), "steps; expected"),
    ],
)
def test_an_entry_that_the_rule_does_not_give_is_named(measured, change, sentence):
    _, run, baseline = measured(CELL)
    index = next(i for i, seen in enumerate(run.trace.observations) if seen.slot == 4 and sum(seen.correct) > 0)
    new = change(run.trace.observations[index])
    message = judged(changed(run, index, change), baseline)
    assert message.startswith(f"observation {index} ({new.batch_size} requests, width {new.width}) ")
    assert sentence in message


def test_a_depth_that_waits_for_the_next_observation_is_named(measured):
    _, run, baseline = measured(CELL)
    rounds = list(run.trace.rounds)
    place = next(i for i in range(1, len(rounds)) if rounds[i][1] != rounds[i - 1][1])
    rounds[place] = (rounds[place][0], rounds[place - 1][1])
    message = judged(replace(run, trace=replace(run.trace, rounds=tuple(rounds))), baseline)
    size, width = rounds[place]
    slot, steps = max(least for least in (1, 2, 4) if least <= size), run.trace.rounds[place][1] - 1
    assert message == f"round {place} of {size} requests has width {width}; slot {slot} is at {steps} steps"


def test_the_journal_must_hold_the_same_rounds_with_room_for_the_widest(measured):
    _, run, baseline = measured(CELL)
    narrow = [
        (operation, at, 3 if (operation, number) == ("reserve", 5) else number, pages)
        for operation, at, number, pages in run.journal
    ]
    message = judged(replace(run, journal=narrow), baseline)
    text = (
        "verify round 0 in the journal has 1 request of width 4 with 3 positions reserved; expected: 1 request of width"
    )
    assert message == f"{text} 4 with 5 positions reserved"


def test_the_answers_must_show_the_same_rounds(measured, altered):
    _, run, baseline = measured(CELL)
    widths = run.answers[3].round_widths
    wrong = altered(run, 3, round_widths=(widths[0] + 1, *widths[1:]))
    due = widths[0], run.answers[3].accept_lengths[0]
    seen = sum(pair == due for a in run.answers for pair in zip(a.round_widths, a.accept_lengths, strict=True))
    assert judged(wrong, baseline) == (
        f"the controller observed {seen} rounds of width {due[0]} with {due[1] - 1} accepted drafts; the answers "
        f"report {seen - 1}"
    )
    short = altered(run, 3, round_widths=widths[1:])
    assert (
        judged(short, baseline)
        == f"{run.answers[3].name} reports {len(widths) - 1} round widths for {len(widths)} verify rounds"
    )


def test_the_counters_must_agree_with_the_trace(measured, with_evidence):
    _, run, baseline = measured(CELL)
    count = run.evidence["adaptive.batch_switch"]
    message = judged(with_evidence(run, {"adaptive.batch_switch": count + 1}), baseline)
    assert message == f"counter adaptive.batch_switch is {count + 1}; the trace implies {count}"
    silent = replace(run, evidence={name: n for name, n in run.evidence.items() if name != "adaptive.batch_switch"})
    assert judged(silent, baseline) == f"counter adaptive.batch_switch is 0; the trace implies {count}"


def test_a_second_run_of_a_session_is_judged_from_the_first_ones_end(measured):
    """Counters and answers cover this run only, trace and journal the whole session."""
    _, run, baseline = measured(CELL)
    silent = replace(run, earlier=run.trace, answers=(), evidence={})
    outcome = AdaptiveGate().judge(prepare(Cell.from_id(CELL)), silent, baseline)
    numbers = [outcome.numbers[name] for name in ("rounds", "observations", "replayed", "slots", "up", "down")]
    assert (outcome.state, numbers) == (State.PASS, [0, 0, len(run.trace.observations), 0, 0, 0])


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
    prepared, run, baseline = measured(CELL)
    outcome = AdaptiveGate().judge(prepared, replace(run, **change), baseline)
    assert (outcome.state, outcome.message) == (State.NOT_MEASURED, sentence)
