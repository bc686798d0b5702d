"""Rounds in a journal, aligned with the rounds that a controller chose."""

import pytest

from specmatrix.matrix.gates.journal_rounds import JournalRound, first_journal_mismatch, journal_rounds

# Two prompts of 5 and 6 tokens, a round of both 3 wide, a round of the first alone 6 wide, one 3 wide.
JOURNAL = [
    ("open", 1, 0, ()),
    ("reserve", 1, 5, ((1,),)),
    ("launch", 1, 5, ()),
    ("open", 2, 0, ()),
    ("reserve", 2, 6, ((2,),)),
    ("launch", 2, 6, ()),
    ("settle", 1, 5, ()),
    ("settle", 2, 6, ()),
    ("reserve", 1, 6, ()),
    ("reserve", 2, 6, ((3,),)),
    ("launch", 1, 3, ()),
    ("launch", 2, 3, ()),
    ("settle", 1, 2, ()),
    ("settle", 2, 1, ()),
    ("close", 2, 0, ()),
    ("reserve", 1, 6, ()),
    ("launch", 1, 6, ()),
    ("settle", 1, 1, ()),
    ("reserve", 1, 6, ()),
    ("launch", 1, 3, ()),
]
ROUNDS = [(2, 3), (1, 6), (1, 3)]


def test_launches_in_a_row_are_one_round():
    groups = list(journal_rounds(JOURNAL))
    assert [len(group) for group in groups] == [1, 1, 2, 1, 1]
    assert groups[2] == [JournalRound(1, 6, 3), JournalRound(2, 6, 3)]


def test_the_rounds_are_found_between_the_prefills():
    assert first_journal_mismatch(JOURNAL, ROUNDS, 6) == ""


def test_a_lone_prompt_as_long_as_the_widest_round_is_no_round():
    assert first_journal_mismatch(JOURNAL[:8], [], 6) == ""
    assert first_journal_mismatch(JOURNAL[3:8], [(1, 6)], 6) == ""


@pytest.mark.parametrize(
    ("rounds", "sentence"),
    [
        ([(2, 4)], "verify round 0 in the journal has 2 requests of width 3 with 6 positions reserved; expected: 2"),
        ([(2, 3), (1, 6), (1, 2)], "verify round 2 in the journal has 1 request of width 3 with 6 positions reserved"),
        ([(2, 3), (1, 6)], "verify round 2 in the journal has 1 request of width 3 with 6 positions reserved"),
        ([*ROUNDS, (1, 3)], "the journal holds 3 of the controller's 4 verify rounds"),
    ],
)
def test_other_rounds_are_named(rounds, sentence):
    assert first_journal_mismatch(JOURNAL, rounds, 6).startswith(sentence)


def test_a_reservation_for_the_current_width_is_named():
    narrow = [
        ("reserve", at, 3, pages) if (operation, number) == ("reserve", 6) and i > 7 else (operation, at, number, pages)
        for i, (operation, at, number, pages) in enumerate(JOURNAL)
    ]
    assert first_journal_mismatch(narrow, ROUNDS, 6) == (
        "verify round 0 in the journal has 2 requests of width 3 with 3 positions reserved; "
        "expected: 2 requests of width 3 with 6 positions reserved"
    )
