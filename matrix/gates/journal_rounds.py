"""Compares the verify rounds in the ledger's journal with those that the adaptive-steps controller chose."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import NamedTuple

from specmatrix.matrix.subjects.protocol import Journal
from specmatrix.reports.wording import count


class JournalRound(NamedTuple):
    """One request in a step: positions reserved for it after everything in flight, and positions it may write."""

    account: int
    reserved: int
    width: int


def journal_rounds(journal: Journal) -> Iterator[list[JournalRound]]:
    """Groups consecutive launch entries: a whole verify round, or one request of a prefill step."""
    reserved: dict[int, int] = {}
    for launches, entries in groupby(journal, lambda entry: entry[0] == "launch"):
        if launches:
            yield [JournalRound(account, reserved[account], positions) for _, account, positions, _ in entries]
        else:
            reserved |= {account: positions for verb, account, positions, _ in entries if verb == "reserve"}


def first_journal_mismatch(journal: Journal, rounds: Sequence[tuple[int, int]], widest: int) -> str:
    """A sentence on where the journal first departs from `rounds` (batch size, width); "" if it matches.

    Every round reserves `widest` positions. A single launch that reserved exactly what it wrote may be a prefill row or
    a round; both readings are tried.
    """
    places = {0}  # possible numbers of rounds launched so far
    for group in journal_rounds(journal):
        lone = len(group) == 1 and group[0].reserved == group[0].width
        fitting = {place + 1 for place in places if place < len(rounds) and _fits(group, *rounds[place], widest)}
        left = fitting | places if lone else fitting
        if not left:
            return _mismatch(group, max(places), rounds, widest)
        places = left
    if len(rounds) not in places:
        return f"the journal holds {max(places)} of the controller's {len(rounds)} verify rounds"
    return ""


def _fits(group: Sequence[JournalRound], batch_size: int, width: int, widest: int) -> bool:
    return len(group) == batch_size and all((row.reserved, row.width) == (widest, width) for row in group)


def _mismatch(group: Sequence[JournalRound], place: int, rounds: Sequence[tuple[int, int]], widest: int) -> str:
    reserved, width = group[0].reserved, group[0].width
    expected = "no further round"
    if place < len(rounds):
        expected = f"{count(rounds[place][0], 'request')} of width {rounds[place][1]} with {widest} positions reserved"
    found = f"{count(len(group), 'request')} of width {width} with {reserved} positions reserved"
    return f"verify round {place} in the journal has {found}; expected: {expected}"
