"""Rounds of changing width, against an alignment written by hand."""

import pytest

from specmatrix.matrix.gates.round_alignment import first_reach_mismatch, oracle_rounds
from specmatrix.matrix.subjects.protocol import Answer

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
