"""What one request, or a session between two of its turns, holds of the KV pages, and who computed what lies there."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field

from specmatrix.errors import LedgerError


@dataclass(eq=False, slots=True)
class Account:
    """What one request holds, or a session between two of its turns. Only the ledger writes it.

    A residence is the time from an `open` or `resume` on in which one request uses it; each has a generation.
    """

    rid: int
    pages: list[int]  # shared (cached) pages first, then private ones; index i covers positions [i*P, (i+1)*P)
    shared: int  # how many leading pages are cached
    committed: int  # positions whose KV belongs to accepted tokens, by host knowledge
    generation: int  # of the residence, that of the last request to use it
    start: int  # first position that this residence computes
    earlier: dict[int, int]  # first position -> generation that computed the KV from there on, before this residence
    in_flight: deque[int] = field(default_factory=deque)  # widths of launched, unresolved steps, oldest first
    held: bool = False  # no request uses it: it waits for a session's next turn
    inherited: int = 0  # positions kept by the last hold, those that a request then computes again included

    @property
    def flying(self) -> int:
        """Positions that launched, unresolved steps may write."""
        return sum(self.in_flight) if self.in_flight else 0

    @property
    def computed(self) -> int:
        """Positions with KV. What is computed again is overwritten with its own, so all that was inherited has some."""
        return max(self.committed, self.inherited)

    @property
    def writers(self) -> dict[int, int]:
        """First position -> generation that computes the KV from there on, in this residence."""
        return {**{first: by for first, by in self.earlier.items() if first < self.start}, self.start: self.generation}

    def left(self, keep: int) -> dict[int, int]:
        """Who computed the first `keep` positions: behind what this residence committed all is as it was inherited."""
        writers = self.writers
        for (first, by), end in zip(self.earlier.items(), [*list(self.earlier)[1:], keep], strict=False):
            if end > self.committed:
                writers[max(first, self.committed)] = by
        return spans((first, by) for first, by in writers.items() if first < keep)

    def check(self, page_size: int) -> None:
        """Raise LedgerError where laws 3 or 7 do not hold."""
        protected = self.shared * page_size
        reserved = len(self.pages) * page_size
        if not protected <= self.committed <= self.committed + self.flying <= reserved:
            raise LedgerError(
                f"law 3: request {self.rid} has protected {protected}, committed {self.committed}, "
                f"in flight {self.flying}, reserved {reserved}"
            )
        if self.held and (self.in_flight or reserved - self.committed >= page_size):
            raise LedgerError(
                f"law 7: account {self.rid} is held with {self.committed} committed, in flight {self.flying}, "
                f"reserved {reserved}"
            )


def spans(writers: Iterable[tuple[int, int]]) -> dict[int, int]:
    """First position -> generation, without those that go on as before."""
    found: dict[int, int] = {}
    last = 0
    for first, by in writers:
        if by != last:
            found[first] = last = by
    return found
