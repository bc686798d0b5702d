"""Verify rounds as the ledger's journal shows them, beside those that the controller of adaptive steps chose."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple


class JournalRound(NamedTuple):
    """One row of a step: positions that were reserved for it behind everything in flight, and those it may write."""

    account: int
    reserved: int
    width: int


def journal_rounds(journal: Iterable[tuple[str, int, tuple[int, ...]]]) -> Iterator[list[JournalRound]]:
    """Launches that follow each other without another verb: a whole verify round, or one row of a prefill step."""
    reserved: dict[int, int] = {}
    group: list[JournalRound] = []
    for verb, account, numbers in journal:
        if verb == "launch":
            group.append(JournalRound(account, reserved[account], numbers[0]))
            continue
        if group:
            yield group
            group = []
        if verb == "reserve":
            reserved[account] = numbers[0]
    if group:
        yield group


def first_journal_mismatch(
    journal: Iterable[tuple[str, int, tuple[int, ...]]], rounds: Sequence[tuple[int, int]], widest: int
) -> str:
    """Where the journal leaves the rounds (batch size, width), each reserved for `widest`, in a sentence; "" if never.

    A lone row that was reserved for exactly what it wrote may be of a prefill step or of a round; both are tried.
    """
    places = {0}  # rounds that may have been launched by now
    for group in journal_rounds(journal):
        lone = len(group) == 1 and group[0].reserved == group[0].width
        fitting = {place + 1 for place in places if place < len(rounds) and _fits(group, *rounds[place], widest)}
        left = fitting | places if lone else fitting
        if not left:
            return _sentence(group, max(places), rounds, widest)
        places = left
    if len(rounds) not in places:
        return f"the journal launches {max(places)} of {len(rounds)} rounds"
    return ""


def _fits(group: Sequence[JournalRound], batch_size: int, width: int, widest: int) -> bool:
    return len(group) == batch_size and all((row.reserved, row.width) == (widest, width) for row in group)


def _sentence(group: Sequence[JournalRound], place: int, rounds: Sequence[tuple[int, int]], widest: int) -> str:
    reserved, width = group[0].reserved, group[0].width
    due = "none" if place == len(rounds) else f"{rounds[place][0]} requests {rounds[place][1]} wide, {widest} reserved"
    return (
        f"the journal launches {len(group)} requests {width} wide, {reserved} reserved, as round {place}; due is {due}"
    )
