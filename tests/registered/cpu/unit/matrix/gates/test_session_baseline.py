"""Rounds of turns against those of the same drafter after a prefill of their whole history."""

from dataclasses import replace

import pytest

from specmatrix.matrix.cells.cell import Cell
from specmatrix.matrix.gates.acceptance import AcceptanceGate
from specmatrix.matrix.gates.gate import State
from specmatrix.matrix.gates.session_baseline import has_session_baseline, mismatching_turns
from specmatrix.matrix.run.runner import reference_runner
from specmatrix.matrix.subjects.protocol import Answer, Memory, Run
from specmatrix.matrix.workloads.prepared_cell import prepare
from specmatrix.matrix.workloads.request import RequestSpec


@pytest.mark.parametrize(
    ("cell_id", "has"),
    [
        ("eagle3.s3.pair.stream", True),
        ("nextn.deepseek.s2.v2.session_retract.pair.stream.length.abort_running", True),
        ("eagle3.pair.branch.mixed", True),
        ("eagle3.nocache.pair.branch", False),
        ("eagle3.tight.pair.stream", False),
        ("eagle3.tiers.pair.stream", False),
        ("eagle3.pair.stream.temperature", False),
        ("ngram.pair.stream", False),
        ("none.pair.stream", False),
        ("eagle3.pair", False),
    ],
)
def test_turns_that_find_kv_to_draft_from_have_a_session_baseline(cell_id, has):
    assert has_session_baseline(Cell.from_id(cell_id)) == has


def test_the_session_baseline_has_the_drafters_shape_and_nothing_else():
    cell = Cell.from_id("eagle3.s3.k4.n8.v2.p16.c7.session_retract.pair.stream.length")
    assert cell.session_baseline.id == "eagle3.s3.k4.n8.v1.nocache"


def run(lengths, temperature=0.0):
    """A run of one turn with these rounds."""
    request = RequestSpec("q0.turn2", "Why?", 9, temperature=temperature)
    answer = Answer("q0.turn2", (1,), (1,), "", "length", None, 0, lengths)
    first = replace(answer, name="q0", accept_lengths=(9,))
    requests = (replace(request, name="q0"), request)
    return Run(requests, (first, answer), {}, {}, {}, Memory(0, 0, 0, 0), None, 0.0)


def test_a_turn_that_accepts_less_is_named_and_first_turns_are_the_oracles():
    assert mismatching_turns(run((3, 2, 1)), run((3, 2, 1))) == ({"turns": 1, "turns_left": 0}, "")
    numbers, text = mismatching_turns(run((3, 1, 2)), run((3, 2, 1)))
    assert numbers == {"turns": 1, "turns_left": 1}
    assert text == (
        "1 of 1 turns differ in acceptance length from their whole history prefilled at once; first: "
        "q0.turn2 in verify round 2"
    )
    assert mismatching_turns(run((3, 1, 2), 0.8), run((3, 2, 1), 0.8))[0]["turns"] == 0


def test_the_gate_is_red_without_a_session_baseline_and_where_a_turn_leaves_it(measured):
    prepared, seen, baseline = measured("eagle3.s5.v2.p16.pair.stream.abort_running")
    gate = AcceptanceGate()
    alone = gate.judge(prepared, seen, baseline)
    assert (alone.state, alone.message) == (
        State.NOT_MEASURED,
        "there is no run of the turns with their whole history prefilled at once",
    )
    assert gate.judge(prepared, replace(seen, session_baseline=seen), baseline).state is State.PASS
    index = next(i for i, a in enumerate(seen.answers) if a.name.endswith(".turn3") and len(a.accept_lengths) > 2)
    answers = list(seen.answers)
    cut = replace(answers[0], accept_lengths=(1,) * sum(answers[0].accept_lengths))
    more = answers[index].accept_lengths
    answers[index] = replace(answers[index], accept_lengths=(more[0] + 1, *more[1:]))
    outcome = gate.judge(prepared, replace(seen, session_baseline=replace(seen, answers=tuple(answers))), baseline)
    text = (
        f"1 of {outcome.numbers['turns']} turns differ in acceptance length from their whole history prefilled at "
        f"once; first: {answers[index].name} in verify round 1"
    )
    assert (outcome.state, outcome.message, outcome.numbers["turns_left"]) == (State.FAIL, text, 1)
    # In bf16 a turn may leave it at a tie; a first turn that leaves the oracle is named before.
    other = replace(seen, answers=tuple(answers))
    half = replace(seen, resolved={**seen.resolved, "dtype": "bfloat16"}, session_baseline=other)
    outcome = gate.judge(prepared, half, baseline)
    assert (outcome.state, outcome.message, outcome.numbers["turns_left"]) == (State.PASS, "", 1)
    plain = prepare(Cell.from_id("eagle3.s5.v2.p16.pair.stream"))
    first = gate.judge(plain, replace(other, session_baseline=seen, answers=(cut, *other.answers[1:])), baseline)
    assert first.state is State.FAIL and first.numbers["turns_left"] == 1 and "the oracle has" in first.message


@pytest.mark.nightly
def test_the_runner_brings_the_session_baseline():
    runner = reference_runner(0)
    record = runner.run_cell(Cell.from_id("nextn.deepseek.s2.v2.p4.pair.stream"))
    acceptance = next(gate for gate in record.gates if gate.name == "acceptance")
    assert record.state == "PASS" and acceptance.numbers["turns"] > 1 and acceptance.numbers["turns_left"] == 0
    assert all(start.algorithm == "none" for start, _ in runner.baselines.engines)
