"""Journal replay: a correct journal passes, and one with a missing or altered operation is refused."""

from __future__ import annotations

import re

import pytest

from specmatrix.engine.core.memory.groups import FullAttention
from specmatrix.engine.core.memory.ledger import Entry, Ledger, OutOfPages, replay
from specmatrix.errors import LedgerError


def journal_of_one() -> list[Entry]:
    """One request after another, the second on a page of the first, which is evicted at the end; the third is held."""
    ledger = Ledger(FullAttention(4, 2))
    ledger.open(1)
    ledger.reserve(1, 4)
    ledger.launch(1, 4)
    ledger.settle(1, 3)
    ledger.donate(1, 1)
    ledger.close(1)
    ledger.open(2, (1,))
    ledger.reserve(2, 3)
    ledger.launch(2, 3)
    ledger.settle(2, 3)
    ledger.close(2)
    ledger.evict(1)
    ledger.open(3)
    ledger.reserve(3, 8)
    ledger.launch(3, 8)
    ledger.settle(3, 6)
    ledger.hold(3, 5)
    ledger.resume(3, 1)
    ledger.reserve(3, 4)
    return list(ledger.journal)


JOURNAL = journal_of_one()


def test_replay_accepts_an_honest_journal():
    assert [operation for operation, *_ in JOURNAL].count("open") == 3
    assert replay(JOURNAL).journal == JOURNAL


@pytest.mark.parametrize("index", range(len(JOURNAL) - 1))
def test_replay_refuses_a_missing_operation(index):
    with pytest.raises((LedgerError, OutOfPages)):
        replay(JOURNAL[:index] + JOURNAL[index + 1 :])


@pytest.mark.parametrize("operation", ["open", "reserve", "donate", "hold", "resume"])
def test_replay_refuses_other_numbers_or_pages(operation):
    index, entry = next((i, entry) for i, entry in enumerate(JOURNAL) if entry[0] == operation)
    for other in ((*entry[:2], entry[2] - 3, entry[3]), (*entry[:3], ((9,),))):
        with pytest.raises((LedgerError, OutOfPages)):
            replay([*JOURNAL[:index], other, *JOURNAL[index + 1 :]])


def test_replay_names_the_entry_that_differs():
    index, (operation, rid, width, _) = next((i, entry) for i, entry in enumerate(JOURNAL) if entry[0] == "reserve")
    other = (operation, rid, width, ((1, 3),))
    text = f"journal entry {index}: the run recorded {other}, but its replay gives {JOURNAL[index]}"
    with pytest.raises(LedgerError, match=f"^{re.escape(text)}$"):
        replay([*JOURNAL[:index], other])


def test_replay_refuses_an_unknown_operation():
    with pytest.raises(LedgerError, match="journal entry 20: unknown operation 'lend'"):
        replay([*JOURNAL, ("lend", 3, 0, ())])


@pytest.mark.parametrize("groups", [((0, 3),), ((0, 4), (1, 4, 2, 0))])
def test_replay_refuses_another_pool(groups):
    with pytest.raises((LedgerError, OutOfPages)):
        replay([("groups", 0, 2, groups), *JOURNAL[1:]])
