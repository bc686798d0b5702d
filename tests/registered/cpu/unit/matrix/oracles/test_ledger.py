import pytest

from specmatrix.engine.core.memory.ledger import replay
from specmatrix.errors import LedgerError
from specmatrix.matrix.oracles.ledger import AuditError, audit

# One request of five positions on pages of two, whose first page is cached and evicted at last.
SOUND = [
    ("groups", 0, 2, ((0, 3),)),
    ("open", 1, 0, ()),
    ("reserve", 1, 3, ((1, 2),)),
    ("launch", 1, 3, ()),
    ("settle", 1, 3, ()),
    ("reserve", 1, 2, ((3,),)),
    ("launch", 1, 2, ()),
    ("settle", 1, 1, ()),
    ("donate", 1, 1, ((1,),)),
    ("open", 2, 2, ((1,),)),
    ("close", 2, 0, ()),
    ("close", 1, 0, ()),
    ("evict", 0, 1, ((1,),)),
]


# A turn of five positions, three of them kept; the next turn writes two more behind them.
HELD = [
    ("groups", 0, 2, ((0, 3),)),
    ("open", 1, 0, ()),
    ("reserve", 1, 5, ((1, 2, 3),)),
    ("launch", 1, 5, ()),
    ("settle", 1, 5, ()),
    ("donate", 1, 1, ((1,),)),
    ("hold", 1, 3, ((3,),)),
    ("resume", 1, 1, ()),
    ("reserve", 1, 3, ((3,),)),
    ("launch", 1, 3, ()),
    ("settle", 1, 3, ()),
    ("hold", 1, 5, ()),
    ("close", 1, 0, ()),
    ("evict", 0, 1, ((1,),)),
]


def test_sound_journals_balance():
    for journal in (SOUND, HELD):
        book = audit(journal)
        assert (book.free, book.cached, book.holdings) == (3, 0, {})
    assert audit(HELD[:7]).free == 1
    assert [move.room for move in book.moves[1] if move.operation == "resume"] == [1], "its first page is shared"
    replay(HELD)


def refused(journal):
    """What the audit says of a journal's last entry, without its place and account."""
    with pytest.raises(AuditError) as caught:
        audit(journal)
    (operation, account, *_), index = journal[-1], len(journal) - 1
    assert (caught.value.index, caught.value.account) == (index, account)
    text = str(caught.value)
    assert text.startswith(f"journal entry {index} ")
    return text.removeprefix(f"journal entry {index} ").replace(f"({operation}, account {account}): ", "")


def test_it_agrees_with_the_engine_on_a_run_that_retracts(measured):
    _, run, _ = measured("standalone.s3.v2.p16.tight.pair")
    book, ledger = audit(run.journal), replay(run.journal)
    assert (book.pages, book.free, book.cached, len(book.holdings)) == (*ledger.counts, len(ledger.accounts))


def test_the_newest_step_in_flight_may_be_cancelled():
    journal = [*SOUND[:6], ("launch", 1, 1, ()), ("launch", 1, 1, ()), ("cancel", 1, 1, ())]
    assert audit(journal).holdings[1].end == 4


# Ten positions on pages of two, also in layers with a window of three: position 10 reads from 8 on, so four pages go.
WINDOWED = [
    ("groups", 0, 2, ((0, 9), (1, 6, 3, 0))),
    ("open", 1, 0, ()),
    ("reserve", 1, 10, ((1, 2, 3, 4, 5), (1, 2, 3, 4, 5))),
    ("launch", 1, 10, ()),
    ("settle", 1, 10, ((), (1, 2, 3, 4))),
    ("reserve", 1, 2, ((6,), (6,))),
    ("launch", 1, 2, ()),
    ("settle", 1, 1, ()),
    ("close", 1, 0, ()),
]
# The same, when no page of the window was freed yet, as a rollback may undo every position.
FIRST = [("groups", 0, 2, ((0, 9), (1, 6, 3, 10))), *WINDOWED[1:4], ("settle", 1, 10, ())]


def test_a_sound_journal_with_a_window_balances_and_the_engine_agrees():
    book = audit(WINDOWED)
    assert (book.pages, book.free) == (15, 15) and [group.lanes for group in book.groups] == [{}, {}]
    assert [len(group.owner) for group in audit(WINDOWED[:6]).groups] == [6, 2]
    assert replay(WINDOWED[:5]).accounts[1].groups[1].pages == [5]


FIVE = (1, 2, 3, 4, 5)
READS = "a query at position 10 reads from "


@pytest.mark.parametrize(
    ("journal", "index", "entry", "sentence"),
    [
        (SOUND, 2, ("reserve", 1, 3, ((1,),)), "1 pages are added; expected 2"),
        (SOUND, 2, ("reserve", 1, 3, ((1, 1),)), "page 1 is allocated, but belongs to account 1"),
        (SOUND, 2, ("reserve", 1, 3, ((1, 4),)), "page 4 does not exist"),
        (SOUND, 2, ("seize", 1, 3, ()), "has the unknown operation 'seize'"),
        (SOUND, 3, ("launch", 1, 5, ()), "a step writes up to position 5, but 4 positions have a page"),
        (SOUND, 3, ("settle", 1, 1, ()), "no step is in flight"),
        (SOUND, 4, ("settle", 1, 4, ()), "4 positions are accepted of a step of width 3"),
        (SOUND, 4, ("cancel", 1, 2, ()), "the cancelled step is not the newest in flight"),
        (SOUND, 3, ("cancel", 1, 3, ()), "the cancelled step is not the newest in flight"),
        (SOUND, 4, ("close", 1, 0, ()), "steps are still in flight"),
        (SOUND, 5, ("open", 1, 0, ()), "the account is already open"),
        (SOUND, 5, ("open", 0, 0, ()), "the account is already open"),
        (SOUND, 5, ("launch", 7, 1, ()), "(launch): account 7 is not open"),
        (SOUND, 8, ("donate", 1, 1, ((2,),)), "the donated pages are not the account's next ones"),
        (SOUND, 5, ("donate", 1, 2, ((1, 2),)), "2 pages are cached, but only 3 positions are committed"),
        (SOUND, 9, ("open", 2, 2, ((2,),)), "page 2 is shared, but not cached"),
        (SOUND, 9, ("evict", 0, 1, ((1,),)), "page 1 is evicted while 1 accounts read it"),
        (SOUND, 9, ("evict", 0, 1, ((2,),)), "page 2 is evicted, but is not cached"),
        (HELD, 4, ("hold", 1, 3, ((3,),)), "steps are still in flight"),
        (HELD, 6, ("hold", 1, 6, ()), "6 positions are kept; 5 are computed, 2 cached"),
        (HELD, 6, ("hold", 1, 1, ((2, 3),)), "1 positions are kept; 5 are computed, 2 cached"),
        (HELD, 6, ("hold", 1, 3, ()), "the freed pages are not those after position 3"),
        (HELD, 6, ("hold", 1, 3, ((2, 3),)), "the freed pages are not those after position 3"),
        (HELD, 6, ("resume", 1, 0, ()), "the account is not held"),
        (HELD, 7, ("resume", 1, 2, ()), "a turn resumes at position 1, inside its cached pages"),
        (HELD, 7, ("reserve", 1, 2, ((3,),)), "(reserve): account 1 is held and was not resumed"),
        (HELD, 7, ("hold", 1, 3, ()), "(hold): account 1 is held and was not resumed"),
        (HELD, 7, ("resume", 2, 0, ()), "(resume): account 2 is not open"),
        (WINDOWED, 2, ("reserve", 1, 10, (FIVE, (1, 2))), "2 window pages are added; expected 5"),
        (WINDOWED, 2, ("reserve", 1, 10, (FIVE, (1, 2, 3, 4, 7))), "window page 7 does not exist"),
        (WINDOWED, 2, ("reserve", 1, 10, (FIVE, (1, 2, 3, 4, 1))), "window page 1 is allocated, but belongs to"),
        (WINDOWED, 2, ("reserve", 1, 10, ((1,), (), ())), "pages of 3 groups change owner; there are 2"),
        (WINDOWED, 3, ("launch", 1, 11, ()), "a step writes up to position 11, but 10 positions have a page"),
        (WINDOWED, 4, ("settle", 1, 10, ((), FIVE)), READS + "8, but its window pages are those of 10 to 10"),
        (WINDOWED, 4, ("settle", 1, 10, ((), (2,))), "the freed window pages are not the account's first ones"),
        (WINDOWED, 4, ("settle", 1, 10, ((1,), (1, 2, 3, 4))), READS + "0, but its pages are those of 2 to 10"),
        (WINDOWED, 4, ("settle", 1, 10, ((), (1, 2, 3))), "3 window pages are freed; no query reads 4 any more"),
        (WINDOWED, 7, ("settle", 1, 0, ((), (5,))), READS + "8, but its window pages are those of 10 to 12"),
    ],
)
def test_the_first_broken_law_is_named(journal, index, entry, sentence):
    assert refused([*journal[:index], entry]).startswith(sentence)


def test_a_held_account_keeps_the_window_pages_that_its_next_turn_reads_and_shares_nothing():
    journal = [*FIRST, ("hold", 1, 7, ((5,), (5,)))]
    assert [len(group.owner) for group in audit(journal).groups] == [4, 4]
    held = refused([*WINDOWED[:5], ("hold", 1, 7, ((5,), (5,)))])
    assert held == "a query at position 7 reads from 5, but its window pages are those of 8 to 8"
    with pytest.raises(AuditError, match="2 reads from 0, but its window pages are those of 0 to 0"):
        audit([*FIRST, ("donate", 1, 1, ((1,),)), ("open", 2, 2, ((1,),))])


def test_a_turn_may_compute_again_what_its_window_pages_reach():
    """Pages begin at position 6 after a slide of three: of ten positions, those from 8 on find all that they read."""
    slid = [
        ("groups", 0, 2, ((0, 9), (1, 6, 3, 2))),
        *WINDOWED[1:4],
        ("settle", 1, 10, ((), (1, 2, 3))),
        ("hold", 1, 10, ()),
    ]
    for journal, room in (([*FIRST, ("hold", 1, 10, ())], 10), (slid, 2)):
        book = audit([*journal, ("resume", 1, room, ())])
        assert [(move.operation, move.again, move.room) for move in book.moves[1]][-1] == ("resume", room, room)
    with pytest.raises(AuditError, match="a query at position 7 reads from 5, but its window pages are those of 6 to"):
        audit([*slid, ("resume", 1, 3, ())])


@pytest.mark.parametrize("journal", [[], SOUND[1:], [("open", 1, ()), ("reserve", 1, (3, 1, 2))]])
def test_a_journal_without_its_groups_is_refused(journal):
    with pytest.raises(AuditError, match="a journal begins with its KV groups"):
        audit(journal)
    with pytest.raises(LedgerError, match="a journal begins with its KV groups"):
        replay(journal)


# Five positions on pages of two; four are kept, the next request writes two more, and at last the account is dropped.
OUTLIVING = [
    ("groups", 0, 2, ((0, 3),)),
    ("open", 1, 0, ()),
    ("reserve", 1, 5, ((1, 2, 3),)),
    ("launch", 1, 5, ()),
    ("settle", 1, 5, ()),
    ("hold", 1, 4, ((3,),)),
    ("resume", 1, 1, ()),
    ("reserve", 1, 2, ((3,),)),
    ("launch", 1, 2, ()),
    ("settle", 1, 2, ()),
    ("hold", 1, 5, ()),
    ("close", 1, 0, ()),
]


def test_a_turn_that_stops_while_it_recomputes_leaves_what_it_found():
    back = [*OUTLIVING[:6], ("resume", 1, 2, ()), ("reserve", 1, 1, ()), ("launch", 1, 1, ()), ("settle", 1, 1, ())]
    book = audit([*back, ("hold", 1, 4, ())])
    assert (book.moves[1][-1].computed, book.moves[1][-1].keep, book.holdings[1].committed) == (4, 4, 4)
    replay([*back, ("hold", 1, 4, ())])
    with pytest.raises(AuditError, match="5 positions are kept; 4 are computed"):
        audit([*back, ("hold", 1, 5, ())])


def test_moves_hold_what_each_request_found_and_left():
    book = audit(OUTLIVING)
    assert [(m.operation, m.computed, m.keep) for m in book.moves[1]] == [
        ("open", 0, 0),
        ("hold", 5, 4),
        ("resume", 4, 4),  # one of the four is computed again, yet four were found
        ("hold", 5, 5),
        ("drop", 5, 0),
    ]
    assert audit([*SOUND[:2], ("close", 1, 0, ())]).moves[1][1].operation == "close"
