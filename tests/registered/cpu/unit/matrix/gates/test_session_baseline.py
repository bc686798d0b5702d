"""Rounds of turns against those of the same drafter after a prefill of their whole history."""

from dataclasses import replace

import pytest

from specmatrix.matrix.cells.cell import Cell
from specmatrix.matrix.gates.acceptance import AcceptanceGate
from specmatrix.matrix.gates.gate import State
from specmatrix.matrix.gates.session import first_reach_mismatch, has_session_baseline, mismatching_turns, oracle_rounds
from specmatrix.matrix.subjects.protocol import Answer, Memory, Run
from specmatrix.matrix.workloads.prepared_cell import prepare
from specmatrix.matrix.workloads.request import RequestSpec


def test_turns_that_find_kv_to_draft_from_have_a_session_baseline():
    aborted = "nextn.deepseek.s2.v2.session_retract.pair.stream.length.abort_running"
    have = ("eagle3.s3.pair.stream", aborted, "eagle3.pair.branch.mixed")
    assert all(has_session_baseline(Cell.from_id(cell)) for cell in have)
    lack = ("eagle3.nocache.pair.branch", "eagle3.tight.pair.stream", "eagle3.tiers.pair.stream", "ngram.pair.stream")
    for cell in (*lack, "eagle3.pair.stream.temperature", "none.pair.stream", "eagle3.pair"):
        assert not has_session_baseline(Cell.from_id(cell))
    cell = Cell.from_id("eagle3.s3.k4.n8.v2.p16.c7.session_retract.pair.stream.length")
    assert cell.session_baseline.id == "eagle3.s3.k4.n8.v1.nocache", "the drafter's shape and nothing else"


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
    assert numbers == {"turns": 1, "turns_left": 1} and text.startswith(
        "1 of 1 turns differ in acceptance length from "
    )
    assert text.endswith("; first: q0.turn2 in verify round 2")
    assert mismatching_turns(run((3, 1, 2), 0.8), run((3, 2, 1), 0.8))[0]["turns"] == 0


def test_the_gate_is_red_without_a_session_baseline_and_where_a_turn_leaves_it(measured, altered):
    found, gate = measured("eagle3.s5.v2.p16.pair.stream.abort_running"), AcceptanceGate()
    seen = found.run
    text = "NOT MEASURED: there is no run of the turns with their whole history prefilled at once"
    assert found.verdict(gate) == text and found.verdict(gate, session_baseline=seen) == "PASS"
    index, turn = next(
        pair for pair in enumerate(seen.answers) if pair[1].name.endswith(".turn3") and len(pair[1].accept_lengths) > 2
    )
    other = altered(seen, index, accept_lengths=(turn.accept_lengths[0] + 1, *turn.accept_lengths[1:]))
    outcome = found.judge(gate, session_baseline=other)
    text = (
        f"1 of {outcome.numbers['turns']} turns differ in acceptance length from their whole history prefilled at "
        f"once; first: {turn.name} in verify round 1"
    )
    assert (outcome.state, outcome.message, outcome.numbers["turns_left"]) == (State.FAIL, text, 1)
    # In bf16 a turn may leave it at a tie; a first turn that leaves the oracle is named before.
    outcome = found.judge(gate, resolved={"dtype": "bfloat16"}, session_baseline=other)
    assert (outcome.state, outcome.message, outcome.numbers["turns_left"]) == (State.PASS, "", 1)
    plain = found._replace(prepared=prepare(Cell.from_id("eagle3.s5.v2.p16.pair.stream")))
    cut = altered(other, 0, accept_lengths=(1,) * sum(seen.answers[0].accept_lengths))
    first = plain.judge(gate, cut, session_baseline=seen)
    assert first.state is State.FAIL and first.numbers["turns_left"] == 1 and "the oracle has" in first.message


# Behind 0, 1, 2, .. tokens so many drafts in a row are right.
REACH = (3, 2, 1, 0, 5, 4, 3, 2, 1, 0)


@pytest.mark.parametrize(
    ("widths", "emitted", "rounds"),
    [
        ((8, 8), 10, (4, 6)),
        ((3, 2, 2), 6, (3, 1, 2)),  # two of three fit at 0, nothing is right at 3
        ((2,), 5, (2, 2, 2)),  # the only width goes on
        ((8, 8, 8), 99, (4, 6)),  # the oracle knows 10 places
        ((), 5, ()),
    ],
)
def test_the_oracle_takes_rounds_of_the_same_widths(widths, emitted, rounds):
    assert oracle_rounds(REACH, widths, emitted) == rounds


@pytest.mark.parametrize(
    ("rounds", "widths", "starts", "place"),
    [
        ((3, 1, 5), (3, 8, 4), (1, 4, 5), 2),
        ((3, 1, 4, 2), (3, 8, 4, 8), (1, 4, 5, 9), None),
        ((4, 6, 2, 9), (8, 8, 8, 8), (1, 5, 11, 13), None),  # the oracle knows nothing of the last two
        # After three tokens of rounds a prefill gave one more: the next round starts at position 4, not 3.
        ((3, 6), (3, 8), (1, 5), None),
        ((3, 3), (8, 3), (2, 5), None),  # a retraction before the first round
    ],
)
def test_the_first_other_round_is_found(rounds, widths, starts, place):
    assert first_reach_mismatch(rounds, widths, REACH, starts) == place


@pytest.mark.parametrize(
    ("retractions", "outside", "starts", "moves"),
    [
        (0, (), (1, 4, 6), 0),
        (0, (0,), (1, 4, 6), 0),
        (1, (), (1, 4, 6), 1),  # where its prefill's token is, is unknown
        (1, (0, 4), (1, 5, 7), 1),
        (0, (0, 1, 2, 6), (3, 7, 9), 3),  # mixed steps before the first round and behind it
        (0, (0, 6, 7), (1, 4, 8), 2),
    ],
)
def test_tokens_of_no_round_move_the_rounds_behind_them(retractions, outside, starts, moves):
    answer = Answer("q", (), (), "", "length", None, 0, (3, 2, 1), retractions=retractions, outside_rounds=outside)
    assert (answer.round_starts, answer.moves) == (starts, moves)
