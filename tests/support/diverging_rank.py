"""A rank that behaves differently from the others; a separate file, as every rank imports it."""

from __future__ import annotations

from specmatrix.engine.parallel.worker import Rank


def last_hands_out_other_pages(rank: Rank) -> None:
    """The last rank allocates its pages in a different order."""
    if rank.place.rank == rank.place.size - 1:
        rank.held.llm.loop.scheduler.ledger.groups[0].free.reverse()
