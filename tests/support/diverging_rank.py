"""What a rank of a test does otherwise than the others; a file of its own, as every rank imports it."""

from __future__ import annotations

from specmatrix.engine.parallel.worker import Rank


def last_hands_out_other_pages(rank: Rank) -> None:
    """The last rank hands out its pages in another order."""
    if rank.place.rank == rank.place.size - 1:
        rank.held.llm.loop.scheduler.ledger.free.reverse()
