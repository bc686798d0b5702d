"""Rounds of changing width, against an alignment written by hand."""

import pytest

from specmatrix.matrix.gates.round_alignment import changed_repeats, first_reach_mismatch, oracle_rounds
from specmatrix.matrix.subjects.protocol import Served

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
    ("rounds", "widths", "retractions", "place"),
    [
        ((2, 3), (3, 8), 0, 0),
        ((3, 2), (3, 8), 0, 1),
        ((4, 1), (3, 8), 0, 0),
        ((3, 1, 5), (3, 8, 4), 0, 2),
        ((3, 1, 4, 2), (3, 8, 4, 8), 0, None),
        ((4, 6, 2, 9), (8, 8, 8, 8), 0, None),  # the oracle knows nothing of the last two
        # After three tokens of rounds a prefill gave one more: the next round starts at position 4, not 3.
        ((3, 6), (3, 8), 0, 1),
        ((3, 6), (3, 8), 1, None),
        ((3, 4), (3, 8), 1, 1),
        ((3, 3), (8, 3), 1, None),  # a retraction before the first round
    ],
)
def test_the_first_other_round_is_found(rounds, widths, retractions, place):
    assert first_reach_mismatch(rounds, widths, REACH, retractions) == place


@pytest.mark.parametrize(
    ("tokens", "rounds", "retractions", "compared", "place"),
    [
        ((1, 2, 3, 4, 5, 6, 7), (2, 3, 9), 0, 2, None),
        ((1, 2, 3, 4, 5, 6, 7), (2, 1, 2, 9), 0, 2, 1),
        ((1, 2, 3, 4, 5, 6, 7), (3, 1, 2), 0, 1, 0),
        ((1, 2, 3, 4, 5, 6, 7), (3, 1, 2), 1, 0, None),  # a prefill gave a token outside of any round
        ((1, 2, 3, 8, 5, 6, 7), (2, 1, 2, 9), 0, 1, None),  # another token from the second round on
        ((1, 2, 3), (2,), 0, 0, None),  # its only round may be cut
        ((1, 2, 3, 4, 5), (2, 2), 0, 1, None),
    ],
)
def test_a_prompt_that_returns_accepts_what_it_did_first(tokens, rounds, retractions, compared, place):
    first, other = Served("a", 1, 1, (7, 1, 2, 3, 4, 5, 6, 7), 1, 0, (2, 3, 1)), Served("b", 2, 2, (8, 1), 1, 0, (9, 9))
    again = Served("c", 3, 3, (7, *tokens), 1, retractions, rounds)
    expected = [] if place is None else [(again, place, first)]
    assert changed_repeats([first, other, again]) == (compared, expected)
