"""Journal replay: a correct journal passes, and one with a missing, swapped or altered operation is refused."""

from __future__ import annotations

import re

import pytest

from specmatrix.engine.core.memory.ledger import Ledger, OutOfPages
from specmatrix.engine.core.memory.replay import replay
from specmatrix.errors import LedgerError


def journal_of_one() -> list[tuple[str, int, tuple[int, ...]]]:
    """One request after another, the second on a page of the first, which is evicted at the end; the third is held."""
    ledger = Ledger(4, 2)
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
    assert [operation for operation, _, _ in JOURNAL].count("open") == 3
    assert replay(JOURNAL, 4, 2).journal == JOURNAL


@pytest.mark.parametrize("index", range(len(JOURNAL) - 1))
def test_replay_refuses_a_missing_operation(index):
    with pytest.raises((LedgerError, OutOfPages)):
        replay(JOURNAL[:index] + JOURNAL[index + 1 :], 4, 2)


# Verbs of different accounts may change places where neither needs the other; these may not.
ORDERED = [
    i
    for i in range(len(JOURNAL) - 1)
    if JOURNAL[i][1] == JOURNAL[i + 1][1] or (JOURNAL[i][0], JOURNAL[i + 1][0]) == ("close", "evict")
]


@pytest.mark.parametrize("index", ORDERED)
def test_replay_refuses_a_swapped_order(index):
    swapped = [*JOURNAL[:index], JOURNAL[index + 1], JOURNAL[index], *JOURNAL[index + 2 :]]
    with pytest.raises((LedgerError, OutOfPages)):
        replay(swapped, 4, 2)


@pytest.mark.parametrize("operation", ["reserve", "donate", "hold"])
def test_replay_refuses_a_different_page(operation):
    index = next(i for i, entry in enumerate(JOURNAL) if entry[0] == operation)
    rid, numbers = JOURNAL[index][1:]
    altered = (*numbers[:-1], numbers[-1] + 1)
    sentence = f"journal entry {index}: {operation} returned pages {numbers[1:]}, but the run recorded {altered[1:]}"
    with pytest.raises(LedgerError, match=re.escape(sentence)):
        replay([*JOURNAL[:index], (operation, rid, altered), *JOURNAL[index + 1 :]], 4, 2)


def test_replay_refuses_an_unknown_operation():
    with pytest.raises(LedgerError, match="journal entry 19: unknown operation 'lend'"):
        replay([*JOURNAL, ("lend", 3, ())], 4, 2)


def test_replay_refuses_a_different_pool():
    with pytest.raises(LedgerError, match="journal entry 1: reserve returned pages"):
        replay(JOURNAL, 4, 1)
    with pytest.raises((LedgerError, OutOfPages)):
        replay(JOURNAL, 3, 2)
